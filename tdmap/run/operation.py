"""The frame of operations: what they all do around the function that does the work.

    tdmap.sort(data, "age", "sorted", resume=True, num_workers=4)
       │
       │  options    unknown ones are errors; those about workers become an `Execution`
       │  output     what `out=` stands for, and the claim to be its only writer
       │  log        with `resume`: the call is known by its arguments, and its jobs by their order
       ▼
    sort(ctx, data, "age")  ── ctx.run(job, sink) ──► ctx.output
       │
       │  copy       into shards or a store, if `out` is one
       ▼  end        the log, the claim; an error without the frames of the engine

An operation is a function of a `Context` under `@operation`. `@entry_point` is the part of the frame for functions that
have no output of their own.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import numpy as np
import torch

from tdmap.data.kinds import Data, is_data
from tdmap.errors import RemoteTraceback, TdmapError
from tdmap.execution import Execution
from tdmap.frames import without_engine
from tdmap.job import Job, Policy, function_name
from tdmap.memory.folderlock import FolderLock
from tdmap.memory.hidden import HIDDEN
from tdmap.output.output import Output
from tdmap.output.outputfolder import OutputFolder, files_of
from tdmap.plan import ChunkPlan
from tdmap.process_state import CURRENT, Host, Running
from tdmap.run.context import Context, policy_for, require_rows
from tdmap.run.history import History
from tdmap.run.identity import identify_call, parts_of
from tdmap.run.log import changes_of, clean
from tdmap.run.options import options_of, unknown_option, with_defaults, worker_options
from tdmap.run.run import open_run
from tdmap.runtime.skipping import DROP, PAD
from tensordict_lite.paths import absolute_path

Function = TypeVar("Function", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")

OPERATIONS: dict[str, Callable[..., Any]] = {}
"""Every function under `@operation` or `@entry_point`, by its qualified name: tests ask each the same questions."""


# -- decorators ----------------------------------------------------------------------------------------


def entry_point(fn: Function) -> Function:
    """Make a function one that users call.

    An option that it does not take is an error that lists those that it does, with the nearest name. What it raises
    shows the user's frames, and hides those of the engine between them.
    """
    return _entry(fn, inspect.signature(fn), fn)  # type: ignore[return-value]


def operation(fn: Callable[Concatenate[Context, P], T]) -> Callable[P, T]:
    """Make an operation of a function of a context, data and arguments.

    Its parameter `out`, if it has one, and its `**options` stand in the signature for callers and type checkers: the
    function finds them in the context. The data is the first argument; or the attribute `data` of the first one, where
    that has a method `identity_parts`.

    Example:
        >>> import torch
        >>> from typing import Unpack
        >>> from tdmap import Options
        >>> from tdmap.output.permute import permute_rows
        >>> @operation
        ... def head(ctx: Context, data: Data, n: int, out: Data = None, **options: Unpack[Options]) -> Data:
        ...     return permute_rows(ctx, data, torch.arange(n))
        >>> head(torch.arange(5), 2, num_workers=0)
        tensor([0, 1])
    """
    return _operation(fn, 0)


def placing_operation(fn: Callable[Concatenate[Context, P], T]) -> Callable[P, T]:
    """The same for an operation that claims `out` itself, which may be its data."""
    return _operation(fn, 0, skip=PAD)


def operation_method(fn: Callable[Concatenate[S, Context, P], T]) -> Callable[Concatenate[S, P], T]:
    """The same for a method, whose context follows `self`."""
    return _operation(fn, 1)


def _operation(fn: Callable[..., Any], at: int, skip: str = DROP) -> Callable[..., Any]:
    """An operation, of a function whose parameter number `at` is the context.

    Args:
        fn: the function.
        at: the number.
        skip: what a result has for rows that raise. With `PAD`, the function claims its output itself.
    """
    signature = inspect.signature(fn)
    parameters = list(signature.parameters.values())
    shown = signature.replace(parameters=parameters[:at] + parameters[at + 1 :])
    names = [p.name for p in shown.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    required = {p.name for p in shown.parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
    has_output = "out" in shown.parameters and skip == DROP

    def call(*args: Any, **kwargs: Any) -> Any:
        taken = options_of(fn)
        options = {name: kwargs.pop(name) for name in [*kwargs] if name in taken}
        given = {**dict(zip(names, args)), **kwargs}
        if len(args) > len(names) or not required <= given.keys() or len(given) < len(args) + len(kwargs):
            _refuse(fn.__name__, shown, args, kwargs)
        data = given[names[0]]
        looked_at = data if hasattr(type(data), "identity_parts") else None
        if looked_at is not None:  # rows and how they are looked at
            data = looked_at.data
        folder = given.get("resume")  # of an operation that returns no rows
        if folder is not None and not isinstance(folder, (str, os.PathLike)):
            raise TypeError(f"resume= of {fn.__name__} is the path of a folder for its states: got {folder!r}.")
        if has_output or folder is not None:
            require_rows(data, fn.__name__)
        theirs = next((value for name, value in given.items() if name != names[0] and callable(value)), None)
        called = fn.__qualname__ if theirs is None else f"{fn.__qualname__}({function_name(theirs)})"
        ctx = _context(called, data, given.get("out"), options, skip)
        work = functools.partial(fn, *args[:at], ctx, *args[at:], **kwargs)
        if not has_output and folder is None:
            return work()
        if looked_at is not None and hasattr(type(looked_at), "check_output"):
            looked_at.check_output(ctx.output)  # it reads other rows, too

        def identity() -> dict[str, Any]:
            bound = shown.bind(*args, **kwargs)
            bound.apply_defaults()
            return identify_call(ctx.name, data, length, _parts(bound.arguments, ctx))

        length = int(data.shape[0])
        skipper = ctx.job(data, ChunkPlan(length, max(length, 1)), fn) if ctx.function.skip else None
        if folder is not None:
            return resumable_answer(ctx, folder, identity, work, skipper)
        return resumable_call(ctx, identity, work, skipper)

    functools.update_wrapper(call, fn)
    return _entry(call, shown, fn)


def _refuse(name: str, signature: inspect.Signature, args: Any, kwargs: Any) -> NoReturn:
    by_place = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(args) > len(by_place):
        takes, given = ", ".join(by_place).removeprefix("self, "), len(args) - ("self" in by_place)
        raise TypeError(
            f"{name}() takes {takes} by position, and got {given} arguments by position. "
            "Pass the others by keyword, such as out=."
        )
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}(): {error}.") from None
    raise AssertionError(f"{name}() takes these arguments")


def _context(name: str, data: Data, out: Any, options: Mapping[str, Any], skip: str) -> Context:
    """The context of a call. Arguments as `_operation`."""
    execution = Execution(**{option: options[option] for option in worker_options() if option in options})
    output = Output(
        out,
        data,
        execution,
        options.get("overwrite", False),
        options.get("rows_per_shard"),
        options.get("storage_options"),
        in_place=skip == PAD,
    )
    function = policy_for(options, skip)
    steps = Policy(retries=function.retries, timeout=function.timeout, undo=False)
    return Context(name, execution, output, options, steps, function)


def _entry(fn: Callable[..., Any], signature: inspect.Signature, takes: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        unknown = kwargs.keys() - allowed()
        if unknown:
            raise unknown_option(fn.__name__, sorted(unknown)[0], allowed())
        outer = CURRENT.get()
        if outer is None:
            kwargs = with_defaults(kwargs, allowed() - set(positional[: len(args)]))
        running = outer or Running(fn.__name__)
        CURRENT.set(running)
        try:
            with Host():
                return fn(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            hide_engine(error)
            raise
        finally:
            CURRENT.set(outer)
            if outer is None:
                running.close()

    positional = [p.name for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]

    @functools.cache
    def allowed() -> frozenset[str]:
        return frozenset({*_names_of(signature), *options_of(takes)} - {"self"})

    call.__signature__ = signature  # type: ignore[attr-defined]
    OPERATIONS[fn.__qualname__] = call
    return call


def _names_of(signature: inspect.Signature) -> list[str]:
    return [p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def hide_engine(error: BaseException) -> None:
    """Leave frames of the engine out of a traceback, unless the error may be the engine's own."""
    told = isinstance(error, (TdmapError, KeyboardInterrupt)) or isinstance(error.__cause__, RemoteTraceback)
    error.__traceback__ = without_engine(error.__traceback__, all_of_it=told)


# -- calls that can be resumed -------------------------------------------------------------------------


def resumable_call(
    ctx: Context,
    identity: Callable[[], dict[str, Any]],
    work: Callable[[], Data],
    job: Job | None = None,
) -> Data:
    """Do what an operation does; with the option `resume`, from where an earlier session of the same call was.

    Args:
        ctx: the call. With `resume`, its output has a log while `work` is called.
        identity: what tells the call from others; called with `resume` alone.
        work: runs the jobs, the same each time as long as nothing else is decided, and returns the result.
        job: the one whose function may skip rows.

    Raises:
        ValueError: `resume`, and the output is no folder.
        ResumeMismatch: the folder holds another run; names what differs.
        FileExistsError: it holds something else.
    """
    name, output, resume = ctx.name, ctx.output, ctx.resume
    shards = output.shards
    if not resume:
        with output.claimed(name):
            made = work()
            return made if shards is None else shards.write(made, ctx.steps)
    if output.store is None:
        raise ValueError("resume=True keeps its log in the output folder: pass the path of a folder as out=.")
    known = identity()
    if shards is not None:
        shards.known_by(known)
        output.store = OutputFolder(shards.folder)
    store = output.store
    with output.claimed(name, resume=True):
        whole = None if shards is None else shards.complete(known, name)
        if whole is not None:
            return whole
        if _is_gone(store, known):
            store.begin_anew()
        warns = shards is None  # else the rows were complete, and not the shards
        with open_run(store.hidden, known, job, resume, lists=shards is None, warns=warns) as log:
            if log is None:
                result = store.publish()
            else:
                output.log = log
                result = work()
                log.finish(known["plan"]["rows"], files_of(result))  # whose names have changed
        clean(store.hidden)  # also of a session that was killed before it did
        return result if shards is None else shards.write(result, ctx.steps, known)


def resumable_answer(
    ctx: Context,
    folder: str | os.PathLike[str],
    identity: Callable[[], dict[str, Any]],
    work: Callable[[], T],
    job: Job | None = None,
) -> T:
    """Do what an operation does that returns no rows, from where an earlier session of the same call was.

    The states of its reductions stay in the folder, so that a call that was complete gives its answer again.

    Args:
        ctx: the call. It has a log while `work` is called.
        folder: of the log and the states.
        identity, work, job: as `resumable_call`.

    Raises:
        ResumeMismatch: the folder holds another run; names what differs.
        FileNotFoundError: the call was complete, and its states are gone.
    """
    path, known = Path(absolute_path(folder)), identity()
    again = f"remove {path} to run it again"
    run = open_run(path / HIDDEN, known, job, files=None, lists=False, again=again, replays=True)
    with FolderLock(path, ctx.name), run as log:
        assert log is not None
        ctx.output.log = log
        answer = work()
        if not log.is_complete:
            log.finish(known["plan"]["rows"])
        return answer


def _is_gone(store: OutputFolder, identity: dict[str, Any]) -> bool:
    """Whether the call was complete before, and its dataset has been removed since."""
    if not store.has_journal or store.load() is not None:
        return False
    path = store.hidden / "journal"
    history = History(path)
    return history.is_complete and not changes_of(history, identity, False, path)


# -- what tells a call from others ---------------------------------------------------------------------

RESULT_OPTIONS = ("chunksize", "num_chunks")
"""Options that the bits of a result may depend on, beside the seed."""

SHOWN = 200
"""Characters of an argument that a log holds."""


def _parts(arguments: Mapping[str, Any], ctx: Context) -> dict[str, str]:
    """What the result of a call depends on, beside its data: its arguments, how rows are cut, the seed."""
    parts: dict[str, str] = {}
    for name, value in [*arguments.items()][1:]:
        if name not in ("out", "options", "resume"):
            parts |= _argument(name, value)
    first = next(iter(arguments.values()))
    if hasattr(type(first), "identity_parts"):
        parts |= first.identity_parts()
    parts |= {
        f"the option {name}": repr(ctx.options[name]) for name in RESULT_OPTIONS if ctx.options.get(name) is not None
    }
    return parts if ctx.function.seed is None else {**parts, "the seed": str(ctx.function.seed)}


def _argument(name: str, value: object) -> dict[str, str]:
    """The parts of an argument: plain values as they are written, others by what they consist of."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = torch.as_tensor(value)
    if _is_plain(value):
        text = repr(value)
        if len(text) > SHOWN:
            text = f"{text[:SHOWN]}... (digest {hashlib.blake2b(text.encode(), digest_size=8).hexdigest()})"
        return {f"the argument {name}": text}
    if isinstance(value, Mapping) and not is_data(value):
        return {part: text for key, one in value.items() for part, text in _argument(f"{name} {key!r}", one).items()}
    if isinstance(value, (list, tuple)):
        found = {part: text for n, one in enumerate(value) for part, text in _argument(f"{name}[{n}]", one).items()}
        return {**found, f"the argument {name}": f"{len(value)} values"}
    return parts_of(name, value)


def _is_plain(value: object) -> bool:
    """Whether `repr` tells a value from any other, in any process."""
    if isinstance(value, Mapping):
        return type(value) is dict and all(_is_plain(key) and _is_plain(one) for key, one in value.items())
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return type(value) in (list, tuple) and all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, complex, str, bytes, torch.dtype)
