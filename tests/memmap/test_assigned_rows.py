"""Assigning rows of different lengths to mapped collections: what memory shows, and what the files hold then."""

import pytest
import torch

from tensordict_lite import Ragged, TensorDict
from tensordict_lite.errors import InplaceWriteError

ROWS = 60

KINDS = {
    "int64": (Ragged.from_list([[n] * (n % 4) for n in range(ROWS)]), lambda row: [-1] * (row % 4)),
    "float32 [n, 2]": (
        Ragged.from_list([torch.full((n % 3, 2), float(n)) for n in range(ROWS)]),
        lambda row: torch.full((row % 3, 2), -1.0),
    ),
    # So long that they are not saved as one JSON.
    "str": (Ragged.from_list([f"row {n} " + "." * 70_000 for n in range(ROWS)]), lambda row: "shorter now"),
    "bytes": (Ragged.from_list([b"row"] * ROWS), lambda row: b"other"),
    "json": (Ragged.from_objects([{"n": "." * 70_000} for n in range(ROWS)]), lambda row: {"other": row}),
}
NUMBERS = ("int64", "float32 [n, 2]")
MAPPED = ("memmap", "memmap_", "load_memmap", "share_memory_", "no folder")

INDICES = {
    "slice": slice(1, 4),
    "step": slice(2, None, 15),
    "mask": torch.arange(ROWS) % 10 == 1,
    "tensor": torch.tensor([4, 2, -1]),
    "list": [4, 2, -1],
    "all": slice(None),
}


def rows_of(kind, rows):
    make = KINDS[kind][1]
    values = [make(row) for row in rows]
    return Ragged.from_objects(values) if kind == "json" else Ragged.from_list(values)


def mapped(kind, how, folder):
    data = TensorDict({"a": {"k": KINDS[kind][0].clone()}, "x": torch.arange(ROWS)}, [ROWS])
    match how:
        case "memmap":
            return data.memmap(folder)
        case "memmap_":
            return data.memmap_(folder)
        case "load_memmap":
            data.memmap(folder)
            return TensorDict.load_memmap(folder)
        case "share_memory_":
            return data.share_memory_()
        case _:
            return data.memmap()


def listed(rows):
    return [row.tolist() if isinstance(row, torch.Tensor) else row for row in rows.tolist()]


def differing(rows, want):
    return [number for number, (row, other) in enumerate(zip(listed(rows), want, strict=True)) if row != other]


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("how", MAPPED)
@pytest.mark.parametrize("kind", KINDS)
def test_assigned_rows_are_in_memory_and_in_the_files(tmp_path, kind, how, index):
    data = mapped(kind, how, tmp_path / "d")
    chosen = torch.arange(ROWS)[INDICES[index]].tolist()
    new = rows_of(kind, chosen)
    data[INDICES[index]] = TensorDict({"a": {"k": new}, "x": torch.tensor(chosen)}, [len(chosen)])

    want = listed(KINDS[kind][0])
    for row, value in zip(chosen, listed(new), strict=True):
        want[row] = value
    assert not differing(data["a"].get("k"), want)
    if (tmp_path / "d").exists():
        # Non-tensor entries of a loaded collection change in memory alone, as in tensordict.
        is_saved = kind in NUMBERS or how != "load_memmap"
        saved = TensorDict.load_memmap(tmp_path / "d")["a"].get("k")
        assert not differing(saved, want if is_saved else listed(KINDS[kind][0]))


@pytest.mark.parametrize("write", ["update_", "set_", "row", "list of rows"])
@pytest.mark.parametrize("how", MAPPED)
@pytest.mark.parametrize("kind", NUMBERS)
def test_every_way_of_writing_numbers_reaches_their_memory(tmp_path, kind, how, write):
    data = mapped(kind, how, tmp_path / "d")["a"]
    values, _ = data.get("k").flat()
    new = rows_of(kind, range(ROWS))
    match write:
        case "update_":
            data.get("k").update_(new)
        case "set_":
            data.set_("k", new)
        case "row":
            for row in (1, 5, -1):
                data[row] = {"k": new[row]}
        case "list of rows":
            data.get("k")[:] = new.tolist()
    rows = [1, 5, ROWS - 1] if write == "row" else range(ROWS)
    now, want = listed(data.get("k")), listed(new)
    assert [now[row] for row in rows] == [want[row] for row in rows]
    assert data.get("k").flat()[0].data_ptr() == values.data_ptr()


@pytest.mark.parametrize("how", MAPPED)
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(Ragged.from_list([[1], [1]]), id="other lengths"),
        pytest.param(Ragged.from_list([[[1, 1]], [[1, 1]]]), id="other shape"),
        pytest.param(Ragged.from_list(["a", "b"]), id="text"),
        pytest.param(["a", None], id="objects"),
    ],
)
def test_numbers_that_do_not_fit_their_memory_are_refused(tmp_path, how, value):
    data = mapped("int64", how, tmp_path / "d")["a"]
    with pytest.raises(InplaceWriteError, match=r"in a file or in shared memory"):
        data.get("k")[6:8] = value
    assert not differing(data.get("k"), listed(KINDS["int64"][0]))
