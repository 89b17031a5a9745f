"""Runs a program again and again, killing it with all of its workers as soon as it has got on, until it is done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def kill_until_done(script: str, out: Path, most: int = 2) -> int:
    """How often it was killed, `most` times at most.

    Args:
        script: Python code; resumes what is in `out`.
        out: folder of the run's journal.
    """
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for kills in range(most + 1):
        before: int | None = None
        process = subprocess.Popen(
            [sys.executable, "-c", script], env=env, start_new_session=True, stderr=subprocess.PIPE, text=True
        )
        while process.poll() is None:
            size = _journal_bytes(out)
            if before is None:
                before = size
            elif kills < most and size is not None and size > before:
                os.killpg(process.pid, signal.SIGKILL)
                break
            time.sleep(0.001)
        _, problems = process.communicate()
        if process.returncode == 0:
            return kills
        assert process.returncode == -signal.SIGKILL, problems
    raise AssertionError("it did not come to its end")


def _journal_bytes(out: Path) -> int | None:
    try:
        return (out / ".tdmap" / "journal").stat().st_size or None
    except FileNotFoundError:
        return None


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a dataset but those of its run."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".tdmap" not in path.parts
    }
