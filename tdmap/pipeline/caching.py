"""`.cache(path)`: rows that are written once, and how it is known that they are this pipeline's.

path/                       the dataset, when it is whole
path/.tdmap/pipeline.json   what the pipeline was: digests of its source, its functions and its other stages
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdmap.data.kinds import Data
from tdmap.errors import AlreadyComplete, ResumeMismatch, UntrustedFile
from tdmap.frames import without_warnings
from tdmap.memory.hidden import parse_json, printable, read, replace_file
from tdmap.output.output import Output
from tdmap.output.outputfolder import OutputFolder
from tdmap.pipeline import terminals
from tdmap.pipeline.epochs import RunSettings
from tdmap.pipeline.planning import Plan, is_one_pass
from tdmap.pipeline.stages import Cache, ConcatWith, Stage, ZipWith
from tdmap.pipeline.work import stage_parts
from tdmap.run.context import Context
from tdmap.run.fingerprint import source_parts
from tdmap.run.identity import identify_call
from tdmap.run.operation import resumable_call
from tensordict_lite.memmap.disk.files import is_there

if TYPE_CHECKING:
    from tdmap.pipeline.chain import Chain

NAME = "pipeline.json"


def source(pipeline: Chain, prefix: str = "") -> dict[str, str]:
    """What the data of a pipeline is, part by part."""
    return {f"{prefix}source {key}": value for key, value in source_parts(pipeline.data).items()}


def identity(pipeline: Chain, prefix: str = "") -> dict[str, str]:
    """What else a pipeline is, part by part: the same in every process."""
    parts = {}
    parts[f"{prefix}seed"] = str(pipeline._seed)
    parts[f"{prefix}number of stages"] = str(len(pipeline._stages))
    stages = [Stage() if isinstance(stage, (ZipWith, ConcatWith)) else stage for stage in pipeline._stages]
    parts |= stage_parts(stages, prefix)
    for number, stage in enumerate(pipeline._stages, 1):
        if isinstance(stage, (ZipWith, ConcatWith)):
            parts[f"{prefix}stage {number}"] = stage.name
            name = f"{prefix}stage {number}, {stage.name}: "
            parts |= source(stage.other, name) | identity(stage.other, name)
    return parts


def dataset_of(before: Chain, cache: Cache, plan: Plan, settings: RunSettings) -> Data:
    """The dataset of a cache, written if it is not there.

    Args:
        before: the pipeline up to the cache.
        cache: the stage.
        plan: of `before`.
        settings: how to run it.

    Raises:
        ResumeMismatch: the folder holds the rows of another pipeline; names what differs.
        FolderInUse: another call writes it.
        FileExistsError: it holds something else.
    """
    store, now, resume = OutputFolder(cache.path), source(before) | before.identity_parts(), is_one_pass(plan)
    note, text = store.hidden / NAME, json.dumps(now, indent=1).encode()

    def write(store: OutputFolder, resume: bool) -> Data:
        assert settings.execution is not None
        output = Output(store, None, settings.execution)
        ctx = Context("Pipeline.cache", settings.execution, output, {"resume": resume})

        def work() -> Data:
            replace_file(store.hidden / NAME, text)  # first: what is whole is known from its first moment on
            return terminals.write(plan, settings, ctx)

        def identity() -> dict[str, Any]:
            return identify_call(ctx.name, before.data, len(before.data), before.identity_parts())

        made = resumable_call(ctx, identity, work)
        if not is_there(note, follow=False):
            replace_file(note, text)
        return made

    is_noted = not store.has_journal or is_there(note, follow=False)  # else it was killed before that
    if not (store.is_whole and is_noted):
        try:
            with store.claimed("Pipeline.cache", resume=resume or cache.overwrite), without_warnings(AlreadyComplete):
                if is_there(note, follow=False) and (changes := _changes(note, now, cache)):
                    if not cache.overwrite:
                        raise _mismatch(cache, changes)
                    store.begin_anew()
                return write(store, resume)
        except FileExistsError:
            if not store.is_whole:
                raise  # else another call has just written it
    changes = _changes(note, now, cache)
    if changes and cache.overwrite:
        with (store := OutputFolder(cache.path, overwrite=True)).claimed("Pipeline.cache"):
            if _changes(note, now, cache):  # else another process has written it before us
                return write(store, False)
    elif changes:
        raise _mismatch(cache, changes)
    known = OutputFolder(cache.path).load()
    assert known is not None
    return known


def is_written(cache: Cache) -> bool:
    """Whether the folder holds a dataset."""
    return is_there(os.path.join(cache.path, "meta.json"))


def _mismatch(cache: Cache, changes: tuple[str, ...]) -> ResumeMismatch:
    lines = "\n".join(f"  - {line}" for line in changes)
    return ResumeMismatch(
        f"{cache.path} is the cache of another pipeline:\n{lines}\nPass overwrite=True to .cache() to write it anew, "
        "or choose another folder.",
        changes,
    )


def _changes(note: Path, now: dict[str, str], cache: Cache) -> tuple[str, ...]:
    """How the pipeline that has written a folder differs, a sentence each."""
    written = read(note)
    if written is None:
        raise FileExistsError(
            f"{cache.path} holds a dataset that is not the cache of a pipeline: choose another folder for "
            ".cache(), or load that dataset and begin a pipeline with it."
        )
    try:
        then = parse_json(written)
        if type(then) is not dict:
            raise ValueError("it is not an object")
    except ValueError as error:
        raise UntrustedFile(note, f"does not say of which pipeline it is ({error})") from None
    changed = [key for key in {**then, **now} if then.get(key) != now.get(key)]
    return tuple(
        f"{key} has changed"
        if key in then and key in now and _is_digest(now[key])
        else f"{key} was {printable(then.get(key, 'absent'))}, and is {now.get(key, 'absent')}"
        for key in changed
    )


def _is_digest(text: str) -> bool:
    """Whether a value tells a reader nothing but that it is another one."""
    return len(text) == 32 and not set(text) - set("0123456789abcdef")
