"""`.cache(path)`: rows that are written once, and how it is known that they are this pipeline's.

path/                       the dataset, when it is whole
path/.tdmap/pipeline.json   what the pipeline was: digests of its source, its functions and its other stages
"""

from __future__ import annotations

import json
import os
import warnings
from typing import TYPE_CHECKING

from tdmap._data import Data
from tdmap.errors import AlreadyComplete, ResumeMismatch
from tdmap.fingerprint import source_parts
from tdmap.journal import replace_file
from tdmap.pipeline import running
from tdmap.pipeline.planning import Plan, is_one_pass
from tdmap.pipeline.rounds import Context
from tdmap.pipeline.stages import Cache, Concat, Stage, Zip
from tdmap.pipeline.work import stage_parts
from tdmap.store import OutputFolder

if TYPE_CHECKING:
    from tdmap.pipeline.pipeline import Pipeline

NAME = "pipeline.json"


def identity(pipeline: Pipeline, prefix: str = "") -> dict[str, str]:
    """What a pipeline is, part by part: the same in every process."""
    parts = {f"{prefix}source {key}": value for key, value in source_parts(pipeline._data).items()}
    parts[f"{prefix}seed"] = str(pipeline._seed)
    parts[f"{prefix}number of stages"] = str(len(pipeline._stages))
    stages = [Stage() if isinstance(stage, (Zip, Concat)) else stage for stage in pipeline._stages]
    parts |= stage_parts(stages, prefix)
    for number, stage in enumerate(pipeline._stages, 1):
        if isinstance(stage, (Zip, Concat)):
            parts[f"{prefix}stage {number}"] = stage.name
            parts |= identity(stage.other, f"{prefix}stage {number}, {stage.name}: ")
    return parts


def dataset_of(before: Pipeline, cache: Cache, plan: Plan, context: Context) -> Data:
    """The dataset of a cache, written if it is not there.

    Args:
        before: the pipeline up to the cache.
        cache: the stage.
        plan: of `before`.
        context: how to run it.

    Raises:
        ResumeMismatch: the folder holds the rows of another pipeline; names what differs.
        FileExistsError: it holds something else.
    """
    store, now = OutputFolder(cache.path), identity(before)
    note = store.hidden / NAME
    if store.is_whole:
        _compare(note, now, cache)
        known = store.load()
        assert known is not None
        return known
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AlreadyComplete)
        data = running.write(plan, context, cache.path, resume=is_one_pass(plan))
    store.hidden.mkdir(exist_ok=True)
    replace_file(note, json.dumps(now, indent=1).encode())
    return data


def is_written(cache: Cache) -> bool:
    """Whether the folder holds a dataset."""
    return os.path.exists(os.path.join(cache.path, "meta.json"))


def _compare(note: os.PathLike[str], now: dict[str, str], cache: Cache) -> None:
    try:
        with open(note) as file:
            then = json.load(file)
    except FileNotFoundError:
        raise FileExistsError(
            f"{cache.path} holds a dataset that is no cache of a pipeline: choose another folder for .cache(), or load "
            "that dataset and begin a pipeline with it."
        ) from None
    changes = [key for key in {**then, **now} if then.get(key) != now.get(key)]
    if changes:
        said = tuple(f"{key} was {then.get(key, 'absent')}, and is {now.get(key, 'absent')}" for key in changes)
        text = "\n".join(f"  - {line}" for line in said)
        raise ResumeMismatch(
            f"{cache.path} is the cache of another pipeline:\n{text}\nRemove the folder to write it anew, or choose "
            "another one.",
            said,
        )
