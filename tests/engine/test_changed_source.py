"""Functions that change their chunk in place and return results as well: the source changes, and a warning says so."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap.errors import OutputMismatch
from tensordict_lite import TensorDict


def doubled_and_returned(chunk: TensorDict) -> TensorDict:
    chunk["x"].mul_(2)
    return chunk


def summed_of_doubled(chunk: TensorDict) -> TensorDict:
    return TensorDict({"sum": chunk["x"].mul_(2).sum(-1)}, chunk.batch_size)


def doubled(chunk: TensorDict) -> None:
    chunk["x"].mul_(2)


def with_another_entry(chunk: TensorDict) -> TensorDict:
    chunk = chunk.copy()
    chunk["y"] = chunk["x"] * 2
    return chunk


def doubled_clone(chunk: TensorDict) -> TensorDict:
    return doubled_and_returned(chunk.clone())


def rows_of(tmp_path: Path, mapped: bool) -> TensorDict:
    data = TensorDict({"x": torch.arange(24).view(12, 2)}, [12])
    return data.memmap(tmp_path / "data") if mapped else data


def collected(data: TensorDict, fn: Any, how: str, tmp_path: Path, num_workers: int) -> None:
    options: dict[str, Any] = {"num_workers": num_workers, "chunksize": 5}
    if how == "iter":
        list(tdmap.map_iter(data, fn, **options))
    elif how == "filter":
        tdmap.filter(data, lambda chunk: (fn(chunk), torch.ones(len(chunk), dtype=torch.bool))[1], **options)
    else:
        tdmap.map(data, fn, out=tmp_path / "out" if how == "folder" else None, **options)


@pytest.mark.parametrize("how", ["gathered", "folder", "iter", "filter"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("fn", [doubled_and_returned, summed_of_doubled])
def test_a_source_that_has_changed_beside_results_is_told_of(
    tmp_path: Path, how: str, num_workers: int, mapped: bool, fn: Any
) -> None:
    data = rows_of(tmp_path, mapped)
    with pytest.warns(RuntimeWarning, match="changed rows of the source in place, and returned results") as found:
        collected(data, fn, how, tmp_path, num_workers)
    # The collector may find things of other tests meanwhile, and warn of them.
    assert [warning.filename for warning in found if warning.category is RuntimeWarning] == [__file__]
    assert torch.equal(data["x"], 2 * torch.arange(24).view(12, 2))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("fn", "to_source", "changes"),
    [
        (doubled, False, True),
        (doubled_and_returned, True, True),
        (doubled_clone, True, True),
        (doubled_clone, False, False),
        (with_another_entry, False, False),
    ],
)
def test_what_was_meant_is_done_without_a_word(
    tmp_path: Path, num_workers: int, fn: Any, to_source: bool, changes: bool
) -> None:
    data = rows_of(tmp_path, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tdmap.map(data, fn, out=data if to_source else None, num_workers=num_workers, chunksize=5)
    assert torch.equal(data["x"], (2 if changes else 1) * torch.arange(24).view(12, 2))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"resume": True}, {"rows_per_shard": 6}, {"on_error": "skip"}, {"on_error": "drop"}, {"chunksize": 0}],
    ids=str,
)
def test_rows_stay_where_a_folder_gets_no_results(
    tmp_path: Path, num_workers: int, mapped: bool, options: dict[str, Any]
) -> None:
    data = rows_of(tmp_path, mapped)
    with pytest.raises(OutputMismatch, match=r"returned None.*pass out=data"):
        tdmap.map(data, doubled, out=tmp_path / "out", num_workers=num_workers, **{"chunksize": 5, **options})
    assert torch.equal(data["x"], torch.arange(24).view(12, 2))
