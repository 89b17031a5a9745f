"""Random programs: operations one after the other over random datasets, under random faults, against an oracle.

`make test` runs a few of them, the same ones every time: a change that breaks nothing is never refused. `make soak`
runs many others (`TDMAP_PROGRAMS`, default 3000). What fails shrinks to the smallest program that does, which is
printed as a command; it becomes a test of its own.
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.cells.operations import resumable
from tests.programs.model import COLUMNS, DTYPES, LAYOUTS
from tests.programs.runner import DONE, run

FUNCTIONS = ("same", "add", "large", "say", "only")
FILES_HOLD = frozenset(COLUMNS) - {"thing"}

OPERATIONS = ("map", "filter", "flat_map", "sort", "listed", "listed", "map_groups", "pipeline", "reduce", "in place")
LISTED = [name for name in resumable() if name != "train_test_split"]
RESUMABLE = ("map", "filter", "flat_map")
STEPWISE = ("sort", "listed", "map_groups")
FAULTY = ("map", "filter", "flat_map", "sort", "map_groups", "pipeline", "reduce")


def datasets() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "rows": st.sampled_from([0, 1, 2, 3, 7, 31, 64, 101, 130, 211]),
            "inner": st.sampled_from([[], [], [], [2], [2, 1]]),
            "columns": st.lists(st.sampled_from(COLUMNS), unique=True, max_size=4),
            "dtype": st.sampled_from(sorted(DTYPES)),
            "layout": st.sampled_from(LAYOUTS),
        }
    )


def ways() -> st.SearchStrategy[dict[str, Any]]:
    processes = st.fixed_dictionaries(
        {
            "executor": st.just("process"),
            "workers": st.integers(1, 3),
            "method": st.sampled_from(["fork"] * 8 + ["forkserver", "spawn"]),
            "chunksize": st.sampled_from([None, None, 0, 1, 3, 17, 1000]),
        }
    )
    here = st.fixed_dictionaries(
        {
            "executor": st.sampled_from(["serial", "thread"]),
            "workers": st.integers(1, 3),
            "chunksize": st.sampled_from([None, None, 0, 1, 3, 17, 1000]),
        }
    )
    return st.one_of(processes, processes, here)


@st.composite
def steps(draw: st.DrawFn, data: dict[str, Any]) -> dict[str, Any]:
    op = draw(st.sampled_from([op for op in OPERATIONS if op != "listed" or not data["inner"]]))
    step: dict[str, Any] = {"op": op, "how": draw(ways())}
    files = set(data["columns"]) <= FILES_HOLD
    places = [
        "memory",
        *(["folder"] if files else []),
        *(["resumed"] if files and op in (*RESUMABLE, *STEPWISE) else []),
    ]
    step["into"] = draw(st.sampled_from(places)) if op not in ("reduce", "in place") else "memory"
    step["function"] = draw(st.sampled_from(FUNCTIONS))
    step["modulus"] = draw(st.integers(1, 5))
    step["seed"] = draw(st.integers(0, 9))
    if op == "sort":
        step |= {"strings": draw(st.booleans()), "descending": draw(st.booleans())}
    step["listed"] = draw(st.sampled_from(LISTED))
    if op == "pipeline":
        step["modulus"] = draw(st.sampled_from([0, 2, 3]))
        step["seed"] = draw(st.sampled_from([None, 1, 5]))
        step["take"] = draw(st.sampled_from([None, None, 0, 5, 50]))
        step["batch"] = draw(st.sampled_from([0, 1, 4, 30]))
    step["fault"] = draw(faults(step, data["rows"]))
    step["mode"] = draw(st.sampled_from(["skip", "drop"]))
    return step


@st.composite
def faults(draw: st.DrawFn, step: dict[str, Any], rows: int) -> dict[str, Any]:
    kinds = ["none", "none"]
    if step["how"]["executor"] == "process" and step["op"] in (*FAULTY, "in place"):
        kinds += ["kill", "kill", *(["stop"] if step["how"]["method"] == "fork" else [])]
        if step["into"] == "resumed" and step["how"]["method"] == "fork":
            kinds += ["driver", "driver"]
    if step["op"] in (*RESUMABLE, "in place"):
        kinds += ["raise", "raise"]
    kind = draw(st.sampled_from(kinds))
    if kind == "none" or not rows:
        return {"kind": "none"}
    bad = draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=6, unique=True))
    return {"kind": kind, "rows": sorted(bad), "name": draw(st.integers(0, 10**6))}


@st.composite
def programs(draw: st.DrawFn) -> dict[str, Any]:
    data = draw(datasets())
    chosen = []
    for _ in range(draw(st.integers(1, 4))):
        step = draw(steps(data))
        if step["op"] == "in place" and chosen:
            continue  # numbers change: no later step would meet its rows
        chosen.append(step)
        if step["op"] == "in place":
            break
        if step["function"] == "only" and step["op"] in ("map", "pipeline"):
            break
    return {"data": data, "steps": chosen}


def _settings(count: int, same: bool) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=same,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        print_blob=False,
        report_multiple_bugs=False,
    )


@_settings(int(os.environ.get("TDMAP_PROGRAMS_TEST", "35")), same=True)
@given(programs())
def test_random_programs(program: dict[str, Any]) -> None:
    run(program)


@pytest.mark.soak
@pytest.mark.timeout(0)
@_settings(int(os.environ.get("TDMAP_PROGRAMS", "3000")), same=False)
@given(programs())
def test_many_random_programs(program: dict[str, Any]) -> None:
    run(program)
    if DONE["programs"] % 100 == 0:
        print(dict(DONE), flush=True)
