"""Several folders may hold more than memory does: no operation reads a column of them in one piece."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.reducers import Sum
from tdmap.shards.sharded import ShardedDataset, entry_names
from tensordict_lite import TensorDict
from tests.products import sampled
from tests.stores.kinds import same

LENGTHS = (18_001, 30_000, 1, 31_998)
ROWS = sum(LENGTHS)


def rows_of(first: int, count: int) -> TensorDict:
    rows = torch.arange(first, first + count)
    return TensorDict(
        {
            "id": rows.to(torch.int32) * 7919 % ROWS,
            "group": rows % 13,
            "wide": rows[:, None].expand(count, 3).float().contiguous(),
            "n": TensorDict({"wide": rows.double()}, [count]),
        },
        [count],
    )


def named_rows(first: int, count: int) -> TensorDict:
    found = rows_of(first, count)
    found["name"] = [f"name {row}" for row in range(first, first + count)]
    return found


def others(count: int = 300, step: int = 61) -> TensorDict:
    """Some rows with keys that the folders have, and some that they have not."""
    keys = torch.arange(count) * step
    return TensorDict({"key": keys, "wide": keys.double() / 2, "more": {"x": keys.to(torch.uint8)}}, [count])


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    first, found = 0, []
    for place, count in enumerate(LENGTHS):
        rows_of(first, count).memmap(f"{tmp_path}/part{place}")
        found.append(f"{tmp_path}/part{place}")
        first += count
    return found


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """To read more rows of a wide entry than a quarter, or than the parameter, at a time fails, in workers too."""
    load, take, most = ShardedDataset._load, ShardedDataset._take, getattr(request, "param", ROWS // 4)

    def is_wide(data: ShardedDataset, rows: int) -> bool:
        names = entry_names(data.like) if data._keys is None else data._keys
        return rows > most and any("wide" in (name if isinstance(name, tuple) else (name,)) for name in names)

    def checked_load(self: ShardedDataset, first: int, last: int) -> Any:
        copies = len(list(self._parts.runs(first, last))) > 1  # within a folder, rows are views of its files
        assert not (copies and is_wide(self, last - first)), f"{last - first} rows were read at a time"
        return load(self, first, last)

    def checked_take(self: ShardedDataset, index: Any) -> Any:
        assert not is_wide(self, len(index)), f"{len(index)} rows were taken at a time"
        return take(self, index)

    monkeypatch.setattr(ShardedDataset, "_load", checked_load)
    monkeypatch.setattr(ShardedDataset, "_take", checked_take)
    with tuning.use(available_memory=0):
        yield


class Longest(tdmap.reducers.Reducer):
    """A reducer that is not ready-made, and reads whole rows."""

    def init(self) -> Any:
        return torch.zeros(())

    def update(self, state: Any, chunk: Any, start: int) -> Any:
        return torch.maximum(state, chunk["wide"].max())

    def merge(self, a: Any, b: Any) -> Any:
        return torch.maximum(a, b)

    def finish(self, state: Any) -> Any:
        return state


OPERATIONS: dict[str, Any] = {
    "filter": lambda data, **o: tdmap.filter(data, lambda rows: rows["id"] % 3 == 0, **o),
    "filter by a formula": lambda data, **o: tdmap.filter(data, tdmap.col("id") < ROWS // 2, **o),
    "reduce": lambda data, **o: tdmap.reduce(data, Sum(("n", "wide")), **o),
    "sort": lambda data, **o: tdmap.sort(data, "id", **o),
    "shuffle": lambda data, **o: tdmap.shuffle(data, seed=1, **o),
    "reduce of groups": lambda data, **o: tdmap.group_by(data, "group").reduce({"wide": Sum("wide")}, **o),
    "reduce of many groups": lambda data, **o: tdmap.group_by(data, "id").reduce({"wide": Sum(("n", "wide"))}, **o),
    "agg": lambda data, **o: tdmap.group_by(data, "group").agg({("n", "wide"): ["mean", "max", "median"]}, **o),
    "own reducer": lambda data, **o: tdmap.group_by(data, "group").reduce({"most": Longest()}, **o),
    "map_groups": lambda data, **o: tdmap.group_by(data, "group").map_groups(lambda rows: rows[:2], **o),
    "top_k": lambda data, **o: tdmap.top_k(data, "id", 5, **o),
    "sample": lambda data, **o: tdmap.sample(data, 50, seed=2, **o),
    "unique": lambda data, **o: tdmap.unique(data, "group", **o),
    "value_counts": lambda data, **o: tdmap.value_counts(data, "group", **o),
    "split": lambda data, **o: list(tdmap.train_test_split(data, 0.25, seed=0, **o)),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_an_operation_reads_some_rows_at_a_time(
    operation: Any, workers: int, folders: list[str], few_rows: None
) -> None:
    assert same(operation(tdmap.open(folders), num_workers=workers), operation(rows_of(0, ROWS), num_workers=0))


HOW = ("inner", "left", "right", "outer", "semi", "anti")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("many", [False, True], ids=["one partner", "many partners"])
def test_a_join_reads_some_rows_at_a_time(how: str, many: bool, folders: list[str], few_rows: None) -> None:
    """On either side, with keys of another width, of which a row has one partner or several."""
    data, whole, more = tdmap.open(folders), rows_of(0, ROWS), others()
    if many:
        more = torch.cat([more, more[::3]])
    for workers in (0, 2):
        options: Any = {"how": how, "num_workers": workers}
        wanted = tdmap.join(whole, more, left_on="id", right_on="key", **options)
        assert same(tdmap.join(data, more, left_on="id", right_on="key", **options), wanted)
        wanted = tdmap.join(more, whole, left_on="key", right_on="id", **options)
        assert same(tdmap.join(more, data, left_on="key", right_on="id", **options), wanted)


@pytest.mark.parametrize("how", HOW)
def test_a_join_of_folders_with_folders(how: str, folders: list[str], few_rows: None, tmp_path: Path) -> None:
    data, whole, out = tdmap.open(folders), rows_of(0, ROWS), tmp_path / "out"
    wanted = tdmap.join(whole, whole, "id", how, num_workers=0)
    assert same(tdmap.join(data, data, "id", how, num_workers=2), wanted)
    assert same(tdmap.join(data, data, "id", how, out=out, num_workers=2, resume=True), wanted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", *(f"part{n}" for n in range(4))]


@pytest.mark.parametrize("how, key, workers", sampled(2, HOW, ["id", "name"], [0, 2]))
@pytest.mark.parametrize("few_rows", [1_024], indirect=True)
def test_a_join_with_strings_beside_the_rows(how: str, key: str, workers: int, few_rows: None, tmp_path: Path) -> None:
    first, lengths = 0, (1_900, 1, 2_099)
    for place, count in enumerate(lengths):
        named_rows(first, count).memmap(f"{tmp_path}/part{place}")
        first += count
    data, whole = tdmap.open([f"{tmp_path}/part{n}" for n in range(3)]), named_rows(0, first)
    more = TensorDict({"x": torch.arange(40)}, [40])
    more["id"] = whole["id"][::100].clone()
    more["name"] = [f"name {7 * row}" for row in range(40)]
    wanted = tdmap.join(whole, more, key, how, num_workers=0)
    assert same(tdmap.join(data, more, key, how, num_workers=workers), wanted)
    wanted = tdmap.join(more, whole, key, how, num_workers=0)
    assert same(tdmap.join(more, data, key, how, num_workers=workers), wanted)


def test_members_whose_entries_come_in_another_order_are_not_mixed_up(tmp_path: Path) -> None:
    whole = rows_of(0, 400)
    whole[:150].memmap(f"{tmp_path}/a")
    turned = whole[150:].select("n", "wide", "group", "id")
    turned.memmap(f"{tmp_path}/b")
    data = tdmap.open([f"{tmp_path}/a", f"{tmp_path}/b"])
    for name in ("own reducer", "map_groups", "reduce of groups"):
        assert same(OPERATIONS[name](data, num_workers=2), OPERATIONS[name](whole, num_workers=0)), name
    more = TensorDict({"id": whole["id"][::7].clone(), "y": torch.arange(58)}, [58])
    for how in HOW:
        wanted = tdmap.join(whole, more, "id", how, num_workers=0)
        assert same(tdmap.join(data, more, "id", how, num_workers=2), wanted)


def test_results_do_not_go_into_the_folders_themselves(folders: list[str]) -> None:
    data = tdmap.open(folders)
    mine = TensorDict.load_memmap(folders[1])
    for write in (
        lambda: tdmap.filter(data, tdmap.col("id") < 5, out=mine),
        lambda: tdmap.sort(data, "id", out=mine),
        lambda: tdmap.join(data, others(), left_on="id", right_on="key", out=mine),
    ):
        with pytest.raises(ValueError, match="shares memory with the data"):
            write()
    assert np.array_equal(mine["id"].numpy(), rows_of(LENGTHS[0], LENGTHS[1])["id"].numpy())
