"""What a run is: the identity that its journal or log begins with, and how that of another call differs."""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from tdmap.data.kinds import Data, is_data
from tdmap.errors import ResumeMismatch
from tdmap.job import Job
from tdmap.memory.hidden import printable
from tdmap.plan import ChunkPlan
from tdmap.run.fingerprint import OWN, PACKAGE, VERSION, function_parts, source_parts, without_versioned
from tdmap.run.history import IN_PLACE, STEPWISE, describe_plan


def identify(job: Job, kind: str) -> dict[str, Any]:
    """The identity of a run: equal in every process for the same function, source, plan and seed."""
    source = source_parts(job.source.data, contents=kind != IN_PLACE)
    return identity_of(kind, job.name, function_parts(job.fn), source, job.plan, job.policy.seed)


def identity_of(
    kind: str,
    name: str,
    parts: Mapping[str, str],
    source: Mapping[str, str],
    plan: ChunkPlan,
    seed: int | None = None,
) -> dict[str, Any]:
    """An identity, of the parts of a function or call and those of its dataset."""
    return {
        "kind": kind,
        "name": name,
        "function": dict(parts),
        "source": dict(source),
        "plan": describe_plan(plan),
        "seed": seed,
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
    }


def parts_of(name: str, value: object) -> dict[str, str]:
    """The parts of something that a call was given: of a function, a reducer, another dataset.

    Example:
        >>> list(parts_of("reducer 'n'", max))
        ["reducer 'n': its version", "reducer 'n': its callable"]
    """
    found = source_parts(value) if is_data(value) else function_parts(value)
    return {f"{name}: {part}": digest for part, digest in found.items()}


def identify_call(name: str, data: Data, length: int, parts: Mapping[str, str]) -> dict[str, Any]:
    """What tells a call from others: the operation, its dataset, and the parts that its result depends on."""
    return identity_of(STEPWISE, name, parts, source_parts(data), ChunkPlan(length, max(length, 1)))


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs between two identities, one sentence each."""
    found = []
    if old["kind"] != new["kind"]:
        found.append(f"it was a run of kind {old['kind']!r} and is one of kind {new['kind']!r}")
    parts, version = _changed_parts(old["function"], new["function"])
    if old["kind"] == new["kind"] == STEPWISE:
        found += _other_call(old, new, parts)
    elif parts:
        names = f"{new['name']}, which was {old['name']}," if old["name"] != new["name"] else new["name"]
        found.append(f"the function {names} differs in: {', '.join(parts)}")
    if version:
        if old["python"] != new["python"]:
            found.append(f"bytecode differs between Python {old['python']}, then, and {new['python']}, now")
        found.append(
            "the functions and classes of its module that a function uses, and your other modules, belong to it. If "
            f"its results are the same, resume the run with @tdmap.versioned({version!r}) on the function"
        )
    for key in _changed(old["source"], new["source"]):
        before, after = old["source"].get(key, "absent"), new["source"].get(key, "absent")
        if _STAMP.sub("", before) == _STAMP.sub("", after):
            before, after = (_STAMP.search(text)[0] for text in (before, after))  # type: ignore[index]
            changed = f"its file was written at {before} when the run began, and was written at {after} since"
            found.append(f"the source's {key} has changed: {changed}")
        else:
            found.append(f"the source's {key} was {before}, and is {after}")
    for key in _changed(old["plan"], new["plan"]):
        found.append(f"the plan's {key} was {old['plan'].get(key)}, and is {new['plan'].get(key)}")
    if old["seed"] != new["seed"]:
        found.append(f"the seed was {old['seed']}, and is {new['seed']}")
    return [printable(_STAMP.sub(_time_of, line), 4000) for line in found]


_STAMP = re.compile(r"(?<=written at )\d{12,20}")


def _time_of(nanoseconds: re.Match[str]) -> str:
    """The time of a file, for people, in the zone of this machine."""
    return f"{datetime.datetime.fromtimestamp(int(nanoseconds[0]) / 1e9):%Y-%m-%d %H:%M:%S.%f}"


def _other_call(old: dict[str, Any], new: dict[str, Any], parts: list[str]) -> list[str]:
    """How a call of an operation of several jobs differs."""
    if old["name"] != new["name"]:
        return [f"it was a call of {old['name']}, and is one of {new['name']}"]
    before, after = old["function"], new["function"]
    found, others = [], []
    for part in parts:
        name = part if part.startswith("the ") else part.partition(": ")[2]  # behind the name of the argument
        if name.startswith("the "):
            found.append(f"{name} was {before.get(part, 'absent')}, and is {after.get(part, 'absent')}")
        else:
            others.append(part)
    return found + ([f"the call of {new['name']} differs in: {', '.join(others)}"] if others else [])


def _changed_parts(old: dict[str, str], new: dict[str, str]) -> tuple[list[str], str | None]:
    """The parts that differ, and the version that a function must be given to be taken for the earlier one."""
    changed = _changed(without_versioned(old), without_versioned(new))
    versions = [part for part in changed if part.endswith(VERSION) and part in old and part in new]
    derived = [part for part in versions if new[part].startswith("#")]  # of the code, and not given
    for part in derived:
        name = part.removesuffix(VERSION)
        changed += [other for other in _changed(old, new) if other.startswith(name + OWN) and other != part]
        changed.remove(part)
    packages = [part for part in old.keys() & new.keys() if PACKAGE in part and old[part] != new[part]]
    changed += sorted(part for part in packages if part not in changed)
    shown = [part.replace(OWN, "") for part in changed]
    return shown, old[derived[0]] if derived else None


def _changed(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [key for key in {**old, **new} if old.get(key) != new.get(key)]


OVERWRITE = "pass overwrite=True instead of resume=True to run it again"
"""How a complete run into a folder is begun anew, in the words of a message."""


def refuse_other(folder: Path, changes: list[str], is_complete: bool, again: str) -> NoReturn:
    """Raise ResumeMismatch: the folder holds another run, which may be complete. `again` says how it is begun anew."""
    if is_complete:
        refuse(folder, changes, "holds the result of another run", f"Choose another folder, or {again}.")
    if again == OVERWRITE:  # there is no dataset yet that could be replaced
        again = f"remove {folder} to run it again"
    of_rows = [line for line in changes if line.startswith("the source's")]
    if any("written at" in line for line in of_rows):
        changes = [*changes, WRITTEN_SINCE]
    advice = f"or {again}." if of_rows else f"{again}, or repeat the earlier call to resume it."
    refuse(folder, changes, "holds an unfinished run that differs from this one", f"Choose another folder, {advice}")


WRITTEN_SINCE = (
    "files of the source changed after the run began. If the function itself changes its chunk and returns "
    "it too, begin it with chunk = chunk.clone()"
)


def refuse(folder: Path | str, changes: list[str], found: str, advice: str) -> NoReturn:
    text = "\n".join(f"  - {change}" for change in changes)
    raise ResumeMismatch(f"{folder} {found}:\n{text}\n{advice}", tuple(changes))
