"""Run several ways of doing the same thing in turns, and say by how much they differ.

A machine is never quiet, so a figure alone means little. Every case of a benchmark therefore runs once a
round, in a fresh random order each round, and a ratio between two cases is the median of the ratios *within*
the rounds: what slows the whole machine for some seconds slows both sides of a ratio. Where a case times itself
with a :class:`Stopwatch`, the processor seconds of this process and all its children count too: work that others
do meanwhile changes them least.

>>> bench = Benchmark("demo", unit="items")
>>> bench.add("floor", lambda: sum(range(1000)), units=1000, kind="floor")
>>> bench.add("ours", lambda: sum(range(1000)), units=1000, kind="ours", against="floor", wanted=0.01)
>>> bench.run(rounds=3, quiet=True)
>>> bench.results["ours"].met
True
"""

from __future__ import annotations

import gc
import json
import os
import platform
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks._quiet import ALLOWED, Others, cores_of_others, own_seconds, quietness

RESULTS = Path(__file__).parent / "results"

Kind = Literal["floor", "ours", "reference", "peer"]
#: "speed": rate of this case over rate of the other, at least so much is wanted
#: "time": seconds over seconds, at most so much is wanted.
#: "lead": seconds over those of the other, at least so much is wanted: how many times as fast the other one is.
Measure = Literal["speed", "time", "lead"]

_PEERS = ("joblib", "datasets", "ray", "dask", "duckdb", "polars", "grain")

_COLOURS = {"floor": "#7a7a7a", "ours": "#1f77b4", "reference": "#d9822b", "peer": "#c9b458"}


class Seconds(float):
    """Seconds on the clock, with those of the processors."""

    cpu: float

    def __new__(cls, wall: float, cpu: float) -> Seconds:
        made = super().__new__(cls, wall)
        made.cpu = cpu
        return made

    def __truediv__(self, parts: float) -> Seconds:  # type: ignore[override]
        return Seconds(float(self) / parts, self.cpu / parts)


class Stopwatch:
    """Times a part of a case, for the case to return.

    >>> with Stopwatch() as watch:
    ...     _ = sum(range(100_000))
    >>> watch.seconds > 0 and watch.seconds.cpu >= 0
    True
    """

    seconds: Seconds

    def __enter__(self) -> Stopwatch:
        self._cpu = own_seconds()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        wall = time.perf_counter() - self._start
        self.seconds = Seconds(wall, own_seconds() - self._cpu)


@dataclass(frozen=True)
class Case:
    """One way of doing the work."""

    name: str
    """Shown in the table; unique within the benchmark."""
    run: Callable[[], float | None]
    """Does the work once; may return its own seconds, where preparation must not count."""
    units: int
    """How many rows, bytes or calls one run handles."""
    kind: Kind = "ours"
    """Whose work it is; picks the colour in the chart."""
    group: str = ""
    """Cases of one group are drawn together."""
    against: str | None = None
    """Name of the case that this one is compared with."""
    wanted: float | None = None
    """The ratio to reach: a floor for "speed" and "lead", a ceiling for "time"."""
    measure: Measure = "speed"
    """What the ratio is a ratio of."""
    rounds: int | None = None
    """Fewer rounds than the others, for a case that takes very long."""


@dataclass
class Result:
    """What the rounds gave for one case."""

    case: Case
    seconds: list[float] = field(default_factory=list)
    ratio: float | None = None
    ratios: list[float] = field(default_factory=list)
    """The ratio of each round."""
    cpu_ratio: float | None = None
    """The same ratio in processor seconds, where both cases measured them."""
    error: str | None = None

    @property
    def median(self) -> float:
        """Median seconds of a run; NaN when no run ended well."""
        return statistics.median(self.seconds) if self.seconds else float("nan")

    @property
    def rate(self) -> float:
        """Units a second at the median."""
        return self.case.units / self.median if self.seconds else float("nan")

    @property
    def met(self) -> bool | None:
        """Whether the wanted ratio was reached; None where nothing is wanted or nothing was measured."""
        if self.case.wanted is None or self.ratio is None:
            return None
        if self.case.measure in ("speed", "lead"):
            return self.ratio >= self.case.wanted
        return self.ratio <= self.case.wanted


class Benchmark:
    """A set of cases, their interleaved runs, and the table, JSON file and chart that come of them.

    Args:
        name: file stem of the JSON and PNG under ``benchmarks/results``.
        unit: what a rate counts ("rows", "MB", "calls").
        title: headline of the table and chart.
    """

    def __init__(self, name: str, *, unit: str = "rows", title: str | None = None) -> None:
        self.name = name
        self.unit = unit
        self.title = title or name
        self.cases: dict[str, Case] = {}
        self.results: dict[str, Result] = {}
        self.settings: dict[str, Any] = {}
        self.quiet: dict[str, Any] = {}
        """What others did on this machine meanwhile."""
        self._round_seconds: list[dict[str, Any]] = []

    def add(self, name: str, run: Callable[[], Any], *, units: int, **options: Any) -> None:
        """Add one case; ``options`` are the further fields of :class:`Case`."""
        if name in self.cases:
            raise ValueError(f"two cases of benchmark {self.name!r} are called {name!r}")
        self.cases[name] = Case(name, run, units, **options)

    def run(
        self, rounds: int = 5, *, only: str | None = None, warmup: int = 1, seed: int = 0, quiet: bool = False
    ) -> None:
        """Run every case ``warmup + rounds`` times, in turns.

        Args:
            only: a regular expression; cases that do not match are left out, but for those compared against.
            warmup: rounds that are not counted (imports, page cache, pools).
            seed: of the order of cases within a round.
        """
        chosen = self._choose(only)
        self.results = {case.name: Result(case) for case in chosen}
        self._round_seconds = []
        order = random.Random(seed)
        before, others = cores_of_others(), Others()
        for number in range(-warmup, rounds):
            shuffled = list(chosen)
            order.shuffle(shuffled)
            seconds: dict[str, Any] = {}
            for case in shuffled:
                result = self.results[case.name]
                if result.error is not None or (case.rounds is not None and number >= case.rounds):
                    continue
                try:
                    seconds[case.name] = _time_once(case.run)
                except Exception as error:
                    result.error = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                    print(f"  {case.name}: {result.error}", file=sys.stderr)
                    continue
                if not quiet:
                    label = "warm-up" if number < 0 else f"round {number + 1}/{rounds}"
                    print(f"  [{label}] {case.name}: {seconds[case.name]:.4g} s", file=sys.stderr, flush=True)
            if number >= 0:
                self._round_seconds.append(seconds)
        self.quiet = quietness(before, others.cores())
        self._conclude()

    def _choose(self, only: str | None) -> list[Case]:
        if only is None:
            return list(self.cases.values())
        names = {name for name in self.cases if re.search(only, name)}
        if not names:
            raise SystemExit(f"--only {only!r} matches none of: {', '.join(self.cases)}")
        names |= {self.cases[n].against for n in names if self.cases[n].against in self.cases}  # type: ignore[misc]
        return [case for case in self.cases.values() if case.name in names]

    def _conclude(self) -> None:
        for name, result in self.results.items():
            result.seconds = [seconds[name] for seconds in self._round_seconds if name in seconds]
            other = result.case.against
            if other is None or other not in self.results:
                continue
            scale = self.cases[other].units / result.case.units if result.case.measure == "speed" else 1.0
            pairs = [(s[name], s[other] / scale) for s in self._round_seconds if name in s and other in s]
            result.ratios = [b / a if result.case.measure == "speed" else a / b for a, b in pairs]
            result.ratio = _median_ratio(pairs, result.case.measure)
            cpu = [
                (s[name].cpu, s[other].cpu / scale)
                for s in self._round_seconds
                if isinstance(s.get(name), Seconds) and isinstance(s.get(other), Seconds) and s[name].cpu > 0
            ]
            result.cpu_ratio = _median_ratio([pair for pair in cpu if pair[1] > 0], result.case.measure)

    def geometric_mean(self, kind: Kind = "ours") -> float | None:
        """Geometric mean of the ratios of every case of ``kind``; None where there is none."""
        ratios = [r.ratio for r in self.results.values() if r.case.kind == kind and r.ratio]
        return statistics.geometric_mean(ratios) if ratios else None

    def table(self) -> str:
        """The results as a Markdown table, in the order in which the cases were added."""
        head = ["case", f"{self.unit}/s", "median", "ratio", "spread", "cpu ratio", "against", "wanted", "met"]
        rows = [_table_row(result) for result in self.results.values()]
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        lines = [f"### {self.title}", "", _line(head, widths), _line(["-" * w for w in widths], widths)]
        lines += [_line(row, widths) for row in rows]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything measured, as plain data."""
        cases = []
        for r in self.results.values():
            c = r.case
            cases.append(
                {
                    "name": c.name, "kind": c.kind, "group": c.group, "units": c.units, "median_s": r.median,
                    "rate": r.rate, "seconds": r.seconds, "against": c.against, "measure": c.measure,
                    "cpu_seconds": [s.cpu for s in r.seconds if isinstance(s, Seconds)],
                    "ratio": r.ratio, "ratios": r.ratios, "cpu_ratio": r.cpu_ratio,
                    "wanted": c.wanted, "met": r.met, "error": r.error,
                }
            )  # fmt: skip
        return {
            "benchmark": self.name, "title": self.title, "unit": self.unit, "settings": self.settings,
            "machine": {**machine(), **self.quiet}, "cases": cases,
        }  # fmt: skip

    def save(self, folder: Path = RESULTS, *, chart: bool = True) -> None:
        """Write ``<name>.json`` and, where matplotlib is installed, ``<name>.png`` into ``folder``.

        If other programs used the CPU, the file is ``<name>.busy.json``, which no table reads, unless the variable
        BENCH_BUSY is set. Both files say how much CPU the other programs used.
        """
        folder.mkdir(parents=True, exist_ok=True)
        stem = recorded_stem(self.name, bool(self.quiet.get("busy")))
        text = json.dumps(_without_nan(self.to_dict()), indent=1)
        (folder / f"{stem}.json").write_text(text + "\n")
        if chart:
            try:
                self.chart(folder / f"{stem}.png")
            except ImportError:
                print("no chart: matplotlib is not installed (extra `bench`)", file=sys.stderr)

    def report(self, folder: Path = RESULTS, *, chart: bool = True) -> None:
        """Print the table and save the JSON file and the chart."""
        print()
        print(self.table())
        print()
        self.save(folder, chart=chart)

    def chart(self, path: Path) -> None:
        """Draw a bar a case (rate, with the range over the rounds) into a PNG file."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        shown = [r for r in self.results.values() if r.seconds]
        figure, axes = pyplot.subplots(figsize=(10, 1.4 + 0.34 * len(shown)))
        for place, r in enumerate(shown):
            low, high = r.case.units / max(r.seconds), r.case.units / min(r.seconds)
            axes.barh(place, r.rate, color=_COLOURS[r.case.kind], height=0.72)
            axes.plot([low, high], [place, place], color="black", linewidth=1)
            text = f" {r.rate:,.0f}" + (f"   ({r.ratio:.2f} × {r.case.against})" if r.ratio is not None else "")
            axes.text(max(high, r.rate), place, text, va="center", fontsize=8)
        axes.set_yticks(range(len(shown)), [r.case.name for r in shown], fontsize=9)
        axes.invert_yaxis()
        axes.set_xlim(0, max((r.case.units / min(r.seconds) for r in shown), default=1) * 1.35)
        axes.set_xlabel(f"{self.unit} per second (bar: median of the rounds, line: their range)")
        axes.set_title(self.title, loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        kinds = [k for k in _COLOURS if any(r.case.kind == k for r in shown)]
        handles = [pyplot.Rectangle((0, 0), 1, 1, color=_COLOURS[k]) for k in kinds]
        axes.legend(handles, kinds, loc="lower right", frameon=False, fontsize=8)
        figure.tight_layout()
        figure.savefig(path, dpi=130)
        pyplot.close(figure)


def recorded_stem(name: str, busy: bool) -> str:
    """The file that figures go into, without its ending; says so if it is not the usual one."""
    if not busy or os.environ.get(ALLOWED):
        return name
    print(
        f"this machine was busy with something else, so {name}.json was not recorded: see {name}.busy.json, or set "
        f"{ALLOWED}=1 to record all the same",
        file=sys.stderr,
    )
    return f"{name}.busy"


def _time_once(run: Callable[[], float | None]) -> float:
    gc.collect()
    start = time.perf_counter()
    own = run()
    elapsed = time.perf_counter() - start
    return own if isinstance(own, float) else elapsed


def _median_ratio(pairs: list[tuple[float, float]], measure: Measure) -> float | None:
    """Of (mine, theirs) seconds: theirs over mine for "speed", mine over theirs for "time"."""
    if not pairs:
        return None
    if measure == "speed":
        return statistics.median(theirs / mine for mine, theirs in pairs)
    return statistics.median(mine / theirs for mine, theirs in pairs)


def per_call(
    fn: Callable[[], Any], *, budget: float = 0.02, clock: Callable[[], float] = time.perf_counter
) -> Callable[[], float]:
    """Make a case of a call too short to time alone: a run repeats it for ``budget`` s, and counts one.

    Args:
        fn: the call.
        budget: seconds of a run.
        clock: gives seconds; ``time.thread_time`` leaves out what else the machine does, and other threads.

    >>> seconds = per_call(lambda: None)()
    >>> 0 < seconds < 1e-3
    True
    """
    repeats = [0]

    def run() -> float:
        if not repeats[0]:
            count = 1
            while (spent := _loop(fn, count, clock)) < budget / 4:
                count *= 2
            repeats[0] = max(1, int(count * budget / spent))
        return _loop(fn, repeats[0], clock) / repeats[0]

    return run


def _loop(fn: Callable[[], Any], count: int, clock: Callable[[], float]) -> float:
    times = range(count)
    start = clock()
    for _ in times:
        fn()
    return clock() - start


def machine() -> dict[str, Any]:
    """The facts of this machine that a reader needs to judge a figure, and no name of it."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"model name\s*:\s*(.+)", info.read_text())
        model = found.group(1) if found else model
    versions: dict[str, str] = {"python": platform.python_version()}
    for package in ("torch", "numpy", "tensordict", *_PEERS):
        try:
            from importlib.metadata import version

            versions[package] = version(package)
        except ImportError:
            continue
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": model, "cores": cores, "load_1m": round(os.getloadavg()[0], 2),
        "system": platform.system(), "versions": versions,
    }  # fmt: skip


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: a case that failed has null there."""
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_nan(v) for v in value]
    return value


def _table_row(result: Result) -> list[str]:
    case = result.case
    if result.error is not None:
        return [case.name, "failed", "", "", "", "", case.against or "", "", result.error[:60]]
    wanted = "" if case.wanted is None else f"{'≤' if case.measure == 'time' else '≥'} {case.wanted:g}"
    ratio = "" if result.ratio is None else f"{result.ratio:.3g}"
    cpu = "" if result.cpu_ratio is None else f"{result.cpu_ratio:.3g}"
    met = {True: "yes", False: "NO", None: ""}[result.met]
    spread = f"{min(result.ratios):.3g} to {max(result.ratios):.3g}" if result.ratios else ""
    return [
        case.name,
        f"{result.rate:,.0f}",
        _seconds(result.median),
        ratio,
        spread,
        cpu,
        case.against or "",
        wanted,
        met,
    ]


def _seconds(value: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths)) + " |"
