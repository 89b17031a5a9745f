"""Functions over chunks of jagged rows, on every core: into jagged rows again, or into answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from tdmap.data.join import called_with_none
from tdmap.data.kinds import Data
from tdmap.data.store import destination
from tdmap.datasets.columns import Apart, Columns, run_columns, write_columns
from tdmap.datasets.jagged import Jagged
from tdmap.datasets.jaggedfile import open_jagged, save_jagged
from tdmap.errors import OutputMismatch
from tdmap.execution import Execution
from tdmap.functions import require_function, user_function
from tdmap.job import Job, Source, function_name
from tdmap.memory.rowfiles import SharedTensors
from tdmap.ops.map import map as map_chunks
from tdmap.output.output import Output, travels
from tdmap.plan import ChunkPlan, make_plan
from tdmap.rowerrors import OnError
from tdmap.run.arguments import handler_of, policy_for
from tdmap.run.fingerprint import function_parts, source_parts
from tdmap.run.operation import entry_point
from tdmap.runtime.skipping import DROP
from tdmap.sinks import Collect, Gather
from tensordict_lite import TensorDict

if TYPE_CHECKING:
    from typing import Unpack

    from tdmap.execution import WorkerOptions

CHUNK_VALUES = 1 << 20
"""Elements of a chunk, where nothing else is said."""


class OnJagged:
    """Calls a function with jagged rows, where the engine has only where they start and end."""

    def __init__(self, fn: Callable[[Jagged], Any], rows: Jagged, share: bool) -> None:
        self.fn = user_function(fn)
        self.kind = rows.kind
        self.shared = SharedTensors([rows.values], share)
        self._source = rows.values
        self.__qualname__ = function_name(fn)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged."""
        return {
            **function_parts(self.fn),
            **{f"values {key}": text for key, text in source_parts(self._source).items()},
        }

    def __call__(self, spans: Any) -> Any:
        values = self.shared.private[0].as_subclass(Tensor)
        result = self.fn(Jagged.of_spans(values, spans["start"], spans["end"], self.kind))
        self.shared.trim()
        return result


class OfNoRows:
    """A function that is called once with no rows, to tell what the result looks like; a list without any is of their
    kind."""

    def __init__(self, fn: Callable[[Jagged], Any]) -> None:
        require_function(fn)
        self.fn = fn
        self.__qualname__ = function_name(fn)

    def __call__(self, rows: Jagged) -> Any:
        result = called_with_none(self.fn, rows)
        return rows if isinstance(result, list) and not result else result


class AsColumns:
    """A function of jagged rows, whose results are one jagged column, and other columns where it returns those too."""

    def __init__(self, fn: OnJagged) -> None:
        self.fn = fn
        self.__qualname__ = function_name(fn)

    def identity_parts(self) -> dict[str, str]:
        """The parts that the function is known by."""
        return self.fn.identity_parts()

    def __call__(self, spans: Any) -> Columns:
        result = self.fn(spans)
        columns, jagged = result if isinstance(result, tuple) and len(result) == 2 else (None, result)
        rows = as_jagged(jagged)
        return Columns(TensorDict(columns if columns is not None else {}, [len(rows)]), {"": rows})


def as_jagged(result: Any) -> Jagged:
    """What a function has returned, as jagged rows.

    Raises:
        OutputMismatch: it is something else; says what may be returned.
    """
    if isinstance(result, Jagged):
        return result
    try:
        if isinstance(result, Tensor) and result.is_nested:
            return Jagged.from_nested(result)
        if isinstance(result, Iterable) and not isinstance(result, (str, bytes, dict, TensorDict)):
            return Jagged.from_list(result)
    except (TypeError, ValueError) as error:
        raise OutputMismatch(f"the rows that the function returned do not go into one dataset: {error}") from error
    raise OutputMismatch(
        "the function must return jagged rows: a Jagged, a nested tensor, or a list with a string, bytes or a tensor "
        f"for each row (or a tuple of a TensorDict and those): got a {type(result).__name__}."
    )


def spans_of(rows: Jagged) -> TensorDict:
    """Where rows start and end, as a dataset for the engine."""
    return TensorDict({"start": rows.starts, "end": rows.ends}, [len(rows)])


def plan_of(rows: Jagged, chunksize: int | None) -> ChunkPlan:
    """Chunks of so many rows; by default, of as many as have about a million elements."""
    if chunksize is None and len(rows):
        extent = int(rows.ends[-1]) - int(rows.starts[0]) if rows.folder is not None else rows.total
        mean = max(extent / len(rows), 1.0)
        chunksize = max(min(int(CHUNK_VALUES / mean), -(-len(rows) // 8)), 1)
    return make_plan(len(rows), chunksize=chunksize or max(len(rows), 1))


@entry_point
def map_jagged(
    rows: Jagged,
    fn: Callable[[Jagged], Any],
    out: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    chunksize: int | None = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    retries: int = 2,
    timeout: float | None = None,
    on_error: OnError = "raise",
    **options: Unpack[WorkerOptions],
) -> Any:
    """Apply a function to chunks of jagged rows on several processes.

    Args:
        rows: the rows.
        fn: called with each chunk, a `Jagged` that shares the values. With `out` it returns jagged rows, any number of
            them: a `Jagged`, a nested tensor, a list of strings, bytes, or tensors; or a tuple of a TensorDict with
            columns of the same rows, and those.
        out: folder for the result. None: what the function returns is joined in memory (jagged rows), or gathered as
            `tdmap.map` does (tensors and collections).
        overwrite: the folder may hold a dataset, which the new one replaces when it is whole.
        resume: keep a journal in `out`: the same call goes on after any interruption, to the same bytes.
        chunksize: rows in a chunk. Default: about a million elements.
        seed, generator, retries, timeout: as `tdmap.map`.
        on_error: `"raise"`, or `"skip"` or a function such as `tdmap.RowErrors()`: rows that raise are left out.
        **options: about workers, as `tdmap.map`.

    Returns:
        The rows opened from the folder, or the joined results.

    Raises:
        OutputMismatch: results are no jagged rows, or of different kinds.
        ValueError: `resume` without `out`.
        Exception: as `tdmap.map`.

    Example:
        >>> words = Jagged.from_list(["ant", "bee", "cat"])
        >>> map_jagged(words, lambda chunk: [word.upper() for word in chunk], num_workers=0).tolist()
        ['ANT', 'BEE', 'CAT']
    """
    place = destination(out, overwrite)
    execution = Execution.of(**options)
    policy = policy_for(seed, generator, retries, timeout, on_error=on_error, skip=DROP)
    wrapped = OnJagged(fn if len(rows) else OfNoRows(fn), rows, travels(execution))
    job = Job(Source(spans_of(rows)), plan_of(rows, chunksize), wrapped, policy, on_row_error=handler_of(on_error))
    if out is None:
        if resume:
            raise ValueError("resume=True keeps its journal in the folder of the result: pass out=a folder.")
        if not len(rows):
            return Boxed(wrapped)(job.source.data)[0]
        return _joined(execution.run(replace(job, fn=Boxed(wrapped)), Collect()))
    output = Output(place, job.source.data)
    if output.store is not None and output.store.is_at(rows.folder):
        raise FileExistsError(f"{rows.folder} is the folder of the data: choose another one for the result.")
    if not len(rows):
        assert output.store is not None
        write_columns([AsColumns(wrapped)(job.source.data)], [""], output.store, alone=True)
        return open_jagged(output.store.path)
    run_columns(replace(job, fn=Apart(AsColumns(wrapped), [""])), [""], output, execution, resume, alone=True)
    assert output.store is not None
    return open_jagged(output.store.path)


class Boxed:
    """Results that travel to the caller, whatever they are."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__qualname__ = function_name(fn)

    def __call__(self, chunk: Any) -> tuple[Any, ...]:
        result = self.fn(chunk)
        if isinstance(result, (Tensor, TensorDict)) and not (isinstance(result, Tensor) and result.is_nested):
            return (result,)
        return (as_jagged(result).compact(),)

    def join_states(self, states: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        """The results of a chunk whose parts were processed one by one."""
        return tuple(value for state in states for value in state)


def _joined(values: Any) -> Any:
    results = [result for found in values for result in found or ()]
    if isinstance(results[0], Jagged):
        return Jagged.cat(results)
    return torch.cat(results)


@entry_point
def filter_jagged(
    rows: Jagged,
    predicate: Callable[[Jagged], Any],
    out: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    chunksize: int | None = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    retries: int = 2,
    timeout: float | None = None,
    on_error: OnError = "raise",
    **options: Unpack[WorkerOptions],
) -> Jagged:
    """The rows for which a predicate is true, in their order.

    Args:
        rows: the rows.
        predicate: called with each chunk, a `Jagged`; returns a bool for each row: a tensor, an array or a list.
        out: folder for a copy of them. None: a view that shares the values.
        overwrite, resume, chunksize, seed, generator, retries, timeout, on_error: as `map_jagged`.
        **options: about workers, as `tdmap.map`.

    Raises:
        OutputMismatch: the predicate returned something else.

    Example:
        >>> words = Jagged.from_list(["ant", "bee", "cat"])
        >>> filter_jagged(words, lambda chunk: [word > "b" for word in chunk], num_workers=0).tolist()
        ['bee', 'cat']
    """
    if not len(rows):
        return rows if out is None else rows.save(out, overwrite=overwrite, **options)
    if resume:
        fn = Chosen(predicate)
        kept: Jagged = map_jagged(
            rows, fn, out, overwrite=overwrite, resume=True, chunksize=chunksize, seed=seed, generator=generator,
            retries=retries, timeout=timeout, on_error=on_error, **options,
        )  # fmt: skip
        return kept
    execution = Execution.of(**options)
    policy = policy_for(seed, generator, retries, timeout, on_error=on_error, skip="pad")
    answering = Answers(OnJagged(predicate, rows, travels(execution)))
    job = Job(Source(spans_of(rows)), plan_of(rows, chunksize), answering, policy, on_row_error=handler_of(on_error))

    def answers() -> Tensor:
        return cast(Tensor, execution.run(job, Gather(job.name)))

    place = destination(out, overwrite)
    if place is None:
        return rows.take(answers())
    return save_jagged(rows, place, lambda scratch: answers(), **options)


class Answers:
    """Checks that a predicate returns a bool for each row."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.fn = fn
        self.__qualname__ = function_name(fn)

    def rows_of(self, chunk: Any) -> int:
        """How many rows a chunk has."""
        return len(chunk["start"])

    def __call__(self, spans: Data) -> Tensor:
        return checked_answers(self.fn(spans), self.rows_of(spans))


def checked_answers(found: Any, rows: int) -> Tensor:
    """What a predicate has returned for so many rows, bool `[rows]`.

    Raises:
        OutputMismatch: it is something else.
    """
    answers = torch.as_tensor(found if not isinstance(found, (map, filter)) else list(found))
    if answers.dtype is not torch.bool or answers.shape != (rows,):
        raise OutputMismatch(
            f"a predicate returns a bool for each of the {rows} rows of a chunk, got "
            f"{answers.dtype} {list(answers.shape)}."
        )
    return answers


class Chosen:
    """The rows of a chunk, a table or jagged rows, for which a predicate is true."""

    def __init__(self, predicate: Callable[[Any], Any]) -> None:
        self.predicate = user_function(predicate)
        self.__qualname__ = function_name(predicate)

    def identity_parts(self) -> dict[str, str]:
        """The parts that the predicate is known by, and that it chooses."""
        return {**function_parts(self.predicate), "operation": "filter"}

    def __call__(self, rows: Any) -> Any:
        return rows[checked_answers(self.predicate(rows), len(rows))]


# -- blocks of one length --------------------------------------------------------------------------------------------


def pack_jagged(
    rows: Jagged,
    block: int,
    out: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    **options: Unpack[WorkerOptions],
) -> TensorDict:
    """`Jagged.pack`."""
    if not rows.is_compact:
        raise ValueError("rows that do not lie one after the other are saved first: rows.save(folder).pack(...).")
    flat, offsets = rows.flat(), rows.offsets
    count = len(flat) // block
    if block < 1 or not count:
        raise ValueError(f"{len(flat)} elements do not fill one block of {block}.")
    numbers = TensorDict({"block": torch.arange(count)}, [count])
    fn = PackBlocks(SharedTensors([flat, offsets], travels(Execution.of(**options))), block, [flat, offsets])
    chunk = max(min(CHUNK_VALUES // block, -(-count // 8)), 1)
    return cast(
        TensorDict, map_chunks(numbers, fn, out=out, overwrite=overwrite, resume=resume, chunksize=chunk, **options)
    )


class PackBlocks:
    """Cuts blocks out of flat values."""

    def __init__(self, shared: SharedTensors, block: int, sources: list[Tensor]) -> None:
        self.shared = shared
        self.block = block
        self._sources = sources

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sources": []}

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged."""
        parts = {"block": str(self.block)}
        for name, source in zip(("values", "offsets"), self._sources):
            parts |= {f"{name} {key}": text for key, text in source_parts(source).items()}
        return parts

    def __call__(self, numbers: TensorDict) -> TensorDict:
        flat, offsets = (tensor.as_subclass(Tensor) for tensor in self.shared.tensors)
        first, count = int(numbers["block"][0]), len(numbers["block"])
        at = torch.arange(first * self.block, (first + count) * self.block)
        document = torch.searchsorted(offsets, at, right=True) - 1
        shape = (count, self.block)
        result = TensorDict(
            {
                "values": flat[int(at[0]) : int(at[-1]) + 1].reshape(*shape, *flat.shape[1:]),
                "document": document.reshape(shape),
                "position": (at - offsets[document]).reshape(shape),
            },
            [count],
        )
        return result
