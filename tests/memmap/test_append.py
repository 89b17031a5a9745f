"""`append_memmap`, beside the reference's."""

from pathlib import Path
from typing import Any

import pytest
import tensordict
import torch

import tensordict_lite
from tensordict_lite import Ragged
from tensordict_lite.memmap import tuning
from tensordict_lite.memmap import writer as writer_module
from tensordict_lite.memmap.disk.contents import others_in
from tests.processes import kill_at

ROWS = {
    "rows": "data",
    "no rows": "data[:0]",
    "one row": "data[0]",
    "a tensorclass": "C(torch.arange(2), batch_size=[2])",
    "a missing entry": "data.select('a')",
    "an entry more": "data.clone().set('z', torch.zeros(2))",
    "another dtype": "data.double()",
    "another shape": "data.clone().set('a', torch.zeros(2, 2))",
    "another object": "data.clone().set('o', 'y')",
    "no collection": "{'a': torch.arange(2)}",
}


def answer(library: Any, rows: str, folder: Path) -> Any:
    data = library.TensorDict({"a": torch.arange(2), "n": {"b": torch.zeros(2)}, "o": "x"}, [2])
    if rows.startswith("C("):
        data = library.tensorclass(type("C", (), {"__annotations__": {"x": torch.Tensor}}))(
            torch.arange(2), batch_size=[2]
        )
        rows = "data"
    data.memmap(folder)
    try:
        assert library.append_memmap(folder, eval(rows, {"data": data, "torch": torch})) is None
    except Exception as error:
        return type(error)
    found = library.load_memmap(folder)
    return found.batch_size, [row.to_dict() for row in found.unbind(0)]


@pytest.mark.parametrize("rows", ROWS)
def test_rows_are_appended_as_by_the_reference(rows: str, tmp_path: Path) -> None:
    found, expected = (answer(lib, ROWS[rows], tmp_path / lib.__name__) for lib in (tensordict_lite, tensordict))
    assert found == expected


def test_rows_are_appended_to_datasets_alone(tmp_path: Path) -> None:
    rows = tensordict_lite.TensorDict({"a": torch.arange(2)}, [2])
    with pytest.raises(ValueError, match=r"append_memmap\('.*missing'\) takes the folder of a dataset"):
        tensordict_lite.append_memmap(tmp_path / "missing", rows)
    with pytest.raises(FileNotFoundError, match="no dataset to append rows to"):
        tensordict_lite.append_memmap(tmp_path, rows)


KINDS: dict[str, Any] = {
    "text": lambda i: None if i % 5 == 3 else "\u00e9" * (i % 3),
    "bytes": lambda i: bytes(i % 3),
    "json": lambda i: [{"n": i, "more": [None] * (i % 3)}],
    "numbers": lambda i: torch.full((i % 3,), i, dtype=torch.int16),
    "pairs": lambda i: torch.full((i % 3, 2), float(i)),
}


def ragged_rows(kind: str, first: int, count: int) -> tensordict_lite.TensorDict:
    make = Ragged.from_objects if kind == "json" else Ragged.from_list
    made = [KINDS[kind](i) for i in (0, *range(first, first + count))]  # the first one tells the kind
    ids = torch.arange(first, first + count)
    return tensordict_lite.TensorDict({"x": ids, "in": {"v": make(made)[1:]}}, [count])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("saved", [0, 4, 40])
@pytest.mark.parametrize("text_rows", [1, 20])
def test_ragged_rows_are_appended(kind: str, saved: int, text_rows: int, tmp_path: Path) -> None:
    with tuning.use(text_rows=text_rows):
        ragged_rows(kind, 0, saved).memmap(tmp_path)
    early = tensordict_lite.load_memmap(tmp_path)
    tensordict_lite.append_memmap(tmp_path, ragged_rows(kind, saved, 7))
    batch = ragged_rows(kind, saved + 7, 3)
    if kind in ("text", "bytes", "json"):
        batch["in", "v"] = batch.get(("in", "v")).tolist()  # as plain objects
    with tensordict_lite.DatasetWriter(tmp_path) as writer:
        writer.append(batch)
        writer.append(ragged_rows(kind, saved + 10, 1)[0])
    for found, count in ((early, saved), (tensordict_lite.load_memmap(tmp_path), saved + 11)):
        column, expected = found.get(("in", "v")), ragged_rows(kind, 0, count).get(("in", "v"))
        assert (column.kind, column.dtype, column.row_shape) == (expected.kind, expected.dtype, expected.row_shape)
        assert column.tolist() == expected.tolist() and found["x"].tolist() == list(range(count))
    done = tensordict_lite.DatasetWriter(tmp_path).finalize()
    assert done.get(("in", "v")).tolist() == expected.tolist()
    if kind in ("numbers", "pairs"):
        theirs = tensordict.TensorDict.load_memmap(tmp_path)["in", "v"]
        assert [row.tolist() for row in theirs.unbind(0)] == expected.tolist()
    done.memmap(tmp_path)
    assert tensordict_lite.load_memmap(tmp_path).get(("in", "v")).tolist() == expected.tolist()


@pytest.mark.parametrize("kind", ["text", "json"])
def test_few_strings_survive_a_kill_while_they_get_files(kind: str, tmp_path: Path) -> None:
    steps = [(writer_module, "_replace_json"), (writer_module, "new_file")]
    expected, killed = ragged_rows(kind, 0, 7).get(("in", "v")).tolist(), True
    for number in range(1, 20):
        folder = tmp_path / f"{number}"
        ragged_rows(kind, 0, 4).memmap(folder)
        killed = kill_at(
            number, lambda folder=folder: tensordict_lite.append_memmap(folder, ragged_rows(kind, 4, 3)), steps
        )
        found = tensordict_lite.load_memmap(folder)
        assert len(found) in (4, 7) and found.get(("in", "v")).tolist() == expected[: len(found)]
        if len(found) == 4:
            tensordict_lite.append_memmap(folder, ragged_rows(kind, 4, 3))
        assert tensordict_lite.load_memmap(folder).get(("in", "v")).tolist() == expected
        assert not others_in(str(folder))
        if not killed:
            break
    assert not killed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [0, 3])
def test_rows_without_values_are_continued_and_finalized(kind: str, rows: int, tmp_path: Path) -> None:
    empty = ragged_rows(kind, 0, 1)[torch.zeros(rows, dtype=torch.int64)]
    empty.memmap(tmp_path)
    writer = tensordict_lite.DatasetWriter(tmp_path)
    assert writer.flush(durable=True) == rows
    found = writer.finalize()
    assert found.get(("in", "v")).tolist() == empty.get(("in", "v")).tolist()
    with tensordict_lite.DatasetWriter(tmp_path) as writer:
        writer.append(ragged_rows(kind, 1, 2))
        assert writer.flush(durable=True) == rows + 2
    expected = torch.cat([empty, ragged_rows(kind, 1, 2)]).get(("in", "v")).tolist()
    assert tensordict_lite.load_memmap(tmp_path).get(("in", "v")).tolist() == expected
