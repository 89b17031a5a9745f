"""Rows of different lengths: against plain lists."""

from __future__ import annotations

import json
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tdmap
from tdmap.datasets import Jagged
from tdmap.errors import OutputMismatch, ResumeMismatch
from tensordict_lite import DatasetError, TensorDict
from tensordict_lite.memmap import checksum

DTYPES = [torch.uint8, torch.int16, torch.int64, torch.float32, torch.bfloat16, torch.bool, torch.complex64]
WORDS = ["ant", "", "bee", "größer", "日本", "a" * 5000, "\udcff", "z"]


def rows_of(kind: str, count: int = 40) -> list[Any]:
    """Rows of every kind, some of them empty."""
    if kind == "str":
        return [WORDS[number % 8] * (number % 3) for number in range(count)]
    if kind == "bytes":
        return [bytes(range(number % 7)) for number in range(count)]
    shape = (2, 3) if kind == "matrix" else ()
    return [torch.arange(number % 5 * 6).reshape(-1, 2, 3)[:, : shape[0] if shape else 1] if shape
            else torch.arange(number % 5) + number for number in range(count)]  # fmt: skip


def same(found: Any, rows: list[Any]) -> None:
    """The rows of a Jagged are these."""
    assert len(found) == len(rows)
    for row, expected in zip(found, rows, strict=True):
        assert torch.equal(row, expected) if isinstance(expected, torch.Tensor) else row == expected


KINDS = ["str", "bytes", "vector", "matrix"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_come_back_from_a_folder(tmp_path: Path, kind: str, workers: int) -> None:
    rows = rows_of(kind)
    jagged = Jagged.from_list(rows)
    same(jagged, rows)
    saved = jagged.save(tmp_path / "j", num_workers=workers)
    same(saved, rows)
    same(Jagged.open(tmp_path / "j"), rows)
    same(pickle.loads(pickle.dumps(saved)), rows)
    assert saved.kind == jagged.kind and saved.dtype is jagged.dtype


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "index",
    [slice(None), slice(3, 20), slice(None, None, 3), slice(None, None, -2), slice(5, 5), [4, 4, -1, 0], [],
     torch.arange(39, -1, -1), np.array([3, 1]), torch.arange(40) % 3 == 0],
)  # fmt: skip
def test_a_choice_of_rows_is_that_of_a_list(tmp_path: Path, kind: str, index: Any) -> None:
    rows = rows_of(kind)
    expected = (
        rows[index]
        if isinstance(index, slice)
        else [rows[i] for i in torch.arange(40)[torch.as_tensor(index).long() if len(index) == 0 else index].tolist()]
    )
    jagged = Jagged.from_list(rows)
    part = jagged[index]
    same(part, expected)
    same(part.compact(), expected)
    same(part.save(tmp_path / "j", num_workers=2), expected)
    assert part.tolist() == Jagged.from_list(expected).tolist() if expected else part.tolist() == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    rows = [torch.randint(0, 2, (number % 4, 2)).to(dtype) for number in range(30)]
    same(Jagged.from_list(rows).shuffle(tmp_path / "j", seed=0, num_workers=2), [rows[i] for i in order(30, 0)])


def order(count: int, seed: int) -> list[int]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()


def test_single_rows_and_what_is_out_of_range() -> None:
    jagged = Jagged.from_list(["a", "bc"])
    assert (jagged[0], jagged[-1], jagged[torch.tensor(1)], jagged[np.int64(0)]) == ("a", "bc", "bc", "a")
    for index in (2, -3):
        with pytest.raises(IndexError, match="2 rows"):
            jagged[index]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=60), st.integers(0, 1000))
def test_text_of_any_alphabet(rows: list[str], seed: int) -> None:
    jagged = Jagged.from_list(rows)
    assert jagged.tolist() == rows
    shuffled = jagged.shuffle(seed=seed)
    assert shuffled.tolist() == [rows[i] for i in order(len(rows), seed)]
    assert shuffled.compact().tolist() == shuffled.tolist()
    assert [len(row.encode()) for row in rows] == jagged.lengths.tolist()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(0, 8), st.booleans())
def test_pad_and_pack_as_by_hand(lengths: list[int], to: int, left: bool) -> None:
    rows = [torch.arange(n) + 10 * i for i, n in enumerate(lengths)]
    padded, mask = Jagged.from_list(rows).pad(to, value=-1, left=left)
    for row, line, seen in zip(rows, padded.tolist(), mask.tolist(), strict=True):
        kept = row[:to].tolist()
        blank = [-1] * (to - len(kept))
        assert line == (blank + kept if left else kept + blank)
        assert seen == (
            [False] * len(blank) + [True] * len(kept) if left else [True] * len(kept) + [False] * len(blank)
        )
    flat = [(int(v), i, p) for i, row in enumerate(rows) for p, v in enumerate(row)]
    if len(flat) >= 4:
        packed = Jagged.from_list(rows).pack(4, num_workers=0)
        count = len(flat) // 4 * 4
        found = zip(*(packed[key].flatten().tolist() for key in ("values", "document", "position")), strict=True)
        assert list(found) == flat[:count]


def test_nested_tensors_share_their_values() -> None:
    rows = [torch.randn(3, 2), torch.randn(0, 2), torch.randn(5, 2)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    jagged = Jagged.from_nested(nested)
    same(jagged, rows)
    assert jagged.values.data_ptr() == nested.values().data_ptr()
    assert torch.equal(jagged.to_nested().values(), nested.values())
    same(Jagged.from_nested(torch.nested.nested_tensor(rows)), rows)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("chunksize", [None, 7])
def test_map_filter_and_sort_are_those_of_lists(tmp_path: Path, workers: int, chunksize: int | None) -> None:
    rows = rows_of("str", 200)
    jagged = Jagged.from_list(rows).save(tmp_path / "in", num_workers=0)
    options: Any = {"num_workers": workers, "chunksize": chunksize}
    upper = jagged.map(lambda chunk: [row.upper() for row in chunk], tmp_path / "out", **options)
    same(upper, [row.upper() for row in rows])
    same(jagged.map(lambda chunk: [row.upper() for row in chunk], **options), [row.upper() for row in rows])
    assert jagged.map(lambda chunk: chunk.lengths, **options).tolist() == [
        len(r.encode("utf8", "surrogatepass")) for r in rows
    ]
    same(
        jagged.filter(lambda chunk: [row > "b" for row in chunk], tmp_path / "f", **options),
        [r for r in rows if r > "b"],
    )
    same(
        jagged.sort(tmp_path / "s", num_workers=workers),
        sorted(rows, key=lambda r: len(r.encode("utf8", "surrogatepass"))),
    )


def test_map_may_change_the_kind_and_the_number_of_rows(tmp_path: Path) -> None:
    jagged = Jagged.from_list(["a b c", "", "d e"]).save(tmp_path / "in", num_workers=0)
    words = jagged.map(lambda chunk: [word for row in chunk for word in row.split()] or Jagged.from_list([""])[:0],
                       tmp_path / "words", chunksize=1, num_workers=2)  # fmt: skip
    assert words.tolist() == ["a", "b", "c", "d", "e"]
    codes = words.map(lambda chunk: [torch.tensor([ord(word), 0]) for word in chunk], num_workers=2)
    assert codes.tolist() == [[ord(letter), 0] for letter in "abcde"]
    nested = words.map(lambda chunk: torch.nested.nested_tensor([torch.ones(2)] * len(chunk), layout=torch.jagged))
    assert nested.lengths.tolist() == [2] * 5


def test_columns_may_go_beside_the_rows(tmp_path: Path) -> None:
    jagged = Jagged.from_list(["a", "bb", "ccc"])
    jagged.map(lambda chunk: (TensorDict({"n": chunk.lengths}, [len(chunk)]), chunk), tmp_path / "out", chunksize=1)
    data = TensorDict.load_memmap(tmp_path / "out")
    assert data["rows", "n"].tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="other columns"):
        Jagged.open(tmp_path / "out").append(["d"])


def test_rows_that_raise_are_left_out_and_told(tmp_path: Path) -> None:
    jagged = Jagged.from_list([str(number) for number in range(100)])

    def fn(chunk: Jagged) -> list[str]:
        if any(row.endswith("7") for row in chunk):
            raise KeyError("seven")
        return list(chunk)

    errors = tdmap.RowErrors()
    found = jagged.map(fn, tmp_path / "out", chunksize=9, on_error=errors, num_workers=2)
    assert found.tolist() == [str(number) for number in range(100) if number % 10 != 7]
    assert errors.rows == list(range(7, 100, 10))


def test_a_killed_worker_loses_no_rows(tmp_path: Path) -> None:
    jagged = Jagged.from_list([str(number) * 50 for number in range(3000)]).save(tmp_path / "in", num_workers=0)
    mark = tmp_path / "killed"

    def fn(chunk: Jagged) -> list[str]:
        if chunk[0].startswith("1500") and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return [row[::-1] for row in chunk]

    found = jagged.map(fn, tmp_path / "out", chunksize=100, num_workers=2)
    assert mark.exists()
    assert found.tolist() == [row[::-1] for row in jagged]


def test_resume_knows_the_function_and_the_rows(tmp_path: Path) -> None:
    jagged = Jagged.from_list(["a", "b"] * 500).save(tmp_path / "in", num_workers=0)
    jagged.map(lambda chunk: list(chunk), tmp_path / "out", resume=True, num_workers=1)
    written = (tmp_path / "out" / "values.memmap").stat().st_mtime_ns
    jagged.map(lambda chunk: list(chunk), tmp_path / "out", resume=True, num_workers=1)
    assert (tmp_path / "out" / "values.memmap").stat().st_mtime_ns == written
    with pytest.raises(ResumeMismatch):
        jagged.map(lambda chunk: [row * 2 for row in chunk], tmp_path / "out", resume=True, num_workers=1)


def test_rows_are_appended(tmp_path: Path) -> None:
    rows = rows_of("vector", 30)
    jagged = Jagged.from_list(rows).save(tmp_path / "j", num_workers=0)
    reader = Jagged.open(tmp_path / "j")
    more = jagged.append(rows[:7]).append(Jagged.from_list(rows)[::2])
    same(more, rows + rows[:7] + rows[::2])
    same(Jagged.open(tmp_path / "j"), rows + rows[:7] + rows[::2])
    same(reader, rows)
    same(reader.append(rows[:1]), rows + rows[:7] + rows[::2] + rows[:1])  # of an older view: nothing is lost
    with pytest.raises(TypeError, match="holds"):
        jagged.append(["text"])
    with pytest.raises(ValueError, match="save"):
        jagged[:3].append(rows)


def test_an_append_that_was_killed_leaves_the_rows_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tdmap.datasets import jaggedfile

    rows = rows_of("str", 30)
    jagged = Jagged.from_list(rows).save(tmp_path / "j", num_workers=0)
    real, calls = jaggedfile._set_sizes, []

    def dies(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(*args)

    monkeypatch.setattr(jaggedfile, "_set_sizes", dies)
    with pytest.raises(KeyboardInterrupt):
        jagged.append(["lost"] * 10)
    monkeypatch.undo()
    same(Jagged.open(tmp_path / "j"), rows)
    same(Jagged.open(tmp_path / "j").append(["kept"]), [*rows, "kept"])


def test_checksums_cover_the_rows(tmp_path: Path) -> None:
    Jagged.from_list(rows_of("str")).save(tmp_path / "j", num_workers=0)
    checksum.store(tmp_path / "j")
    assert checksum.verify(tmp_path / "j").ok
    with (tmp_path / "j" / "values.memmap").open("r+b") as file:
        file.write(b"X")
    assert not checksum.verify(tmp_path / "j").ok


def test_the_reference_opens_the_folder(tmp_path: Path) -> None:
    reference = pytest.importorskip("tensordict")
    Jagged.from_list(["ab", "c"]).save(tmp_path / "j", num_workers=0)
    data = reference.TensorDict.load_memmap(tmp_path / "j")
    assert (data["kind"], data["offsets"].tolist(), bytes(data["values"].tolist())) == ("str", [0, 2, 3], b"abc")


def test_buckets_have_every_row_once_and_little_padding() -> None:
    lengths = torch.randint(1, 100, (1000,))
    jagged = Jagged.from_list([torch.zeros(int(n)) for n in lengths])
    batches = list(jagged.buckets(16, seed=1, window=20))
    assert sorted(torch.cat(batches).tolist()) == list(range(1000))
    assert all(torch.equal(a, b) for a, b in zip(batches, jagged.buckets(16, seed=1, window=20), strict=True))
    assert not torch.equal(torch.cat(batches), torch.cat(list(jagged.buckets(16, seed=2, window=20))))
    padded = sum(len(rows) * int(lengths[rows].max()) for rows in batches)
    assert padded < 1.15 * int(lengths.sum())


def test_bad_input_is_told(tmp_path: Path) -> None:
    for rows, message in [
        ([], "no rows"),
        (["a", b"b"], "row 1 is a bytes, where row 0 is a str"),
        (["a", None], "row 1 is a NoneType"),
        ([torch.ones(2), torch.ones(2, 3)], "row 1 is"),
        ([torch.ones(2), torch.ones(2).int()], "row 1 is torch.int32"),
        ([1, 2], "row 0 is one number"),
        ([[1], ["x"]], "row 1 cannot be a tensor"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            Jagged.from_list(rows)
    with pytest.raises(ValueError, match="reach"):
        Jagged(torch.ones(3), torch.tensor([0, 4]))
    with pytest.raises(ValueError, match="ascend"):
        Jagged(torch.ones(3), torch.tensor([0, 2, 1]))
    with pytest.raises(OutputMismatch, match="must return jagged rows"):
        Jagged.from_list(["a"]).map(lambda chunk: 3, num_workers=0)
    with pytest.raises(OutputMismatch, match="a bool for each"):
        Jagged.from_list(["a", "b"]).filter(lambda chunk: [True] * 5, num_workers=0)
    saved = Jagged.from_list(["a"]).save(tmp_path / "j", num_workers=0)
    with pytest.raises(FileExistsError):
        saved.save(tmp_path / "j")
    (tmp_path / "link").symlink_to(tmp_path / "j")
    for name in ("j", "link"):  # the same folder, under both names
        with pytest.raises(FileExistsError, match="is the folder of the data"):
            saved.map(lambda chunk: list(chunk), tmp_path / name)


@pytest.mark.parametrize("offsets", [[0, 2, 1], [-1, 0, 1], [0, 1, 99]])
def test_files_that_do_not_fit_each_other_are_refused(tmp_path: Path, offsets: list[int]) -> None:
    Jagged.from_list(["a", "b"]).save(tmp_path / "j", num_workers=0)
    (tmp_path / "j" / "offsets.memmap").write_bytes(torch.tensor(offsets).numpy().tobytes())
    if offsets == [0, 2, 1]:  # offsets are not read to open a file: the row is told when it is
        with pytest.raises(DatasetError, match="row 1"):
            Jagged.open(tmp_path / "j")[1]
    else:
        with pytest.raises(DatasetError, match="offsets"):
            Jagged.open(tmp_path / "j")


def test_ten_million_rows_cost_no_python_object_each(tmp_path: Path) -> None:
    rows = 10_000_000
    lengths = torch.arange(rows) % 3
    offsets = torch.zeros(rows + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=offsets[1:])
    Jagged(torch.arange(int(offsets[-1])).to(torch.int16), offsets).save(tmp_path / "j", num_workers=2)
    meta = sum(path.stat().st_size for path in (tmp_path / "j").rglob("*.json"))
    assert meta < 2000
    jagged = Jagged.open(tmp_path / "j")
    number = 7_654_321
    start = int(offsets[number])
    assert jagged[number].tolist() == torch.arange(start, start + number % 3).to(torch.int16).tolist()
    assert json.loads((tmp_path / "j" / "meta.json").read_text())["offsets"]["shape"] == [rows + 1]


def test_chunks_of_different_kinds_are_told(tmp_path: Path) -> None:
    def fn(chunk: Jagged) -> list[Any]:
        return [torch.ones(2)] if chunk[0] == "a" else ["text"]

    with pytest.raises(OutputMismatch, match="some chunks gave tensor where others gave str"):
        Jagged.from_list(["a", "b"]).map(fn, tmp_path / "out", num_workers=0, chunksize=1)
