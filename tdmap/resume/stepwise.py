"""The door to `steps`: an operation of several jobs as one run, which another call of the same kind goes on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tdmap.data.kinds import Data, is_data
from tdmap.job import Job, Policy, Source
from tdmap.plan import ChunkPlan
from tdmap.resume.fingerprint import function_parts, source_parts
from tdmap.resume.rowlog import PIECES, FolderOutput, finish_run, forget, open_output_run
from tdmap.resume.run import STEPWISE
from tdmap.resume.steps import Steps
from tdmap.runtime.commits import STEPS


class Call:
    """What an operation was asked for, as its run is known; stands for the functions of all its jobs.

    Args:
        name: of the operation.
        parts: what the result depends on besides the data: each with a digest, or, under a name that begins with
            "the", as people read it.
    """

    def __init__(self, name: str, parts: Mapping[str, str]) -> None:
        self.__qualname__ = name
        self.parts = dict(parts)

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged."""
        return self.parts

    def __call__(self, chunk: Any) -> Any:
        raise NotImplementedError("an operation of several jobs is not called with chunks")


def options_of(**options: Any) -> dict[str, str]:
    """Options that a result depends on, as parts of a call.

    Example:
        >>> options_of(descending=True)
        {'the option descending': 'True'}
    """
    return {f"the option {name}": repr(value) for name, value in options.items()}


def parts_of(name: str, value: Any) -> dict[str, str]:
    """The parts of something that a call was given: of a function, a reducer, another dataset.

    Example:
        >>> list(parts_of("reducer 'n'", max))
        ["reducer 'n': callable"]
    """
    found = source_parts(value) if is_data(value) else function_parts(value)
    return {f"{name}: {part}": digest for part, digest in found.items()}


def run_call(
    name: str,
    data: Data,
    parts: Callable[[], Mapping[str, str]],
    output: FolderOutput,
    resume: bool,
    work: Callable[[], Data],
) -> Data:
    """Do what an operation does; with `resume`, go on where an earlier session of the same call was.

    Args:
        name: of the operation.
        data: the dataset.
        parts: what else the result depends on (see `Call`); called with `resume` alone.
        output: where rows go.
        resume: keep what is done in a hidden folder of the output.
        work: runs the jobs, the same each time as long as nothing else is `settled`, and returns the result.

    Raises:
        ValueError: `resume`, and the output is no folder.
        ResumeMismatch: the folder holds another run; names what differs.
        FileExistsError: it holds something else.
    """
    if not isinstance(resume, bool):
        raise ValueError(f"resume must be True or False: got {resume!r}.")
    if not resume:
        with output.claimed(name):
            return work()
    length = int(data.shape[0])
    job = Job(Source(data), ChunkPlan(length, max(length, 1)), Call(name, parts()), Policy(undo=False))
    with open_output_run(output, job, STEPWISE, PIECES, Path.touch) as run:
        assert output.store is not None
        if run.is_complete:
            forget(run)
            return output.store.publish()
        with Steps(run) as steps:
            token = STEPS.set(steps)
            try:
                result = work()
            except BaseException:
                if not steps.has_begun:  # an argument was wrong, say: the next call may be another one
                    steps.forget()
                raise
            finally:
                STEPS.reset(token)
        return finish_run(run, result, length)
