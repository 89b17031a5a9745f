"""Runs a program and compares every step with the oracle. A program that fails is printed as a script.

python -m tests.programs.runner '{"data": {...}, "steps": [...]}'
"""

import json
import multiprocessing
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.programs.model import Row, build, describe, number_of, rows_of
from tests.programs.steps import CHECK, EXPECT, RUN

SECONDS = 300.0
"""A step that takes longer hangs."""

DONE: Counter[str] = Counter()
"""Programs, steps and faults so far."""


def run(program: dict[str, Any]) -> None:
    """Run a program in a folder of its own.

    Raises:
        AssertionError: rows are not what they should be; tells the step, and how to run the program again.
    """
    folder = Path(tempfile.mkdtemp(prefix="program-"))
    try:
        data = build(program["data"], folder)
        rows = rows_of(data)
        for number, step in enumerate(program["steps"]):
            step = {**step, "number": number}
            try:
                data, rows = _run_step(data, rows, step, tuple(program["data"]["inner"]), folder)
            except Exception as error:
                if is_refusal(step, rows, error):
                    DONE["refusals"] += 1
                    return
                text = f"step {number}, {step}\n{type(error).__name__}: {error}\n{script(program)}"
                raise AssertionError(text) from error
            DONE["steps"] += 1
            DONE[f"fault {step['fault']['kind']}"] += 1
        DONE["programs"] += 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_step(
    data: Any, rows: list[Row], step: dict[str, Any], inner: tuple[int, ...], folder: Path
) -> tuple[Any, list[Row]]:
    if step["op"] in CHECK:
        CHECK[step["op"]](data, rows, step, folder)
        return data, rows
    expected = EXPECT[step["op"]](rows, step, inner)
    if step["fault"]["kind"] == "driver" and rows:
        _run_until_killed(data, step, folder)
    result = RUN[step["op"]](data, step, folder)
    found = rows_of(result)
    compare(found, expected)
    if step["into"] != "memory" and step["op"] != "in place":
        compare(rows_of(type(result).load_memmap(folder / f"out-{step['number']}")), expected)
    return result, expected


def is_refusal(step: dict[str, Any], rows: list[Row], error: Exception) -> bool:
    """Whether a step cannot be run, and the library says so as it promises."""
    text = str(error)
    if not rows and step["how"]["chunksize"] == 0:
        return "the data has no rows" in text
    bad = step["fault"].get("rows", ()) if step["fault"]["kind"] == "raise" else ()
    if bad and {number_of(row) for row in rows} <= set(bad):
        return text.startswith("row ")  # every row fails: that is the function
    return False


def _run_until_killed(data: Any, step: dict[str, Any], folder: Path) -> None:
    """Run a step in a process of its own, which a worker kills in the middle."""
    process = multiprocessing.get_context("fork").Process(target=RUN[step["op"]], args=(data, step, folder))
    process.start()
    process.join(SECONDS)
    assert process.exitcode in (0, -signal.SIGKILL), f"the driver ended with {process.exitcode}"


def compare(found: list[Row], expected: list[Row]) -> None:
    """Raise AssertionError that names the first row that differs."""
    for number, (row, wanted) in enumerate(zip(found, expected, strict=True)):
        keys = sorted({*row, *wanted})
        differing = [key for key in keys if row.get(key) != wanted.get(key)]
        assert not differing, (
            f"row {number}: {differing[0]!r} is {str(row.get(differing[0]))[:100]}, "
            f"and should be {str(wanted.get(differing[0]))[:100]}"
        )
    wrong = f"{len(found)} rows, and {len(expected)} are right: {_ids(found)}, {_ids(expected)}"
    assert len(found) == len(expected), wrong


def _ids(rows: list[Row]) -> list[int]:
    return [number_of(row) for row in rows[:20] if "id" in row]


def script(program: dict[str, Any]) -> str:
    """How to run a program again."""
    return f"run it again:\n    python -m tests.programs.runner '{describe(program)}'"


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
    print("every row is right")
