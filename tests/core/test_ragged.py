"""Ragged entries: rows of different lengths over values and offsets, in memory, on disk and in other processes."""

import json
import os
import pickle
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.pool import Pool
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import DatasetError, NonTensorData, NonTensorStack, Ragged, TensorDict
from tensordict_lite.memmap import tuning
from tensordict_lite.memmap.checksum import store, verify
from tests import interpreters

ROWS = 30
LENGTHS = [n * 7 % 5 for n in range(ROWS)]

KINDS: dict[str, list[Any]] = {
    "numbers": [torch.arange(n) + n for n in LENGTHS],
    "pairs": [torch.rand(n, 2, generator=torch.Generator().manual_seed(n)) for n in LENGTHS],
    "bytes": [bytes(range(n)) for n in LENGTHS],
    "text": ["\u00e9x\x00y"[:n] for n in LENGTHS],
    "text with None": [None if n == 3 else "abcd"[:n] for n in LENGTHS],
    "json": [[{"n": number, "\u00e9": None, "more": [0.5, True]} for number in range(n)] for n in LENGTHS],
}

kinds = pytest.mark.parametrize("kind", KINDS)


def as_column(kind: str) -> Any:
    return Ragged.from_objects(KINDS[kind]) if kind == "json" else Ragged.from_list(KINDS[kind])


def made(kind: str) -> TensorDict:
    return TensorDict({"x": torch.arange(ROWS), "in": {"v": as_column(kind)}}, [ROWS])


def rows_of(data: TensorDict) -> list[Any]:
    column = data.get(("in", "v"))
    assert type(column) is Ragged and column.column is not None, column
    return column.tolist()


def plain(rows: list[Any]) -> list[Any]:
    return [row.tolist() if isinstance(row, torch.Tensor) else row for row in rows]


CHOICES: dict[str, Any] = {
    "slice": slice(3, 20),
    "step": slice(None, None, 3),
    "mask": torch.arange(ROWS) % 3 == 0,
    "rows": torch.tensor([7, 0, 7, -1]),
    "list": [5, 2],
    "none": slice(0, 0),
    "no mask": torch.zeros(ROWS, dtype=torch.bool),
    "no rows": torch.zeros(0, dtype=torch.int64),
}

SAME: dict[str, Callable[[TensorDict, Path], TensorDict]] = {
    "itself": lambda data, folder: data,
    "clone": lambda data, folder: data.clone(),
    "shallow": lambda data, folder: data.clone(False),
    "pickle": lambda data, folder: pickle.loads(pickle.dumps(data)),
    "torch.save": lambda data, folder: through_file(data, folder),
    "shared": lambda data, folder: data.clone().share_memory_(),
    "consolidated": lambda data, folder: data.consolidate(),
    "consolidated in place": lambda data, folder: data.clone().consolidate(inplace=True),
    "consolidated, shared": lambda data, folder: data.consolidate(share_memory=True),
    "consolidated and pickled": lambda data, folder: pickle.loads(pickle.dumps(data.consolidate())),
    "consolidated and saved": lambda data, folder: through_file(data.consolidate(), folder),
    "consolidated file": lambda data, folder: data.consolidate(folder / "c"),
    "consolidated buffer": lambda data, folder: data.consolidate(folder / "c", use_buffer=True, num_threads=2),
    "loaded consolidated": lambda data, folder: reopened(data, folder),
    "rows consolidated": lambda data, folder: torch.cat([data, data])[ROWS:].consolidate(folder / "c").consolidate(),
    "choice consolidated": lambda data, folder: turned(data)[torch.arange(ROWS).roll(-3)].consolidate(),
    "memmap": lambda data, folder: data.memmap(folder / "m"),
    "load": lambda data, folder: TensorDict.load_memmap(data.memmap(folder / "m").saved_path),
    "archive": lambda data, folder: data.memmap(folder / "m.tdz"),
    "loaded archive": lambda data, folder: packed(data, folder, None),
    "compressed archive": lambda data, folder: packed(data, folder, "deflate"),
    "cat": lambda data, folder: torch.cat([data[:7], data[7:7], data[7:]]),
    "split": lambda data, folder: torch.cat(list(data.split(4))),
    "named": lambda data, folder: data.refine_names("rows"),
    "looked at": lambda data, folder: looked_at(data),
    "apply": lambda data, folder: data.apply(lambda x: x * 1),
    "contiguous": lambda data, folder: data.contiguous(),
    "to": lambda data, folder: data.to("cpu"),
    "update_": lambda data, folder: turned(data).update_(data),
    "copy_": lambda data, folder: turned(data).copy_(data),
    "written rows": lambda data, folder: written(data),
}
"""What leaves a ragged column what it is."""


def turned(data: TensorDict) -> TensorDict:
    return data[torch.arange(ROWS).roll(3)].clone()


def written(data: TensorDict) -> TensorDict:
    """Rows that are assigned, and rows that are written through a slice and a choice."""
    out = turned(data)
    row = out[20]
    out[:7] = data[:7]
    out[7:12].update_(data[7:12])
    out[torch.arange(12, ROWS)] = data[12:]
    if not isinstance(row["in", "v"], torch.Tensor):
        assert row["in", "v"] == data[20]["in", "v"]
    return out


def through_file(data: TensorDict, folder: Path) -> TensorDict:
    torch.save(data, folder / "f.pt")
    return torch.load(folder / "f.pt", weights_only=True)


def reopened(data: TensorDict, folder: Path) -> TensorDict:
    data.consolidate(folder / "c")
    return TensorDict.from_consolidated(folder / "c")


def packed(data: TensorDict, folder: Path, compression: str | None) -> TensorDict:
    data.memmap(folder / "m.tdz", compression=compression)
    return TensorDict.load_memmap(folder / "m.tdz")


def looked_at(data: TensorDict) -> TensorDict:
    data.unbind(0), data.get(("in", "v")).tensordicts
    return data


@pytest.fixture(autouse=True)
def text_in_files() -> Iterator[None]:
    with tuning.use(text_rows=1):
        yield


@kinds
@pytest.mark.parametrize("way", SAME)
def test_rows_are_the_same_after(way: str, kind: str, tmp_path: Path) -> None:
    data = SAME[way](made(kind), tmp_path)
    assert rows_of(data) == plain(KINDS[kind])
    assert (data.get(("in", "v")) == as_column(kind)).all().all()
    for choice in CHOICES.values():
        part = data[choice]
        numbers = torch.arange(ROWS)[choice].tolist()
        assert rows_of(part) == plain([KINDS[kind][n] for n in numbers])
        column, whole = part.get(("in", "v")), data.get(("in", "v"))
        assert (column.kind, column.dtype, column.row_shape) == (whole.kind, whole.dtype, whole.row_shape)
        assert rows_of(pickle.loads(pickle.dumps(part))) == rows_of(part)


@kinds
def test_an_entry_is_a_list_for_strings_and_the_column_otherwise(kind: str) -> None:
    data = made(kind)
    found = data["in", "v"]
    if kind.startswith("text") or kind == "json":
        assert isinstance(found, list) and found == KINDS[kind]
        assert type(data.get(("in", "v"))[2]) is NonTensorData
    else:
        assert type(found) is Ragged and plain(list(found)) == plain(KINDS[kind])
    for number in (0, 3, -1):
        assert plain([data[number]["in", "v"]]) == plain([KINDS[kind][number]])
    assert isinstance(data.get(("in", "v")), NonTensorStack)


@kinds
def test_slices_and_choices_share_the_values(kind: str) -> None:
    column = made(kind).get(("in", "v"))
    for choice in CHOICES.values():
        assert column[choice].column.values.data_ptr() == column.column.values.data_ptr()


OTHERS: dict[str, Callable[[TensorDict], TensorDict]] = {
    "reshape": lambda data: data.reshape(5, 6),
    "unsqueeze": lambda data: data.unsqueeze(0),
    "expand": lambda data: data.expand(2, ROWS),
    "permute": lambda data: data.unsqueeze(1).permute(1, 0),
    "stack": lambda data: torch.stack([data, data]),
    "index of two dimensions": lambda data: data[torch.tensor([[0, 1], [2, 3]])],
}


@kinds
@pytest.mark.parametrize("way", OTHERS)
def test_other_shapes_are_stacks_of_objects(way: str, kind: str) -> None:
    column = OTHERS[way](made(kind)).get(("in", "v"))
    assert type(column) is NonTensorStack and column.batch_dims == 2
    assert plain(column[0].tolist()) == plain(KINDS[kind][: len(column[0].tolist())])


@kinds
def test_another_object_in_a_row_makes_objects_of_the_column(kind: str) -> None:
    for change in (
        lambda data: data.get(("in", "v")).__setitem__(2, NonTensorData(("new",))),
        lambda data: data.get(("in", "v")).update_(
            NonTensorStack(*(NonTensorData(("new",) if n == 2 else row) for n, row in enumerate(KINDS[kind])))
        ),
    ):
        data = made(kind)
        change(data)
        column = data.get(("in", "v"))
        assert column.column is None
        rows = plain([("new",) if n == 2 else row for n, row in enumerate(KINDS[kind])])
        assert plain(column.tolist()) == rows
        with pytest.raises(TypeError, match="stack of objects"):
            column.flat()
        copy = pickle.loads(pickle.dumps(data)).get(("in", "v"))
        assert type(copy) is NonTensorStack and plain(copy.tolist()) == rows
        assert type(data.clone().get(("in", "v"))) is NonTensorStack


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("length", [None, 2, 9])
def test_rows_are_padded(length: int | None, left: bool) -> None:
    column = Ragged.from_list(KINDS["pairs"])[torch.tensor([4, 1, 2])]
    padded, mask = column.pad(length, -1.0, left)
    longest = max(map(len, column)) if length is None else length
    for row, values, is_there in zip(column, padded, mask, strict=True):
        row = row[:longest]
        fill = torch.full((longest - len(row), 2), -1.0)
        assert values.equal(torch.cat([fill, row] if left else [row, fill]))
        assert values[is_there].equal(row)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int64])
def test_rows_are_filled_with_what_their_dtype_holds(dtype: torch.dtype) -> None:
    most = torch.iinfo(dtype).max
    column = Ragged.from_list([torch.tensor([1, most], dtype=dtype), torch.tensor([], dtype=dtype)])
    padded, mask = column.pad(3, 7.0)
    assert padded.dtype is dtype and padded.tolist() == [[1, most, 7], [7, 7, 7]] and mask.sum() == 2
    for value in (most + 1, 0.5, float("nan"), *([] if dtype.is_signed else [-100])):
        with pytest.raises(ValueError, match=f"rows of {dtype} cannot be filled with value={value!r}: cast"):
            column.pad(3, value)


def test_nested_tensors_go_in_and_out() -> None:
    rows = KINDS["pairs"]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    column = Ragged.from_nested(jagged)
    assert column.column.values.data_ptr() == jagged.values().data_ptr()
    assert plain(column.to_nested().unbind()) == plain(rows)
    assert Ragged.from_nested(torch.nested.nested_tensor(rows)).tolist() == plain(rows)
    with pytest.raises(TypeError, match="nested tensor holds numbers"):
        Ragged.from_list(["a"]).to_nested()


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "falling offsets": (lambda: Ragged(torch.arange(5), torch.tensor([0, 3, 2])), "row 1 ends before it begins"),
    "offsets past the values": (lambda: Ragged(torch.arange(5), torch.tensor([0, 6])), "from 0 to 6, past the 5"),
    "negative offsets": (lambda: Ragged(torch.arange(5), torch.tensor([-1, 5])), "from -1 to 5"),
    "no offset": (lambda: Ragged(torch.arange(5), torch.tensor([], dtype=torch.int64)), r"int64 \[n \+ 1\]"),
    "floats as offsets": (lambda: Ragged(torch.arange(5), torch.tensor([0.0, 5.0])), "float32"),
    "numbers as text": (lambda: Ragged(torch.arange(5), torch.tensor([0, 5]), "str"), "uint8 .total. for 'str'"),
    "another kind": (lambda: Ragged(torch.arange(5), torch.tensor([0, 5]), "object"), "'tensor', 'str', 'bytes'"),
    "None among bytes": (lambda: Ragged.from_list([b"a", None]), "row 1 is None, and bytes cannot be missing"),
    "None among numbers": (lambda: Ragged.from_list([[1], None]), "row 1 is None, and numbers cannot be missing"),
    "a mixture": (lambda: Ragged.from_list(["a", b"b"]), "row 1 is a bytes, but others are strings"),
    "numbers among text": (lambda: Ragged.from_list(["a", [1]]), "row 1 is a list"),
    "a scalar": (lambda: Ragged.from_list([[1], 2]), "row 1 is a single number"),
    "other shapes": (lambda: Ragged.from_list([torch.ones(2, 3), torch.ones(2, 2)]), r"row 1 has the shape \[2, 2\]"),
    "nothing": (lambda: Ragged.from_list([]), "no rows"),
    "rows of another number": (
        lambda: TensorDict({"v": Ragged.from_list([[1]])}, [2]),
        r"\[2\]\) and .*\[1\]\) for key 'v'",
    ),
    "no JSON": (lambda: Ragged.from_objects([1, {2}]), "JSON cannot represent row 1"),
    "text that is not UTF-8": (lambda: bad_text().tolist(), "values: string 1 is not UTF-8"),
    "half an offset table": (lambda: Ragged(torch.arange(5), torch.tensor([[0, 5]])), r"int64 \[n \+ 1\]"),
    "objects in a folder": (lambda: save([b"a", {1}]), r"\('v',\) holds a bytes, which JSON cannot"),
    "None among bytes in a folder": (lambda: save(["a", b"b", None]), r"\('v',\) holds a bytes, which JSON cannot"),
}


def bad_text() -> Any:
    return Ragged(torch.tensor([97, 255, 254], dtype=torch.uint8), torch.tensor([0, 1, 3]), "str")


def save(rows: list[Any]) -> TensorDict:
    with tempfile.TemporaryDirectory() as folder:
        return TensorDict({"v": NonTensorStack(*rows)}, [len(rows)]).memmap(f"{folder}/data")


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named(what: str) -> None:
    call, message = BAD[what]
    with pytest.raises((TypeError, ValueError, RuntimeError), match=message):
        call()


# -- on disk ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numbers", "pairs"])
@pytest.mark.parametrize("rows", [ROWS, 0])
def test_the_reference_opens_rows_of_numbers(kind: str, rows: int, tmp_path: Path) -> None:
    reference = pytest.importorskip("tensordict").TensorDict
    made(kind)[:rows].memmap(tmp_path / "data")
    assert {"v.memmap", "v.shape.memmap", "v.offsets.memmap"} - set(os.listdir(tmp_path / "data/in")) <= (
        set() if rows else {"v.memmap", "v.shape.memmap"}
    )
    if rows:
        theirs = reference.load_memmap(tmp_path / "data")["in", "v"]
        assert plain(theirs.unbind(0)) == plain(KINDS[kind])
    assert rows_of(TensorDict.load_memmap(tmp_path / "data")) == plain(KINDS[kind][:rows])


@pytest.mark.parametrize("kind", ["numbers", "pairs"])
def test_what_the_reference_writes_becomes_ragged(kind: str, tmp_path: Path) -> None:
    reference = pytest.importorskip("tensordict").TensorDict
    reference({"v": torch.nested.nested_tensor(KINDS[kind])}, [ROWS]).memmap(tmp_path / "data")
    nested = TensorDict.load_memmap(tmp_path / "data")["v"]
    assert Ragged.from_nested(nested).tolist() == plain(KINDS[kind])


@kinds
def test_a_dataset_is_opened_without_being_read_and_travels_by_name(kind: str, tmp_path: Path, spawned: Pool) -> None:
    many = torch.cat([made(kind)] * 300)
    many.memmap(tmp_path / "data")
    data = TensorDict.load_memmap(tmp_path / "data")
    for part in (data, data[5:4000]):
        assert len(pickle.dumps(part)) < 3000
    assert spawned.apply(rows_of, (data[31:40],)) == plain((KINDS[kind] * 2)[31:40])


@kinds
def test_rows_sent_before_their_files_were_replaced_are_refused(kind: str, tmp_path: Path) -> None:
    made(kind).memmap(tmp_path / "data")
    data = TensorDict.load_memmap(tmp_path / "data")
    (tmp_path / "sent").write_bytes(pickle.dumps(data))
    made(kind)[torch.arange(ROWS).flip(0)].memmap(tmp_path / "data")
    assert rows_of(pickle.loads(pickle.dumps(data))) == plain(KINDS[kind])  # of its own files, by value
    script = f"import pickle; pickle.load(open({str(tmp_path / 'sent')!r}, 'rb'))"
    run = interpreters.run(["-c", script])
    assert "DatasetError" in run.stderr and "has been replaced" in run.stderr


@pytest.mark.parametrize("file", ["values", "offsets"])
def test_one_file_that_was_replaced_is_enough(file: str, tmp_path: Path) -> None:
    made("numbers").memmap(tmp_path / "data")
    data = TensorDict.load_memmap(tmp_path / "data")
    sent, path = pickle.dumps(data), tmp_path / "data" / files_of("numbers")[file]
    shutil.copy(path, tmp_path / "copy")
    os.replace(tmp_path / "copy", path)
    with pytest.raises(DatasetError, match="has been replaced"):
        pickle.loads(sent)


def test_saving_again_writes_no_file_that_is_in_place(tmp_path: Path) -> None:
    made("numbers").memmap(tmp_path / "data")
    data = TensorDict.load_memmap(tmp_path / "data")
    before = {name: os.stat(tmp_path / "data/in" / name).st_ino for name in os.listdir(tmp_path / "data/in")}
    data.memmap_(tmp_path / "data")
    after = {name: os.stat(tmp_path / "data/in" / name).st_ino for name in os.listdir(tmp_path / "data/in")}
    assert {name for name in before if before[name] != after[name]} <= {"meta.json", "v.shape.memmap"}
    assert rows_of(TensorDict.load_memmap(tmp_path / "data")) == plain(KINDS["numbers"])


def files_of(kind: str) -> dict[str, str]:
    if kind in ("numbers", "pairs"):
        return {"values": "in/v.memmap", "offsets": "in/v.offsets.memmap", "meta": "in/meta.json"}
    return {"values": "in/v/values.memmap", "offsets": "in/v/offsets.memmap", "meta": "in/v/meta.json"}


@kinds
@pytest.mark.parametrize("file", ["values", "offsets"])
@pytest.mark.parametrize("damage", ["cut", "gone", "link", "longer"])
def test_damaged_files_are_named(kind: str, file: str, damage: str, tmp_path: Path) -> None:
    made(kind).memmap(tmp_path / "data")
    path = tmp_path / "data" / files_of(kind)[file]
    if damage == "cut":
        os.truncate(path, path.stat().st_size - 1)
    elif damage == "longer":
        os.truncate(path, path.stat().st_size + 8)
    else:
        os.rename(path, tmp_path / "elsewhere")
        if damage == "link":
            path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DatasetError, match=re.escape(files_of(kind)[file])):
        TensorDict.load_memmap(tmp_path / "data")


@kinds
@pytest.mark.parametrize("offset", [-1, 1 << 40, 0])
def test_damaged_offsets_are_named_by_row(kind: str, offset: int, tmp_path: Path) -> None:
    made(kind).memmap(tmp_path / "data")
    path = tmp_path / "data" / files_of(kind)["offsets"]
    with path.open("r+b") as file:
        file.seek(8 * 5)
        file.write(offset.to_bytes(8, "little", signed=True))
    data = TensorDict.load_memmap(tmp_path / "data")
    assert plain([data[1]["in", "v"]]) == plain([KINDS[kind][1]])
    for read in (lambda: rows_of(data), lambda: data[4]["in", "v"], lambda: data.get(("in", "v")).flat()):
        with pytest.raises(DatasetError, match=rf"{files_of(kind)['offsets']}.*row 4 has the values"):
            read()


@pytest.mark.parametrize(
    "change",
    [
        {"values": None},
        {"values": [-1]},
        {"values": [1 << 60]},
        {"values": [3, 3]},
        {"layout": "other"},
        {"is_nested": False},
        {"dtype": "torch.int7"},
        {"shape": [ROWS - 1, 1]},
        {"shape": [ROWS]},
    ],
    ids=str,
)
def test_hostile_metadata_of_numbers_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    made("numbers").memmap(tmp_path / "data")
    path = tmp_path / "data/in/meta.json"
    meta = json.loads(path.read_text())
    meta["v"].update(change)
    path.write_text(json.dumps(meta))
    with pytest.raises(DatasetError):
        TensorDict.load_memmap(tmp_path / "data")


@kinds
def test_checksums_cover_every_file(kind: str, tmp_path: Path) -> None:
    made(kind).memmap(tmp_path / "data")
    store(tmp_path / "data")
    assert not verify(tmp_path / "data").problems
    for name in ("values", "offsets"):
        path = tmp_path / "data" / files_of(kind)[name]
        old = path.read_bytes()
        path.write_bytes(b"\x7f" + old[1:])
        assert [problem.file for problem in verify(tmp_path / "data").problems] == [files_of(kind)[name]]
        path.write_bytes(old)


@pytest.mark.parametrize("kind", ["text", "text with None", "json", "bytes"])
@pytest.mark.parametrize("name", ["data", "data.tdz"])
def test_few_rows_stay_ragged(kind: str, name: str, tmp_path: Path) -> None:
    reference = pytest.importorskip("tensordict").TensorDict
    for allow_pickle in (False, True):
        place = tmp_path / f"{allow_pickle}{name}"
        with tuning.use(text_rows=ROWS + 1):
            made(kind).memmap(place, allow_pickle=allow_pickle)
        assert rows_of(TensorDict.load_memmap(place)) == KINDS[kind]
        if kind != "bytes" and name == "data":
            assert list(reference.load_memmap(place)["in", "v"]) == KINDS[kind]


# -- consolidated ----------------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("to_file", [False, True])
def test_rows_lie_in_the_consolidated_storage(kind: str, choice: str, to_file: bool, tmp_path: Path) -> None:
    data = made(kind)[CHOICES[choice]]
    data.arrow_types = {"x": "date64[ms]"}
    found = data.consolidate(tmp_path / "c" if to_file else None)
    loaded = TensorDict.from_consolidated(tmp_path / "c") if to_file else pickle.loads(pickle.dumps(found))
    for each in (found, loaded):
        assert rows_of(each) == rows_of(data) and each.is_consolidated() and each.arrow_types == {"x": "date64[ms]"}
        column, storage = each.get(("in", "v")).column, each["x"].untyped_storage()
        for part in (column.values, column.offsets):
            assert part.untyped_storage().data_ptr() == storage.data_ptr() or not len(each)
        assert each.consolidate() is each
        assert not each.unlock_().set("y", each["x"]).is_consolidated()


@pytest.mark.parametrize("kind", ["pairs", "text with None"])
@pytest.mark.parametrize("to_file", [False, True])
def test_consolidated_rows_travel_as_one_region(kind: str, to_file: bool, tmp_path: Path, spawned: Pool) -> None:
    many = torch.cat([made(kind)] * 300)
    data = many.consolidate(tmp_path / "c" if to_file else None, share_memory=not to_file)
    assert len(ForkingPickler.dumps(data)) < 3000
    for part in (data, data[31:40]):
        assert spawned.apply(rows_of, (part,)) == rows_of(part)


@kinds
@pytest.mark.parametrize("text_rows", [1, ROWS + 1])
@pytest.mark.parametrize("rows", [0, ROWS])
def test_the_reference_opens_consolidated_rows(kind: str, text_rows: int, rows: int, tmp_path: Path) -> None:
    """As a nested tensor; few strings and JSON values as what they are."""
    reference = pytest.importorskip("tensordict").TensorDict
    data = made(kind)[:rows]
    data.arrow_types = {"x": "date64[ms]"}
    with tuning.use(text_rows=text_rows):
        data.consolidate(tmp_path / "c")
    loaded = TensorDict.from_consolidated(tmp_path / "c")
    assert rows_of(loaded) == plain(KINDS[kind][:rows]) and loaded.arrow_types == data.arrow_types
    theirs = reference.from_consolidated(tmp_path / "c")
    assert theirs["x"].tolist() == list(range(rows))
    if text_rows > rows and kind in ("text", "text with None", "json"):
        assert list(theirs["in", "v"]) == KINDS[kind][:rows]
    else:
        values, offsets = data.get(("in", "v")).flat()
        assert torch.equal(theirs["in", "v"].values(), values) and torch.equal(theirs["in", "v"].offsets(), offsets)


LISTED = {
    "cls": "NonTensorStack",
    "leaves": {},
    "non_tensors": {"0": [1, [], None]},
    "cls_metadata": {"stack_dim": 0, "stack_dim_name": None, "is_locked": False},
}
HOSTILE: dict[str, Callable[[Any, Any], Any]] = {
    "kind": lambda level, told: told.update(ragged=[[["v"], "object"]]),
    "no pairs": lambda level, told: told.update(ragged=["v"]),
    "no list": lambda level, told: told.update(ragged=3),
    "no path": lambda level, told: told.update(ragged=[[[], "tensor"]]),
    "nothing": lambda level, told: told.clear(),
    "text of numbers": lambda level, told: told.update(ragged=[[["v"], "str"]]),
    "types": lambda level, told: told.update(arrow_types=[[["v"], 3]]),
    "short offsets": lambda level, told: level["leaves"]["<NJT_OFFSETS>v"].__setitem__(1, [ROWS]),
    "narrow offsets": lambda level, told: level["leaves"]["<NJT_OFFSETS>v"].__setitem__(0, "torch.int32"),
    "another dimension": lambda level, told: level["leaves"]["<NJT_OFFSETS>v"].__setitem__(5, 2),
    "long values": lambda level, told: level["leaves"]["<NJT_VALUES>v"].__setitem__(1, [1 << 40, 2]),
    "a list of numbers": lambda level, told: (
        level.update(leaves={}, v=LISTED),
        level["cls_metadata"].update(batch_size=[1]),
        told.update(ragged=[[["v"], "str"]]),
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_metadata_of_consolidated_rows_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "c"
    TensorDict({"v": as_column("pairs")}, [ROWS]).consolidate(path)
    content = path.read_bytes()
    about = content[-8 - int.from_bytes(content[-8:], "little") : -8]
    before = content[: -8 - len(about)]
    magic = before[-8:]
    told = before[-16 - int.from_bytes(before[-16:-8], "little") : -16]
    storage, level, more = before[: -16 - len(told)], json.loads(about), json.loads(told)

    def write(*parts: Any) -> None:
        told, about = (json.dumps(part).encode() for part in parts)
        sizes = [len(part).to_bytes(8, "little") for part in (told, about)]
        path.write_bytes(storage + told + sizes[0] + magic + about + sizes[1])

    write(more, level)
    assert rows_of(TensorDict({"in": TensorDict.from_consolidated(path)}, [ROWS])) == plain(KINDS["pairs"])
    HOSTILE[name](level, more)
    write(more, level)
    with pytest.raises(DatasetError, match=re.escape(str(path))):
        TensorDict.from_consolidated(path)
    path.write_bytes(storage + (1 << 40).to_bytes(8, "little") + magic + about + len(about).to_bytes(8, "little"))
    with pytest.raises(DatasetError, match="impossible length"):
        TensorDict.from_consolidated(path)


@kinds
@pytest.mark.parametrize("offset", [-1, 1 << 40, 0])
def test_damaged_offsets_of_a_consolidated_file_are_named_by_row(kind: str, offset: int, tmp_path: Path) -> None:
    path = tmp_path / "c"
    made(kind).consolidate(path)
    content = bytearray(path.read_bytes())
    level = json.loads(content[-8 - int.from_bytes(content[-8:], "little") : -8])["in"]
    start = level["leaves"]["<NJT_OFFSETS>v"][2] + 8 * 5
    content[start : start + 8] = offset.to_bytes(8, "little", signed=True)
    path.write_bytes(content)
    data = TensorDict.from_consolidated(path)
    assert plain([data[1]["in", "v"]]) == plain([KINDS[kind][1]])
    for read in (lambda: rows_of(data), lambda: data[4]["in", "v"], lambda: data.get(("in", "v")).flat()):
        with pytest.raises(DatasetError, match=rf"{path}.*row 4 has the values"):
            read()


# -- nested tensors as leaves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index",
    [
        slice(1, None),
        slice(None, None, 2),
        slice(0, 0),
        torch.tensor([2, 0]),
        torch.tensor([True, False, True]),
        [1, 2],
    ],
    ids=str,
)
def test_jagged_leaves_are_sliced_as_by_the_reference(index: Any) -> None:
    reference = pytest.importorskip("tensordict").TensorDict
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3), torch.ones(1)], layout=torch.jagged)
    mine, theirs = (cls({"v": jagged, "x": torch.arange(3)}, [3])[index] for cls in (TensorDict, reference))
    assert mine.batch_size == theirs.batch_size
    assert mine["v"].layout is theirs["v"].layout
    assert plain(mine["v"].unbind()) == plain(theirs["v"].unbind())


def test_jagged_leaves_are_split_and_keep_gradients() -> None:
    values = torch.arange(6.0, requires_grad=True)
    jagged = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 5, 6]))
    parts = TensorDict({"v": jagged}, [3]).split(2)
    assert [plain(part["v"].unbind()) for part in parts] == [[[0, 1], [2, 3, 4]], [[5]]]
    parts[1]["v"].values().sum().backward()
    assert values.grad.tolist() == [0, 0, 0, 0, 0, 1]


def test_other_objects_go_into_rows_one_after_the_other() -> None:
    data = TensorDict({"w": Ragged.from_list(["ant", "bee", "cat", "dog"])}, [4])
    for row in (0, 1):
        data[row] = TensorDict({"w": NonTensorData(row)}, [])
    data[2:] = TensorDict({"w": Ragged.from_list(["x", "y"])}, [2])
    assert data["w"] == [0, 1, "x", "y"]


def test_some_rows_in_shared_memory_stay_shared_in_another_process() -> None:
    data = TensorDict({"v": Ragged.from_list([[1, 2], [3], [4, 5]])}, [3]).share_memory_()
    for part in (data[1:], data[[2, 0]]):
        again = pickle.loads(ForkingPickler.dumps(part))
        again.get("v")[0].zero_()
    assert data["v"].tolist() == [[1, 2], [0], [4, 5]]  # selected rows are a copy
