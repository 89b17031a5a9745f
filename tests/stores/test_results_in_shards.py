"""Operations that do not know the places of their rows before: their results as shards, here and in a store."""

from pathlib import Path
from typing import Any

import pytest

import tdmap
from tensordict_lite import TensorDict
from tests.stores.kinds import numbers, same, strings

pytestmark = pytest.mark.xdist_group("stores")

OPERATIONS: dict[str, Any] = {
    "filter by place": lambda data, out, **how: tdmap.filter(data, tdmap.col("x") > 20, out=out, **how),
    "sort": lambda data, **how: tdmap.sort(data, "x", descending=True, **how),
    "map_groups": lambda data, **how: tdmap.group_by(data, "g").map_groups(lambda rows: rows[:1], **how),
    "top_k": lambda data, **how: tdmap.top_k(data, "x", 5, **how),
    "pipeline": lambda data, out, **how: (
        data.pipeline().filter(lambda rows: rows["x"] % 2 == 0).map(lambda rows: rows.clone()).write(out, **how)
        if out is not None
        else data.pipeline().filter(lambda rows: rows["x"] % 2 == 0).map(lambda rows: rows.clone()).collect(**how)
    ),
}


def grouped() -> TensorDict:
    rows = numbers(0, 40)
    rows["g"] = rows["x"] % 5
    return rows


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_every_operation_writes_shards(operation: Any, tmp_path: Path) -> None:
    wanted = operation(grouped(), out=None, num_workers=0)
    data = operation(grouped(), out=tmp_path / "set", rows_per_shard=3, num_workers=0)
    assert same(data.contiguous(), wanted) and data.ends[0] == 3 and len(data.shards) == -(-len(wanted) // 3)
    assert same(tdmap.open(tmp_path / "set").contiguous(), wanted)
    assert [path.name for path in tmp_path.iterdir()] == ["set"], "what it was made in is gone"
    with pytest.raises(FileExistsError, match="holds a dataset already"):
        operation(grouped(), out=tmp_path / "set", rows_per_shard=3, num_workers=0)
    data = operation(grouped(), out=tmp_path / "set", rows_per_shard=1 << 20, num_workers=0, overwrite=True)
    assert same(data.contiguous(), wanted) and len(data.shards) == 1


def test_results_go_to_a_store(bucket: str, options: dict[str, Any], tmp_path: Path) -> None:
    rows = strings(0, 40)
    how: dict[str, Any] = {"num_workers": 2, "storage_options": options}
    mixed = tdmap.shuffle(rows, 1, out=f"{bucket}/mixed", rows_per_shard=11, **how)
    assert mixed.ends == [11, 22, 33, 40] and same(mixed.contiguous(), tdmap.shuffle(rows, 1, num_workers=0))
    back = tdmap.sort(mixed, "x", out=f"{bucket}/sorted", **how)
    assert same(back.contiguous(), rows)
    none = tdmap.filter(
        back, lambda chunk: chunk["x"] < 0, out=f"{bucket}/none", num_workers=0, storage_options=options
    )
    assert len(none) == 0 and same(tdmap.open(f"{bucket}/none", storage_options=options)["x"], rows["x"][:0])
    written = back.pipeline().map(keep).write(f"{bucket}/written", num_workers=0, storage_options=options)
    assert same(written["x"], rows["x"])


def keep(chunk: Any) -> Any:
    return chunk


def test_what_cannot_be_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    calls: list[int] = []

    def predicate(rows: Any) -> Any:
        calls.append(1)
        return rows["x"] > 3

    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for how, kind, told in (
        ({"out": tmp_path / "full"}, FileExistsError, "is not empty"),
        ({"out": None}, ValueError, "pass out=its path"),
        ({"out": numbers(0, 8)}, ValueError, "pass out=its path"),
        ({"out": tmp_path / "set", "resume": True, "overwrite": True}, ValueError, "pass only one"),
        ({"out": tmp_path / "set", "rows_per_shard": 0}, ValueError, "at least 1"),
        ({"out": tmp_path / "set", "rows_per_shards": 2}, TypeError, "Did you mean 'rows_per_shard'"),
    ):
        with pytest.raises(kind, match=told):  # type: ignore[call-overload]
            tdmap.filter(numbers(0, 8), predicate, num_workers=0, **({"rows_per_shard": 2} | how))  # type: ignore[operator]
    assert not calls

    def fail(rows: Any) -> Any:
        raise ValueError("bad row")

    with pytest.raises(ValueError, match="bad row"):
        tdmap.filter(numbers(0, 8), fail, out=tmp_path / "set", rows_per_shard=2, num_workers=0)
    assert [path.name for path in tmp_path.iterdir()] == ["full"], "nothing is left of a run that failed"
