"""What all operations that users call have in common: options by their right names, and errors without the engine."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tdmap.errors import RemoteTraceback, TdmapError
from tdmap.execution import WorkerOptions
from tdmap.frames import without_engine
from tdmap.process_state import CURRENT, Host, Running

Function = TypeVar("Function", bound=Callable[..., Any])

OPERATIONS: dict[str, Callable[..., Any]] = {}
"""Every function under `@operation`, by its qualified name: tests ask each of them the same questions."""

HABITS = {
    "workers": "num_workers",
    "n_jobs": "num_workers",
    "num_proc": "num_workers",
    "processes": "num_workers",
    "batch_size": "chunksize",
    "chunk_size": "chunksize",
    "progress": "pbar",
    "random_state": "seed",
    "reverse": "descending",
    "ascending": "descending",
    "output": "out",
    "start_method": "mp_start_method",
}
"""Names that options have in other libraries."""


HINTS = {
    "resume": " It begins anew when it is interrupted, and a folder that it was to replace stays as it was. Runs of "
    "map, map_reduce, filter, flat_map, shuffle, the operations by key and the write of a pipeline go on."
}
"""What else there is to say about an option."""


def operation(fn: Function, forwards_to: Callable[..., Any] | None = None) -> Function:
    """Make a function an operation of the library.

    An option that it does not take is an error that lists those that it does, with the nearest name. What it raises
    shows the user's frames, and hides those of the engine between them. Data whose class has names in
    `__tdmap_operations__` has methods of these names, which are called instead.

    Args:
        fn: the function. Its ``**options`` are those of workers, unless ``forwards_to`` says otherwise.
        forwards_to: the operation that gets its ``**options``.
    """
    parameters = inspect.signature(fn).parameters.values()
    names = _names_of(fn) + ([] if forwards_to is None else _names_of(forwards_to))
    open_ended = forwards_to is None and any(p.kind is p.VAR_KEYWORD for p in parameters)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if args and fn.__name__ in getattr(type(args[0]), "__tdmap_operations__", ()):
            return _by_method(fn, args, kwargs)
        unknown = kwargs.keys() - allowed()
        if unknown:
            raise unknown_option(fn.__name__, sorted(unknown)[0], allowed())
        outer = CURRENT.get()
        running = outer or Running(fn.__name__)
        CURRENT.set(running)
        try:
            with Host():
                return fn(*args, **kwargs)
        except Exception as error:
            hide_engine(error)
            raise
        finally:
            CURRENT.set(outer)
            if outer is None:
                running.end()

    @functools.cache
    def allowed() -> frozenset[str]:
        return frozenset(names) | (frozenset(worker_options()) if open_ended else frozenset())

    OPERATIONS[fn.__qualname__] = call
    return call  # type: ignore[return-value]


def _by_method(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the method of the data that has the name of a function; later arguments go by name."""
    method = getattr(args[0], fn.__name__)
    names, theirs = list(inspect.signature(fn).parameters), list(inspect.signature(method).parameters)
    first = args[1:2] if theirs[:1] != [] and theirs[0] not in names else ()
    named = dict(zip(names[1 + len(first) :], args[1 + len(first) :]))
    parameters = inspect.signature(method).parameters.values()
    unknown = set() if any(p.kind is p.VAR_KEYWORD for p in parameters) else kwargs.keys() - set(theirs)
    if unknown:
        raise unknown_option(f"{fn.__name__} of a {type(args[0]).__name__}", sorted(unknown)[0], theirs)
    return method(*first, **named, **kwargs)


def _names_of(fn: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(fn).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"]


def hide_engine(error: BaseException) -> None:
    """Leave frames of the engine out of a traceback, unless the error may be the engine's own."""
    told = isinstance(error, TdmapError) or isinstance(error.__cause__, RemoteTraceback)
    error.__traceback__ = without_engine(error.__traceback__, all_of_it=told)


@functools.cache
def worker_options() -> tuple[str, ...]:
    """The names of the options about workers."""
    return tuple(WorkerOptions.__annotations__)


def unknown_option(name: str, option: str, options: Iterable[str]) -> TypeError:
    """The error for an option that an operation does not take."""
    known = sorted(options)
    meant = HABITS.get(option)
    close = [meant] if meant in known else difflib.get_close_matches(option, known, 1)
    hint = HINTS.get(option) or (f" Did you mean {close[0]!r}?" if close else "")
    return TypeError(f"{name}() has no option {option!r}.{hint} It takes {', '.join(known)}.")
