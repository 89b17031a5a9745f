"""Stacks of strings and bytes in two files: same rows, nothing read before it is asked for, damage is told."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
import tensordict_lite
from tensordict_lite import DatasetError, Ragged, TensorDict
from tensordict_lite.memmap import tuning

ROWS = tuning.DEFAULT.text_rows + 3
WORDS = [f"w{i} \u00e9\U0001f600" * (i % 3) for i in range(ROWS)]
ODD = ["a", "\ud800", "", "\x00", "line\nline", "\u202e"]


def column(kind: str) -> list[Any]:
    if kind == "str":
        return WORDS
    if kind == "bytes":
        return [word.encode() for word in WORDS]
    if kind == "odd":
        return (ODD * ROWS)[:ROWS]
    if kind == "empty":
        return [""] * ROWS
    if kind == "ascii":
        return [f"{i}" for i in range(ROWS)]
    if kind == "one str":
        return [None] * (ROWS - 1) + ["last"]
    return [None if i % 7 == 0 else word for i, word in enumerate(WORDS)]


def save(folder: Path, words: list[Any], **options: Any) -> TensorDict:
    TensorDict({"n": torch.arange(len(words)), "in": {"word": words}}, [len(words)]).memmap(folder, **options)
    return TensorDict.load_memmap(folder)


def is_text(data: TensorDict) -> bool:
    """Whether the strings were read from two files, and not as a list."""
    return isinstance(data.get(("in", "word")), Ragged)


@pytest.mark.parametrize("kind", ["str", "bytes", "odd", "empty", "ascii", "with None", "one str"])
def test_rows_come_back(kind: str, tmp_path: Path) -> None:
    words = column(kind)
    data = save(tmp_path / "data", words)
    assert is_text(data)
    assert list(data["in", "word"]) == words
    assert data[5]["in", "word"] == words[5] and data[-1]["in", "word"] == words[-1]
    assert list(data[100:107]["in", "word"]) == words[100:107]
    picks = torch.tensor([4000, 3, -1, 3])
    assert list(data[picks]["in", "word"]) == [words[i] for i in picks]
    assert (data == save(tmp_path / "again", words)).all()


def test_none_is_not_mistaken_for_a_string_nor_a_string_for_none(tmp_path: Path) -> None:
    words = (["\xff", None, "", "None", "\udcff"] * ROWS)[:ROWS]
    data = save(tmp_path / "data", words)
    assert is_text(data) and list(data["in", "word"]) == words
    assert list(pickle.loads(pickle.dumps(data))["in", "word"]) == words
    assert list(data.clone()["in", "word"]) == words
    again = data.memmap(tmp_path / "again", copy_existing=True)
    assert is_text(again.load_memmap(tmp_path / "again")) and list(again["in", "word"]) == words
    assert list(data.memmap(tmp_path / "data.tdz", copy_existing=True)["in", "word"]) == words
    assert data[::5]["in", "word"] == ["\xff"] * len(range(0, ROWS, 5))


@pytest.mark.parametrize("row", [None, b"bytes", 1])
def test_other_mixtures_are_objects(row: Any, tmp_path: Path) -> None:
    """All None, None among bytes (where no byte is free to mark it), and numbers among strings."""
    words = [row] * ROWS if row is None else [row, None if row == b"bytes" else "s"] * (ROWS // 2)
    TensorDict({"in": {"word": words}}, [len(words)]).memmap(tmp_path / "data", allow_pickle=True)
    data = TensorDict.load_memmap(tmp_path / "data", allow_pickle=True)
    assert not is_text(data) and data.get(("in", "word")).tolist() == words


def test_few_strings_are_written_as_the_reference_writes_them(tmp_path: Path) -> None:
    data = save(tmp_path / "data", WORDS[: tuning.DEFAULT.text_rows - 1])
    assert not is_text(data)
    assert "data" in json.loads((tmp_path / "data/in/word/meta.json").read_text())


def test_few_bytes_need_no_pickle(tmp_path: Path) -> None:
    words = [b"a", b"", b"\xff"]
    assert list(save(tmp_path / "data", words)["in", "word"]) == words
    with pytest.raises(RuntimeError, match="allow_pickle=True"):
        save(tmp_path / "ref", words, reference_format=True)


@pytest.mark.parametrize("way", ["memmap", "memmap_", "save", "archive"])
def test_the_format_of_the_reference_is_a_choice(way: str, tmp_path: Path) -> None:
    reference = pytest.importorskip("tensordict").TensorDict
    data = TensorDict({"word": WORDS}, [ROWS])
    path = tmp_path / ("data.tdz" if way == "archive" else "data")
    if way == "archive":
        data.save(path)
    else:
        getattr(data, way)(path, reference_format=True)
    assert list(reference.load_memmap(path)["word"]) == WORDS
    assert list(TensorDict.load_memmap(path)["word"]) == WORDS
    data = TensorDict({"word": WORDS}, [ROWS])
    data.memmap(tmp_path / "ours")
    with pytest.raises(RuntimeError, match="TextStack"):  # loud, where it cannot know
        reference.load_memmap(tmp_path / "ours")


def test_what_was_looked_at_and_what_was_changed_travels(tmp_path: Path) -> None:
    data = save(tmp_path / "data", WORDS)
    assert data[7]["in", "word"] == WORDS[7]
    assert len(pickle.dumps(data)) < 2000  # a look changes nothing
    data.get(("in", "word"))[9].update_(tensordict_lite.NonTensorData("new"))
    copy = pickle.loads(pickle.dumps(data))
    wanted = [*WORDS[:9], "new", *WORDS[10:]]
    assert list(copy["in", "word"]) == list(data["in", "word"]) == wanted
    data.memmap(tmp_path / "changed", copy_existing=True)
    assert list(TensorDict.load_memmap(tmp_path / "changed")["in", "word"]) == wanted


def test_a_whole_column_is_replaced_in_one_step(tmp_path: Path) -> None:
    save(tmp_path / "data", WORDS)
    folder = tmp_path / "data/in/word"
    data = TensorDict.load_memmap(tmp_path / "data")
    data.get(("in", "word")).update_(data.get(("in", "word")).flip(0))
    assert list(data["in", "word"]) == WORDS[::-1]
    loaded = list(TensorDict.load_memmap(tmp_path / "data")["in", "word"])
    assert loaded in (WORDS, WORDS[::-1])
    assert len(list(folder.glob("*.memmap"))) in (0, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": -1},
        {"rows": "9"},
        {"rows": 1 << 60},
        {"nbytes": None},
        {"kind": "object"},
        {"kind": ["str"]},
        {"kind": {}},
        {"files": ["values.memmap", "../../n.memmap"]},
        {"files": ["values.memmap"]},
        {"files": None},
        {"rows": ROWS - 1},
    ],
    ids=str,
)
def test_hostile_metadata_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path / "data", WORDS)
    path = tmp_path / "data/in/word/meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DatasetError):
        TensorDict.load_memmap(tmp_path / "data")


@pytest.mark.parametrize("rows", [slice(5, 12), [9, 2], [9, ROWS - 1]], ids=str)
def test_strings_that_are_not_utf_8_are_named_by_file_and_row(rows: Any, tmp_path: Path) -> None:
    words = ["ant"] * 9 + ["bee"] + ["cat"] * (ROWS - 10)
    save(tmp_path / "data", words)
    path = tmp_path / "data/in/word/values.memmap"
    path.write_bytes(path.read_bytes().replace(b"bee", b"b\xffe"))
    with pytest.raises(DatasetError, match=r"word/values\.memmap.*string 9 is not UTF-8 .*0xff"):
        _ = TensorDict.load_memmap(tmp_path / "data")[rows]["in", "word"]


def test_an_error_leaves_the_dataset_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "data", WORDS)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tensordict_lite.memmap.save.write_new", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path / "data", WORDS[::-1])
    assert list(TensorDict.load_memmap(tmp_path / "data")["in", "word"]) == WORDS


LONG: dict[str, Any] = {
    "list": lambda rows: rows,
    "strings": Ragged.from_list,
    "json": lambda rows: Ragged.from_objects([[row] for row in rows]),
}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("way", ["folder", "archive", "map", "filter", "consolidated"])
def test_few_rows_of_many_bytes_are_in_files(kind: str, way: str, tmp_path: Path) -> None:
    """In one JSON, a reader would have to hold them all, and refuses 64 MB."""
    rows = ["\u00e9" * 50, "", "x" * 100]
    data = TensorDict({"n": torch.arange(3), "in": {"word": LONG[kind](rows)}}, [3])
    with tuning.use(text_bytes=100):
        if way == "consolidated":
            data.consolidate(tmp_path / "x")
            loaded = TensorDict.from_consolidated(tmp_path / "x")
        elif way in ("map", "filter"):
            call = (lambda chunk: chunk) if way == "map" else (lambda chunk: chunk["n"] >= 0)
            getattr(tdmap, way)(data, call, out=tmp_path / "x", num_workers=0)
            loaded = TensorDict.load_memmap(tmp_path / "x")
        else:
            data.memmap(tmp_path / ("x.tdz" if way == "archive" else "x"))
            loaded = TensorDict.load_memmap(tmp_path / ("x.tdz" if way == "archive" else "x"))
    assert list(loaded["in", "word"]) == list(data["in", "word"])
    if way in ("folder", "map", "filter"):
        assert (tmp_path / "x/in/word/values.memmap").stat().st_size >= 200
    assert is_text(loaded) or (kind, way) in [("list", "consolidated"), ("list", "archive")]


def test_metadata_that_no_reader_accepts_are_not_written(tmp_path: Path) -> None:
    words = ["x" * (8 << 20)] * 9
    data = save(tmp_path / "data", words)
    assert is_text(data) and list(data["in", "word"]) == words
    for rows, options in ((words, {"reference_format": True}), ([[word] for word in words], {})):
        with pytest.raises(RuntimeError, match=r"of in/word would have 75,.* bytes, and a reader accepts 67,108,864"):
            save(tmp_path / "data", rows, **options)
        assert list(TensorDict.load_memmap(tmp_path / "data")["in", "word"]) == words


def test_json_of_too_many_levels_names_its_row():
    rows = Ragged.from_objects([{"a": 1}, [1]])
    values, offsets = rows.flat()
    deep = torch.frombuffer(bytearray(b"[" * 100_000 + b"]" * 100_000), dtype=torch.uint8)
    end = int(offsets[1])
    bad = Ragged._over("json", torch.cat([values[:end], deep]), torch.tensor([0, end, end + len(deep)]))
    with pytest.raises(DatasetError, match="row 1 is not JSON"):
        bad[1]


PARTS = {
    "slice": lambda data: [data[:3]],
    "split": lambda data: data.split(2),
    "rows": lambda data: list(data),
    "unbind": lambda data: data.unbind(0),
    "reshape": lambda data: [data.reshape(2, 3)[0]],
    "unsqueeze": lambda data: [data.unsqueeze(0)],
    "shallow copy": lambda data: [data.clone(False)],
    "narrow": lambda data: [data.narrow(0, 1, 2)],
    "rows read before": lambda data: (list(data), [data])[1],
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", ["list", "ragged", "json"])
def test_text_that_is_written_through_a_view_is_in_the_file(kind, part, tmp_path):
    texts = [{"n": n} for n in range(6)] if kind == "json" else [f"row {n}" for n in range(6)]
    column = {"list": list, "ragged": Ragged.from_list, "json": Ragged.from_objects}[kind](texts)
    data = TensorDict({"x": torch.arange(6), "s": column, "in": TensorDict({"s": list(texts)}, [6])}, [6]).memmap(
        tmp_path
    )
    new = {"n": 9} if kind == "json" else "new"
    row = TensorDict({"x": torch.tensor(9)}, []).set_non_tensor("s", new).set_non_tensor(("in", "s"), new)
    for one in PARTS[part](data):
        one.update_(row.expand(one.batch_size).clone())
    for found in (data, TensorDict.load_memmap(tmp_path)):
        for key in ("s", ("in", "s")):
            assert [value == new for value in found.get(key).tolist()] == (found["x"] == 9).tolist()
        assert (found["x"] == 9).any()
