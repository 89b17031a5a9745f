"""Lazy stacks whose members differ in length: operations that write rows make columns of ragged rows of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap.errors import OutputMismatch
from tensordict_lite import LazyStackedTensorDict, NonTensorStack, TensorDict, is_non_tensor, lazy_stack, tensorclass

ROWS = 13


@tensorclass
class Step:
    obs: torch.Tensor
    key: torch.Tensor


def size(row: int) -> int:
    return row * 5 % 4


def words(row: int) -> Any:
    stack = NonTensorStack(*(f"w{row}.{step}" for step in range(size(row) + 1)))
    return stack[: size(row)]


def inner(row: int) -> Any:
    return lazy_stack([TensorDict({"q": torch.tensor([row, step])}, []) for step in range(size(row) + 1)])


MEMBERS: dict[str, Callable[[int], Any]] = {
    "vectors": lambda row: TensorDict({"obs": torch.arange(size(row)) + row}, []),
    "matrices": lambda row: TensorDict({"obs": torch.full((size(row), 2, 3), row, dtype=torch.float16)}, []),
    "nested": lambda row: TensorDict({"next": {"obs": torch.full((size(row),), row > 3)}, "mean": torch.ones(3)}, []),
    "batches": lambda row: TensorDict({"obs": torch.ones(size(row), 2) * row, "name": f"n{row}"}, [size(row)]),
    "words": lambda row: TensorDict({"obs": torch.ones(size(row)), "words": words(row)}, [size(row)]),
    "tensorclass": lambda row: Step(obs=torch.arange(size(row)), key=torch.tensor(row), batch_size=[]),
    "stacks": inner,
}


def stack_of(kind: str) -> Any:
    members = [MEMBERS[kind](row) for row in range(ROWS)]
    for row, member in enumerate(members):
        if not isinstance(member, Step):
            member["key"] = torch.tensor(row).expand(member.batch_size)
    return lazy_stack(members)


def plain(row: Any) -> Any:
    """A row, of a stack or of columns, as lists."""
    if is_non_tensor(row):
        values = row.tolist()
        return row.data if hasattr(row, "data") and not isinstance(row, NonTensorStack) else list(values)
    if hasattr(row, "keys"):
        return {key: plain(row.get(key)) for key in sorted(row.keys())}
    return row.tolist() if isinstance(row, torch.Tensor) else row


def rows_of(data: Any) -> list[Any]:
    return [plain(data[row]) for row in range(len(data))]


@pytest.mark.parametrize("within", [False, True], ids=["stack", "entry"])
@pytest.mark.parametrize("into", ["memory", "folder", "shards", "resumed"])
@pytest.mark.parametrize("kind", MEMBERS)
def test_rows_of_any_members_are_shuffled(kind: str, into: str, within: bool, tmp_path: Path) -> None:
    data = stack_of(kind)
    if within:
        data = TensorDict({"id": torch.arange(ROWS), "in": data}, [ROWS])
    options: dict[str, Any] = {} if into == "memory" else {"out": tmp_path / "out"}
    options |= {"shards": {"rows_per_shard": 5}, "resumed": {"resume": True}}.get(into, {})
    found = tdmap.shuffle(data, 1, num_workers=0, **options)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1)).tolist()
    rows = rows_of(data)
    assert rows_of(found) == [rows[row] for row in order]
    if into == "folder":
        assert rows_of(TensorDict.load_memmap(tmp_path / "out")) == rows_of(found)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_operations_take_rows_of_different_lengths(num_workers: int) -> None:
    data = stack_of("vectors")
    rows, workers = rows_of(data), {"num_workers": num_workers}
    odd = tdmap.filter(data, lambda chunk: chunk["key"] % 2 == 1, **workers)
    assert rows_of(odd) == rows[1::2]
    assert rows_of(tdmap.filter(data, lambda row: bool(len(row["obs"])), chunksize=0, **workers)) == [
        row for row in rows if row["obs"]
    ]
    assert rows_of(tdmap.filter(data, tdmap.col("key") > 9, **workers)) == rows[10:]
    assert rows_of(tdmap.sort(data, "key", descending=True, **workers)) == rows[::-1]
    assert rows_of(tdmap.top_k(data, "key", 3, **workers)) == rows[:-4:-1]
    assert sorted(rows_of(tdmap.sample(data, ROWS, seed=2, **workers)), key=lambda row: row["key"]) == rows
    assert rows_of(tdmap.drop_duplicates(data, "key", **workers)) == rows
    train, test = tdmap.train_test_split(data, 4, seed=0, **workers)
    assert sorted(rows_of(train) + rows_of(test), key=lambda row: row["key"]) == rows
    other = TensorDict({"key": torch.tensor([3, 50]), "n": torch.tensor([1, 2])}, [2])
    assert rows_of(tdmap.join(data, other, "key", **workers)) == [{**rows[3], "n": 1}]
    assert rows_of(tdmap.join(other, data, "key", "left", **workers)["obs"]) == [[], rows[3]["obs"]][::-1]
    assert rows_of(tdmap.join(data, other, "key", "semi", **workers)) == [rows[3]]
    assert tdmap.describe(data, **workers)["obs (length)"].max == max(map(size, range(ROWS)))


def test_pipelines_pad_pack_and_sort_rows_by_length() -> None:
    data = stack_of("vectors")
    rows = rows_of(data)
    batches = list(tdmap.Pipeline(data).batch(5).pad("obs", 3).iter(num_workers=0))
    assert [row.tolist() for batch in batches for row in batch["obs"]] == [(row["obs"] + [0] * 3)[:3] for row in rows]
    assert [key for batch in batches for key in batch["key"].tolist()] == [row["key"] for row in rows]
    by_length = tdmap.Pipeline(data).bucket("obs", 3).iter(num_workers=0)
    lengths = [{len(row["obs"]) for row in batch} for batch in by_length]
    assert all(max(found) - min(found) <= 1 for found in lengths)
    packed = list(tdmap.Pipeline(data).pack("obs", 4).iter(num_workers=0))
    elements = [element for row in rows for element in row["obs"]]
    assert [element for row in packed for element in row["obs"].tolist()][: len(elements)] == elements


def test_files_hold_rows_of_different_lengths(tmp_path: Path) -> None:
    data = stack_of("vectors")
    for name in ("rows.parquet", "rows.jsonl", "rows.h5"):
        pytest.importorskip("h5py" if name.endswith("h5") else "pyarrow")
        tdmap.datasets.write(data, tmp_path / name)
        assert rows_of(tdmap.datasets.read(tmp_path / name)) == rows_of(data)
    with pytest.raises(TypeError, match=r"the rows of 'obs' have different lengths"):
        tdmap.datasets.write(data, tmp_path / "rows.npz")


@pytest.mark.parametrize("chunksize", [0, 1, 4])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_map_stacks_rows_that_differ_in_shape(num_workers: int, chunksize: int) -> None:
    data = stack_of("nested")
    found = tdmap.map(data, lambda rows: rows, num_workers=num_workers, chunksize=chunksize)
    assert isinstance(found, LazyStackedTensorDict) and rows_of(found) == rows_of(data)
    keys = TensorDict({"key": torch.arange(ROWS)}, [ROWS])

    def upto(row: Any) -> Any:
        return TensorDict({"x": torch.arange(int(row["key"])).clamp(max=5)[-6:], "s": "s"}, [])

    made = tdmap.map(keys, upto, num_workers=num_workers, chunksize=0)
    assert [row["x"].tolist() for row in made] == [upto(row)["x"].tolist() for row in keys]


@pytest.mark.parametrize(
    "other, message",
    [
        ({"x": torch.ones(4, 2, dtype=torch.int64)}, r"row 2, unlike row 0: .*'x' is int64.*float32"),
        ({"x": torch.ones(3, 5)}, r"row 2, unlike row 0: .*'x' is float32 with rows of shape \(5,\).*\(2,\)"),
        ({"x": torch.ones(4, 2), "y": torch.ones(1)}, r"row 2, unlike row 0: .*has also 'y'"),
        ({"x": "text"}, r"row 2, unlike row 0: .*'x' is no tensor"),
        ({"x": {"y": torch.ones(3)}}, r"row 2, unlike row 0: .*lacks|'x'"),
    ],
)
def test_members_that_no_column_can_hold_are_named(other: dict[str, Any], message: str) -> None:
    rows = [TensorDict({"x": torch.ones(n, 2)}, []) for n in (3, 4)]
    with pytest.raises(OutputMismatch, match=message):
        tdmap.shuffle(lazy_stack([*rows, TensorDict(other, [])]), 0, num_workers=0)


def test_one_number_is_no_row_of_numbers() -> None:
    data = lazy_stack([TensorDict({"x": torch.tensor(1)}, []), TensorDict({"x": torch.ones(2).long()}, [])])
    with pytest.raises(OutputMismatch, match=r"'x': row 0 is a single number"):
        tdmap.shuffle(data, 0, num_workers=0)


def test_rows_of_rows_of_different_lengths_are_refused() -> None:
    rows = [TensorDict({"q": torch.ones(n)}, []) for n in (1, 2)]
    with pytest.raises(OutputMismatch, match=r"row 0: it is a lazy stack whose members differ"):
        tdmap.shuffle(lazy_stack([lazy_stack(rows), lazy_stack([*rows, rows[0]])]), 0, num_workers=0)


def test_names_of_entries_are_checked_without_stacking_them() -> None:
    with pytest.raises(KeyError, match=r"'kye'.*Entries: 'key', 'obs'\. Did you mean 'key'"):
        tdmap.sort(stack_of("vectors"), "kye", num_workers=0)


def test_an_output_over_the_memory_of_a_member_is_refused() -> None:
    rows = [TensorDict({"x": torch.arange(3) + n}, []) for n in range(4)]
    whole = torch.arange(20)
    rows[2]["x"] = whole[6:9]
    out = TensorDict({"x": whole[:12].view(4, 3)}, [4])
    with pytest.raises(ValueError, match="shares memory with the data"):
        tdmap.shuffle(lazy_stack(rows), 0, out=out, num_workers=0)


def test_a_resumed_call_over_members_that_changed_is_refused(tmp_path: Path) -> None:
    data = stack_of("vectors")
    tdmap.sort(data, "key", out=tmp_path / "out", resume=True, num_workers=0)
    with pytest.warns(tdmap.errors.AlreadyComplete):
        tdmap.sort(data, "key", out=tmp_path / "out", resume=True, num_workers=0)
    data[5]["obs"][0] += 1
    with pytest.raises(tdmap.errors.ResumeMismatch, match="obs"):
        tdmap.sort(data, "key", out=tmp_path / "out", resume=True, num_workers=0)
