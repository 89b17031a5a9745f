"""Is this machine busy with something else? Whether a figure can be recorded depends on it.

Counted are the processor seconds of the whole machine that are not of this process and those below it: before a run
for a moment, and during the run.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import psutil

BUSY = 0.15
"""So many cores' worth of others' work, a core of this machine, is too much."""

ALLOWED = "BENCH_BUSY"
"""Set in the environment, a busy machine records into the usual file all the same."""


def own_seconds() -> float:
    """Processor seconds of this process, its children that have ended, and all that live below it."""
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
        except psutil.Error:
            continue
    return total


def _machine_seconds() -> float:
    times = psutil.cpu_times()._asdict()
    return sum(times.get(name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))


@dataclass
class Others:
    """What others do on this machine, from the moment this is made."""

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._own, self._all = own_seconds(), _machine_seconds()

    def cores(self) -> float:
        """Cores that others have used on average since then."""
        seconds = max(time.monotonic() - self._began, 1e-6)
        return max(_machine_seconds() - self._all - (own_seconds() - self._own), 0.0) / seconds


def cores_of_others(seconds: float = 0.3) -> float:
    """Cores that others use at this moment."""
    others = Others()
    time.sleep(seconds)
    return others.cores()


def quietness(before: float, during: float) -> dict[str, Any]:
    """What a recorded file says about it.

    >>> quietness(0.0, 1.5)["busy"], quietness(0.01, 0.02)["busy"]
    (True, False)
    """
    share = max(before, during) / (psutil.cpu_count() or 1)
    return {"cores_of_others": {"before": round(before, 2), "during": round(during, 2)}, "busy": share > BUSY}
