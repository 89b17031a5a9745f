"""Operations on tables that can be resumed: the jobs of a table's columns as one run (see `tdmap.resume.steps`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tdmap.data.kinds import Data
from tdmap.data.store import OutputFolder
from tdmap.datasets.table import Table
from tdmap.operations.output import Output
from tdmap.resume.stepwise import parts_of, run_call
from tensordict_lite import TensorDict


def run_table(
    name: str,
    table: Table,
    parts: Callable[[], Mapping[str, str]],
    out: Any,
    resume: bool,
    work: Callable[[Any], Table],
) -> Table:
    """Do what an operation on a table does; with `resume`, go on where an earlier session of the same call was.

    Args:
        name, parts, resume: as `tdmap.resume.stepwise.run_call`.
        table: its rows are a part of what the run is known by.
        out: None or a folder.
        work: does it; called with the folder.

    Raises:
        ValueError: `resume`, and there is no folder.
        ResumeMismatch: it holds another run; names what differs.
    """
    if not resume:
        return work(out)
    if out is None:
        raise ValueError("resume=True keeps its journal in the folder of the result: pass out=a folder.")
    store = OutputFolder.of(out)

    def publish() -> Data:
        work(store)
        return store.publish()

    def everything() -> dict[str, str]:
        return {**parts(), **parts_of_table("table", table)}

    run_call(name, TensorDict({}, [len(table)]), everything, Output(store, TensorDict({}, [0])), resume, publish)
    return Table.open(store.path)


def parts_of_table(name: str, table: Table) -> dict[str, str]:
    """What tells a table from another one: each column, and where its rows lie."""
    parts = parts_of(name, table.rows)
    for key, column in table.jagged.items():
        for part, tensor in (("values", column.values), ("starts", column.starts), ("ends", column.ends)):
            parts |= parts_of(f"{name} {key} {part}", tensor)
    return parts
