"""Rows that raise in a run of shards: whether the other rows are worth going on is a matter of the whole call.

A worker sees the rows of one shard. Where all of them raise, nothing tells it what rows look like: it says so, and the
driver writes the shard after the others, like one of those.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from tdmap.data import failures
from tdmap.data.kinds import Data
from tdmap.data.objects import object_paths, stack_of
from tdmap.data.schema import Schema
from tdmap.errors import OutputMismatch, SkippedRows, add_note
from tdmap.frames import warn_user
from tdmap.job import Job
from tdmap.rowerrors import RowErrors
from tdmap.runtime.wire.remote import PackedError, unpack_error

Skipped: TypeAlias = "list[tuple[int, PackedError]]"
"""Rows that raised, and how."""

MISFIT = f"{OutputMismatch.__module__}.{OutputMismatch.__qualname__}"


def as_plain(skipped: Skipped) -> list[list[Any]]:
    """Rows that raised, as a note of a shard keeps them."""
    return [failures.failure(row, unpack_error(packed), packed.text) for row, packed in skipped]


def from_plain(plain: Any) -> Skipped:
    """The rows of a note.

    Raises:
        ValueError: it is none that `as_plain` makes.
    """
    if not failures.are_failures(plain):
        raise ValueError("these are no rows that raised")
    found = failures.row_errors([plain])
    names = {failure[0]: failure[1] for failure in plain}
    return [(bad.row, PackedError(pickle.dumps(bad.error), names[bad.row], bad.traceback)) for bad in found]


def judge(job: Job, skipped: Skipped) -> None:
    """Raise the exception of the first row where all rows raised, or more results do not fit than do."""
    misfits = [packed for _, packed in skipped if packed.type_name == MISFIT]
    fitting = job.plan.length - len(skipped)
    if len(misfits) > fitting:
        error = unpack_error(misfits[0])
        note = (
            f"on_error is about single rows, and {len(misfits)} of {len(misfits) + fitting} results of {job.name} do "
            "not fit the output: the function and the output have different schemas."
        )
    elif skipped and not fitting:
        error = unpack_error(skipped[0][1])
        note = f"on_error: {job.name} raised on every one of {len(skipped)} rows"
    else:
        return
    add_note(error, note)
    raise error


def tell(job: Job, skipped: Skipped) -> None:
    """Tell the handler of the job, or warn, of the rows that raised."""
    errors, handler = RowErrors(), job.on_row_error
    add = errors if handler is None else handler  # a RowErrors is false as long as it is empty
    for row, packed in skipped:
        add(unpack_error(packed), (row, row + 1))
    if errors:
        text = f"{job.name}: {errors.summary()}, the others were processed."
        warn_user(SkippedRows(text, errors))


def blank_like(example: Data, rows: int) -> Data:
    """Rows for those that raised: zeros, and None for objects."""
    zero = example[:0]
    columns = {path: stack_of([None] * rows) for path in object_paths(zero)}
    return Schema(zero).build(rows, lambda dtype, shape: torch.zeros(shape, dtype=dtype), columns)


def joined(parts: Sequence[Any]) -> Skipped:
    """The rows that raised in all shards."""
    return [bad for part in parts for bad in part.skipped]
