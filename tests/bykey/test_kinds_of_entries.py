"""What operations by key say of entries that are no numbers, however the rows are stored."""

from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap import reducers as r
from tensordict_lite import NonTensorData, NonTensorStack, Ragged, TensorDict, lazy_stack, tensorclass
from tests.cells.kinds import rows_of

GROUPS = [1, 0, 1, 2, 0]
LISTS = [torch.arange(n) for n in (3, 3, 5, 1, 0)]
ENTRIES: dict[str, list[Any]] = {
    "lists": LISTS,
    "text": ["b", "", "a", "b", "é"],
    "bytes": [b"b", b"", b"a", b"b", b"\xff"],
    "objects": [["x"], ["x", "y"], [], ["x"], ["z", None]],
}
FORMS = ["columns", "objects", "files", "lazy stack", "shards", "tensorclass"]


@tensorclass
class Rows:
    v: Any
    g: torch.Tensor


def of_form(form: str, name: str, folder: Path) -> Any:
    values, groups = ENTRIES[name], torch.tensor(GROUPS)
    if form == "lazy stack":
        wrapped = [value if name == "lists" else NonTensorData(value) for value in values]
        return lazy_stack([TensorDict({"v": value, "g": group}) for value, group in zip(wrapped, groups, strict=True)])
    column = Ragged.from_objects(values) if name == "objects" else Ragged.from_list(values)
    if form == "objects" and name != "lists":
        column = NonTensorStack(*values)
    if form == "tensorclass":
        return Rows(v=column, g=groups, batch_size=[len(values)])
    data = TensorDict({"v": column, "g": groups}, [len(values)])
    if form == "files":
        return data.memmap(folder / "data")
    if form == "shards":
        for number, part in enumerate((data[:2], data[2:])):
            part.memmap(folder / str(number))
        return tdmap.open([folder / "0", folder / "1"])
    return data


@pytest.mark.parametrize("chunksize", [1, 3, None])
@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("form", FORMS)
def test_a_reducer_of_groups_says_that_an_entry_is_no_tensor(
    form: str, name: str, chunksize: int | None, tmp_path: Path
) -> None:
    groups = tdmap.group_by(of_form(form, name, tmp_path), "g")
    what = "rows of different lengths" if name == "lists" else "Python objects"
    for reducer in (r.Sum("v"), r.Max("v"), r.Unique("v"), r.Checksum("v"), r.Quantile("v"), r.TopK("v")):
        with pytest.raises(
            TypeError, match=rf"the reducer 'a' reads 'v', which holds {what}\. .* use map_groups\(fn\)"
        ):
            groups.reduce({"a": reducer}, num_workers=0, chunksize=chunksize)
    with pytest.raises(TypeError, match="the reducer 'a' reads whole rows, and not all entries are tensors"):
        groups.reduce({"a": r.Checksum()}, num_workers=0, chunksize=chunksize)
    counts = groups.reduce({"n": r.Count()}, num_workers=0, chunksize=chunksize)
    assert counts["g"].tolist() == [0, 1, 2] and counts["n"].tolist() == [2, 2, 1]
    last = groups.reduce({"v": r.Last("v")}, num_workers=0, chunksize=chunksize).get("v").tolist()
    assert last == [value.tolist() if name == "lists" else value for value in (ENTRIES[name][row] for row in (4, 2, 3))]


@pytest.mark.parametrize("chunksize", [1, 3, None])
@pytest.mark.parametrize("form", FORMS)
def test_lists_of_numbers_are_no_keys(form: str, chunksize: int | None, tmp_path: Path) -> None:
    data = of_form(form, "lists", tmp_path)
    for operation in (tdmap.sort, tdmap.unique, tdmap.value_counts, tdmap.drop_duplicates):
        with pytest.raises(TypeError, match="the key 'v' holds rows of numbers of different lengths"):
            operation(data, "v", num_workers=0, chunksize=chunksize)
    with pytest.raises(TypeError, match="the key 'v' holds rows of numbers of different lengths"):
        tdmap.join(data, data, "v", "semi", num_workers=0, chunksize=chunksize)


class Names(r.Reducer[int]):
    """How many entries a row has."""

    def init(self) -> int:
        return 0

    def update(self, state: int, chunk: Any, start: int = 0) -> int:
        return max(state, len(list(chunk.keys(True, True))))

    def merge(self, a: int, b: int) -> int:
        return max(a, b)


@pytest.mark.parametrize("form", ["columns", "lazy stack"])
def test_reducers_of_whole_rows_get_the_rows_of_the_dataset(form: str) -> None:
    data = TensorDict({"g": torch.tensor(GROUPS), "n": {"x": torch.arange(5.0)}}, [5])
    rows = data if form == "columns" else lazy_stack(list(data.unbind(0)))

    def as_text(chunk: Any) -> list[str]:
        return [str(group) for group in chunk["g"].tolist()]

    parts = {"sum": r.Checksum(), "entries": Names()}
    wanted = tdmap.group_by(data, "g").reduce(parts, num_workers=0)
    assert wanted["entries"].tolist() == [2, 2, 2]
    for key in ("g", as_text):
        found = tdmap.group_by(rows, key).reduce(parts, num_workers=0, chunksize=2)
        assert torch.equal(found["sum"], wanted["sum"]) and torch.equal(found["entries"], wanted["entries"])


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
@pytest.mark.parametrize("name", ["lists", "text", "objects"])
def test_a_join_copies_entries_of_any_kind(name: str, how: str, tmp_path: Path) -> None:
    found = {
        form: tdmap.join(of_form(form, name, tmp_path), of_form(form, name, tmp_path)[1:4], "g", how, num_workers=0)
        for form in ("columns", "lazy stack", "tensorclass")
    }
    wanted = found["columns"]
    for form, joined in found.items():
        assert joined["g"].tolist() == wanted["g"].tolist(), form
        for row in range(len(wanted)):
            ours, theirs = joined[row].get("v_right"), wanted[row].get("v_right")
            assert torch.equal(ours, theirs) if isinstance(theirs, torch.Tensor) else ours == theirs, form


def keys_of(rows: Any) -> list[Any]:
    return [row["v"] for row in rows_of(rows)]


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer", "semi", "anti"])
@pytest.mark.parametrize("form", ["columns", "objects", "lazy stack", "tensorclass"])
@pytest.mark.parametrize("name", ["text", "bytes"])
def test_a_side_without_rows_has_keys_of_the_kind_of_the_other(name: str, form: str, how: str, tmp_path: Path) -> None:
    data = of_form(form, name, tmp_path)
    joined = tdmap.join(data, data[:0], "v", how, num_workers=0)
    assert keys_of(joined) == (ENTRIES[name] if how in ("left", "outer", "anti") else [])
    joined = tdmap.join(data[:0], data, "v", how, num_workers=0)
    assert sorted(keys_of(joined)) == (sorted(ENTRIES[name]) if how in ("right", "outer") else [])
