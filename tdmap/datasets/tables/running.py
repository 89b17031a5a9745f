"""Operations on tables that can be resumed: the jobs of a table's columns as one run (see `tdmap.run.steps`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tdmap.data.kinds import Data
from tdmap.data.store import OutputFolder
from tdmap.datasets.jagged import Jagged
from tdmap.datasets.jaggedfile import open_jagged
from tdmap.datasets.table import Table
from tdmap.output.output import Output
from tdmap.run.call import parts_of, run_call
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
        name, parts, resume: as `tdmap.run.call.run_call`.
        table: its rows are a part of what the run is known by.
        out: None or a folder.
        work: does it; called with the folder.

    Raises:
        ValueError: `resume`, and there is no folder.
        ResumeMismatch: it holds another run; names what differs.
    """
    if not resume:
        return work(out)
    store = _run(name, len(table), lambda: {**parts(), **parts_of_table("table", table)}, out, resume, work)
    return Table.open(store.path)


def run_jagged(
    name: str,
    rows: Jagged,
    parts: Callable[[], Mapping[str, str]],
    out: Any,
    resume: bool,
    work: Callable[[Any], Jagged],
) -> Jagged:
    """The same for an operation on jagged rows. Arguments and errors as `run_table`."""
    if not resume:
        return work(out)
    if out is not None and OutputFolder.of(out).is_at(rows.folder):
        raise FileExistsError(f"{rows.folder} is the folder of the data: choose another one for the result.")
    store = _run(name, len(rows), lambda: {**parts(), **parts_of_jagged("rows", rows)}, out, resume, work)
    return open_jagged(store.path)


def _run(
    name: str, rows: int, parts: Callable[[], Mapping[str, str]], out: Any, resume: bool, work: Callable[[Any], Any]
) -> OutputFolder:
    if out is None:
        raise ValueError("resume=True keeps its journal in the folder of the result: pass out=a folder.")
    store = OutputFolder.of(out)

    def publish() -> Data:
        work(store)
        return store.publish()

    run_call(name, TensorDict({}, [rows]), parts, Output(store, TensorDict({}, [0])), resume, publish)
    return store


def parts_of_table(name: str, table: Table) -> dict[str, str]:
    """What tells a table from another one: each column, and where its rows lie."""
    parts = parts_of(name, table.rows)
    for key, column in table.jagged.items():
        parts |= parts_of_jagged(f"{name} {key}", column)
    return parts


def parts_of_jagged(name: str, column: Jagged) -> dict[str, str]:
    """What tells jagged rows from others."""
    parts: dict[str, str] = {}
    for part, tensor in (("values", column.values), ("starts", column.starts), ("ends", column.ends)):
        parts |= parts_of(f"{name} {part}", tensor)
    return parts
