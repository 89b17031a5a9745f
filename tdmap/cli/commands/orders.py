"""The commands that write rows of datasets as another one: `tdmap filter`, `join`, `sort` and `shuffle`."""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap.cli.answers import answer, asked
from tdmap.cli.app import app
from tdmap.cli.commands.map import CANNOT_WRITE, report_skipped, require_free
from tdmap.cli.describe import is_table, time_types
from tdmap.cli.places import (
    AddressOption,
    ExecutorOption,
    ShardOption,
    executor_options,
    list_beside,
    output_options,
    url_of,
)
from tdmap.cli.requests import entries_named, find_function, guard, open_rows, refuse

SourceArgument = Annotated[Path, typer.Argument(metavar="IN", help="Folder of the dataset, or file of an archive.")]
OutArgument = Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the result.")]
WorkersOption = Annotated[int | None, typer.Option(min=0, help="Processes; as many as usable cores.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace OUT when it is a dataset.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="No progress bar, no summary.")]
ByOption = Annotated[list[str], typer.Option("--by", metavar="KEY", help="An entry, as a/b; the first counts most.")]


def entry_of(name: str, data: Any, path: Path) -> str | tuple[str, ...]:
    """The entry that `a/b` names, as reducers take it, or leave with those that there are."""
    (key,) = entries_named([name], data, path)
    return key if len(key) > 1 else key[0]


def key_of(name: str, data: Any, path: Path) -> str | tuple[str, ...]:
    """:func:`entry_of`, as operations take it: tables have dots in the names of their columns."""
    key = entry_of(name, data, path)
    return ".".join(key) if is_table(data) and isinstance(key, tuple) else key


def run_into(run: Callable[[], Any], out: Path, state: str | None = None) -> Any:
    """Run an operation that writes a dataset; what it refuses is said in one line."""
    from tdmap.errors import FolderInUse, OutputMismatch, ResumeMismatch, UntrustedFile

    refusals = (FileExistsError, FolderInUse, UntrustedFile, OutputMismatch, ResumeMismatch, KeyError, TypeError)
    return guard(run, state or f"nothing was written to {out}", (*refusals, ValueError, *CANNOT_WRITE))


def operation(data: Any, name: str) -> Callable[..., Any]:
    """`tdmap.sort` and its kin, of these rows; those of a table are its methods."""
    import tdmap

    return getattr(data, name) if is_table(data) else functools.partial(getattr(tdmap, name), data)


def worker_options(
    workers: int | None, quiet: bool, executor: str = "process", address: str | None = None
) -> dict[str, Any]:
    """The options about workers that every operation takes."""
    shown = not quiet and not asked().json
    return {"num_workers": workers, "pbar": shown, **executor_options(executor, address)}


ResumeOption = Annotated[bool, typer.Option("--resume", help="Keep a journal; go on after an interruption.")]

GOES_ON = "what is done stays done, and the same command goes on from there"


def check_place(out: Path, sources: Sequence[Path], overwrite: bool, resume: bool) -> None:
    """Refuse an OUT that is in the way of what is asked for."""
    if resume and overwrite:
        refuse("--resume goes on with what is in OUT, and --overwrite removes it: give one of them")
    for source in () if resume else sources:
        require_free(out, source, overwrite)


def keep_types(data: Any, source: Path, out: Path, names: Sequence[str] | None = None) -> None:
    """Let columns of times be those of times in OUT, too; tables see to it themselves."""
    if not is_table(data) and url_of(out) is None:
        from tdmap.datasets.tables.about import carry_types

        carry_types(source, out, names)


def has_types(folder: Path) -> bool:
    """Whether columns in a folder have types, which a table keeps."""
    from tdmap.datasets.tables.about import read_types

    return any(read_types(folder).values())


def as_table(data: Any, folder: Path) -> Any:
    """A dataset as a table, with what its folder tells of its columns."""
    from tdmap.datasets import Table

    if is_table(data):
        return data
    return Table.open(folder) if has_types(folder) else Table.of(data)


def require_one_folder(data: Any, source: Path, out: Path, rows_per_shard: int | None) -> None:
    """Refuse to write a table as several folders, or into a store."""
    if is_table(data) and (rows_per_shard is not None or url_of(out) is not None):
        refuse(f"{source} is a table, which is written as one folder: no --rows-per-shard, and no URL as OUT")


# -------- tdmap filter


@app.command("filter")
def filter_command(
    predicate: Annotated[str, typer.Argument(metavar="PREDICATE", help="module:function, or 'KEY OPERATOR VALUE'.")],
    source: SourceArgument,
    out: OutArgument,
    workers: WorkersOption = None,
    executor: ExecutorOption = "process",
    address: AddressOption = None,
    rows_per_shard: ShardOption = None,
    chunksize: Annotated[int | None, typer.Option(min=0, help="Rows the function gets at a time.")] = None,
    overwrite: OverwriteOption = False,
    resume: ResumeOption = False,
    skip_errors: Annotated[
        bool, typer.Option("--skip-errors", help="Leave out rows on which the function raises, and list them.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Write the rows for which a predicate is true, in their order.

    A function gets a chunk of rows and returns a bool for each. Operators are ==, !=, <, <=, >, >= and in; they compare
    an entry that has one value a row with a number, a text in quotes, or (in) a list of them. Dates and times are
    written as 2024-06-01, '2024-06-01T12:30:00' or 12:30, with or without quotes.
    """
    from tdmap.rowerrors import RowErrors

    data = open_rows(source)
    test: Any = Where.parse(predicate, data, source)
    if test is None:
        if ":" not in predicate:
            refuse(f"{predicate!r} is not of the form module:function, and no comparison such as 'label == 3' either")
        test = find_function(predicate)
    check_place(out, [source], overwrite, resume)
    require_one_folder(data, source, out, rows_per_shard)
    skipped = RowErrors() if skip_errors else None
    who = worker_options(workers, quiet, executor, address)
    options = {"chunksize": chunksize, **output_options(out, overwrite, resume, rows_per_shard), **who}
    if skipped is not None:
        options["on_error"] = skipped
    elif (
        isinstance(test, Where) and not resume and not is_table(data)
    ):  # an interrupted run knows its predicate by what it was
        test = test.formula()

    result = run_into(lambda: operation(data, "filter")(test, **options), out, GOES_ON if resume else None)
    keep_types(data, source, out)
    rows, kept = len(data), len(result)
    place = list_beside(out)
    report_skipped(skipped, rows, False, place, written=False, fate="are left out")
    facts = {"rows": kept, "of": rows, "skipped": len(skipped or ()), "out": out}
    answer(facts, *([] if quiet else [f"{kept:,} of {rows:,} rows written to {out}"]))


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_OPERATOR = re.compile(r"==|!=|<=|>=|<|>|\bin\b")


@dataclass(frozen=True)
class Where:
    """A comparison of an entry with a value, as a predicate.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> Where("label", ">", 1)(TensorDict({"label": torch.tensor([0, 1, 2, 3])}, [4]))
        tensor([False, False,  True,  True])
    """

    key: Any
    operator: str
    value: Any

    @staticmethod
    def parse(text: str, data: Any, path: Path) -> Where | None:
        """What `KEY OPERATOR VALUE` says; None if it says something else. Leaves with why it cannot be met."""
        import torch

        whole = text.strip()
        found = _OPERATOR.search(whole, 1)
        if found is None or found.end() == len(whole):
            return None
        name, sign, said = whole[: found.start()].strip(), found[0], whole[found.end() :].strip()
        key = key_of(name, data, path)
        column = ".".join(key) if isinstance(key, tuple) else key
        kind = time_types(data, path).get(column)
        try:
            value = ast.literal_eval(said)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            if kind is None:
                also = "; a combination of comparisons is a function" if re.search(r"\band\b|\bor\b|[&|]", said) else ""
                refuse(f"{said!r} in {text!r} is no number, no text in quotes and no list of them{also}")
            value = said
        if sign == "in" and not isinstance(value, (list, tuple, set)):
            refuse(f"{text!r}: `in` wants a list, such as [1, 2]")
        leaf = data[key] if is_table(data) else data.get(key)
        if getattr(leaf, "kind", None) == "tensor":
            refuse(f"{name} has rows of different lengths: a comparison needs one value a row")
        if kind is not None:
            try:
                sign, value = _of_times(sign, value, kind, said)
            except TypeError as error:
                refuse(f"{text!r}: of {name}, {error}")
        if isinstance(leaf, torch.Tensor):
            if leaf.dim() != 1:
                refuse(f"{name} has rows of shape {list(leaf.shape[1:])}: a comparison needs one value a row")
            if any(isinstance(one, str) for one in (value if sign == "in" else [value])):
                refuse(f"{name} is {str(leaf.dtype).removeprefix('torch.')}, and {said} is a text")
        text_of = {"str": str, "bytes": bytes}.get(getattr(leaf, "kind", ""))
        if text_of is not None and not all(isinstance(one, text_of) for one in (value if sign == "in" else [value])):
            refuse(f"{name} is {leaf.kind}, and {said} is no {'text' if text_of is str else 'bytes'}")
        return Where(key, sign, value)

    def formula(self) -> Any:
        """The same as a formula, which reads one column and no others."""
        import tdmap

        column = tdmap.col(self.key)
        return column.isin(self.value) if self.operator == "in" else _OPERATORS[self.operator](column, self.value)

    def __call__(self, chunk: Any) -> Any:
        import torch

        column = chunk[self.key] if is_table(chunk) else chunk.get(self.key)
        if isinstance(column, torch.Tensor):
            return self.formula()(chunk)
        objects = list(column.tolist() if hasattr(column, "tolist") else column)
        if self.operator == "in":
            return [one in self.value for one in objects]
        return [bool(_OPERATORS[self.operator](one, self.value)) for one in objects]


def _of_times(sign: str, value: Any, kind: Any, said: str) -> tuple[str, Any]:
    """A comparison with times as one with the numbers of a column.

    Raises:
        TypeError: a value is no such time, or no row can be equal to it.
    """
    from tdmap.times import beside

    several = isinstance(value, (list, tuple, set))
    found = [
        beside("==" if several else sign, one, kind) if isinstance(one, str) else (sign, one)
        for one in (value if several else [value])
    ]
    numbers = [one[1] for one in found if one is not None]
    if several:
        return sign, numbers
    if found[0] is None:
        raise TypeError(f"its numbers are {kind.name}, and none of them is {said}: compare with < or >")
    return found[0]


# -------- tdmap join, tdmap sort, tdmap shuffle


@app.command("join")
def join_command(
    left: Annotated[Path, typer.Argument(metavar="LEFT", help="The first dataset, whose order the rows keep.")],
    right: Annotated[Path, typer.Argument(metavar="RIGHT", help="The second dataset, best the smaller one.")],
    out: OutArgument,
    on: Annotated[list[str], typer.Option("--on", metavar="KEY", help="An entry of both, as a/b; or LEFT=RIGHT.")],
    how: Annotated[str, typer.Option(help="inner, left, right, outer, semi or anti.")] = "inner",
    workers: WorkersOption = None,
    overwrite: OverwriteOption = False,
    resume: ResumeOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write the rows of two datasets with equal keys side by side."""
    one, other = open_rows(left), open_rows(right)
    if is_table(one) or is_table(other) or has_types(left) or has_types(right):
        one, other = as_table(one, left), as_table(other, right)
    names = [(name.partition("=")[0], name.rpartition("=")[2]) for name in on]
    keys = {"left_on": [key_of(name, one, left) for name, _ in names]}
    keys["right_on"] = [key_of(name, other, right) for _, name in names]
    check_place(out, [left, right], overwrite, resume)
    options: dict[str, Any] = {**keys, "overwrite": overwrite, "resume": resume, **worker_options(workers, quiet)}
    result = run_into(
        lambda: operation(one, "join")(other, None, how, out, **options), out, GOES_ON if resume else None
    )
    _written(result, out, quiet, {"on": on, "how": how})


@app.command("sort")
def sort_command(
    source: SourceArgument,
    out: OutArgument,
    by: ByOption,
    descending: Annotated[bool, typer.Option("--descending", help="From large to small.")] = False,
    workers: WorkersOption = None,
    executor: ExecutorOption = "process",
    address: AddressOption = None,
    rows_per_shard: ShardOption = None,
    overwrite: OverwriteOption = False,
    resume: ResumeOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write the rows in the order of one or more entries; rows with equal keys keep their order."""
    data = open_rows(source)
    keys = [key_of(name, data, source) for name in by]
    check_place(out, [source], overwrite, resume)
    require_one_folder(data, source, out, rows_per_shard)
    who = worker_options(workers, quiet, executor, address)

    options = {**output_options(out, overwrite, resume, rows_per_shard), **who}
    run_into(lambda: operation(data, "sort")(keys, descending=descending, **options), out, GOES_ON if resume else None)
    keep_types(data, source, out)
    _written(data, out, quiet, {"by": by, "descending": descending})


@app.command("shuffle")
def shuffle_command(
    source: SourceArgument,
    out: OutArgument,
    seed: Annotated[int | None, typer.Option(help="Decides the order; a new one each time, if not given.")] = None,
    workers: WorkersOption = None,
    executor: ExecutorOption = "process",
    address: AddressOption = None,
    rows_per_shard: ShardOption = None,
    overwrite: OverwriteOption = False,
    resume: ResumeOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write the rows in a random order, in which every order is equally likely."""
    import torch

    data = open_rows(source)
    check_place(out, [source], overwrite, resume)
    require_one_folder(data, source, out, rows_per_shard)
    if seed is None and resume:
        refuse("--resume goes on with the order that was begun: give its --seed")
    if seed is None:
        torch.seed()
        seed = int(torch.randint(1 << 62, ()))
    who = worker_options(workers, quiet, executor, address)

    options = {**output_options(out, overwrite, resume, rows_per_shard), **who}
    run_into(lambda: operation(data, "shuffle")(seed=seed, **options), out, GOES_ON if resume else None)
    keep_types(data, source, out)
    _written(data, out, quiet, {"seed": seed})


def _written(data: Any, out: Path, quiet: bool, facts: dict[str, Any]) -> None:
    rows = len(data)
    said = "".join(f", seed {value}" for name, value in facts.items() if name == "seed")
    answer({"rows": rows, "out": out, **facts}, *([] if quiet else [f"{rows:,} rows written to {out}{said}"]))
