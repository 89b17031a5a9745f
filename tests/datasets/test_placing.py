"""Columns whose rows have their places before they are read: the same dataset, however the files come there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tdmap.datasets import Jagged, Table, read
from tdmap.datasets.columns import map_columns
from tdmap.errors import OutputMismatch
from tensordict_lite import TensorDict
from tests.datasets.killing import contents

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

GROUPS = (3, 0, 5, 1, 7, 2, 2)


def write_groups(path: Path, text: bool = True) -> Any:
    """A file of several row groups; returns its table."""
    rows = sum(GROUPS)
    columns = {"x": torch.arange(rows).numpy(), "b": [n % 3 == 0 for n in range(rows)],
               "m": pa.FixedSizeListArray.from_arrays(pa.array(range(2 * rows), pa.int16()), 2)}  # fmt: skip
    table = pa.table({**columns, **({"text": [f"{'é' * (n % 4)}{n}" for n in range(rows)]} if text else {})})
    with pq.ParquetWriter(path, table.schema) as writer:
        for number, count in enumerate(GROUPS):
            start = sum(GROUPS[:number])
            writer.write_table(table.slice(start, count), row_group_size=max(count, 1))
    return table


def check(found: Table, table: Any) -> None:
    for name in ("x", "b", "m"):
        assert found[name].tolist() == table[name].to_pylist()
    if "text" in table.column_names:
        assert found["text"].tolist() == table["text"].to_pylist()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("links", [True, False])
def test_files_are_linked_or_copied_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, text: bool, links: bool
) -> None:
    def refuse(*names: Any) -> None:
        raise PermissionError("no links here")

    table = write_groups(tmp_path / "x.parquet", text)
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    check(read(tmp_path / "x.parquet", tmp_path / "out", num_workers=workers), table)
    monkeypatch.undo()
    read(tmp_path / "x.parquet", tmp_path / "other", num_workers=0)
    assert contents(tmp_path / "out") == contents(tmp_path / "other")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.stat().st_nlink for path in files} == {1}
    assert len({path.stat().st_mode for path in files}) == 1
    assert not (tmp_path / "out" / ".tdmap").exists()


@pytest.mark.parametrize("at", [1, 4])
def test_an_interrupted_run_goes_on_with_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    from tdmap.datasets.parquet import ReadGroup

    table, calls, plain = write_groups(tmp_path / "x.parquet"), [], ReadGroup.__call__

    def fail_once(self: Any, groups: Any) -> Any:
        calls.append(int(groups["group"][0]))
        if len(calls) == at + 1:
            raise ConnectionError("the disk has gone")
        return plain(self, groups)

    monkeypatch.setattr(ReadGroup, "__call__", fail_once)
    options: dict[str, Any] = {"resume": True, "num_workers": 0}
    with pytest.raises(ConnectionError):
        read(tmp_path / "x.parquet", tmp_path / "out", **options)
    check(read(tmp_path / "x.parquet", tmp_path / "out", **options), table)
    assert sorted(calls) == sorted([0, 2, 3, 4, 5, 6, calls[at]])  # nothing but the failed one was read again


def test_a_second_job_that_was_interrupted_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tdmap.output.copying import CopyTable

    def fail(*arguments: Any) -> None:
        raise ConnectionError("the disk has gone")

    table, options = write_groups(tmp_path / "x.parquet"), {"resume": True, "num_workers": 0}
    monkeypatch.setattr(CopyTable, "run", fail)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            read(tmp_path / "x.parquet", tmp_path / "out", **options)
    monkeypatch.undo()
    check(read(tmp_path / "x.parquet", tmp_path / "out", **options), table)


@pytest.mark.parametrize("counts", [1, torch.tensor([2, 2, 3, 1])])
def test_rows_that_were_not_expected_are_an_error(tmp_path: Path, counts: Any) -> None:
    def two_each(chunk: TensorDict) -> Any:
        return TensorDict({"x": chunk["x"].repeat_interleave(2)}, [2 * len(chunk)]), {}

    data = TensorDict({"x": torch.arange(4)}, [4])
    with pytest.raises(OutputMismatch, match="rows was expected, and it has 2"):
        map_columns(data, two_each, [], tmp_path / "out", chunksize=1, counts=counts, num_workers=0)
    map_columns(data, two_each, [], tmp_path / "out", chunksize=3, counts=2, num_workers=0)
    assert Table.open(tmp_path / "out")["x"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_one_jagged_column_in_the_folder_itself_has_columns_beside_it(tmp_path: Path) -> None:
    def words(chunk: TensorDict) -> Any:
        return TensorDict({"x": chunk["x"] * 2}, [len(chunk)]), {
            "": Jagged.from_list([str(n) for n in chunk["x"].tolist()])
        }

    map_columns(TensorDict({"x": torch.arange(12)}, [12]), words, [""], tmp_path / "out", chunksize=5, counts=1,
                alone=True, num_workers=2)  # fmt: skip
    assert Jagged.open(tmp_path / "out").tolist() == [str(n) for n in range(12)]
    assert TensorDict.load_memmap(tmp_path / "out")["rows", "x"].tolist() == list(range(0, 24, 2))
