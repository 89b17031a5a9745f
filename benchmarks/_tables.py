"""The tables of the README and of docs/performance.md, from the recorded benchmarks.

Every figure between the two marks of these pages comes from a file of ``benchmarks/results``; a test holds them equal.
"""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._harness import RESULTS

_ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"

THROUGHPUT = {
    "tdmap, `out=` memmap, default chunk": "tdmap out=memmap, chunk default",
    "tdmap, `out=` memmap, chunk 256": "tdmap out=memmap, chunk 256",
    "tdmap, `out=` memmap, chunk 256, workers by forkserver": "tdmap out=memmap, chunk 256, forkserver",
    "tdmap, `out=` memmap, chunk 16": "tdmap out=memmap, chunk 16",
    "tdmap, gathered, default chunk": "tdmap gather, chunk default",
    "tdmap, in place, chunk 256": "tdmap in place, chunk 256",
    "joblib (loky, memmap, warm), chunk 256": "joblib loky, memmap, chunk 256",
    "tensordict.map, `out=` memmap, chunk 256": "tensordict.map out=memmap, chunk 256",
    "tensordict.map, `out=` memmap, chunk 16": "tensordict.map out=memmap, chunk 16",
    "tensordict.map, gathered, chunk 256": "tensordict.map gather, chunk 256",
    "datasets.map, 2 processes": "datasets.map(num_proc=2), batch 256",
    "torch DataLoader that writes its batches": "DataLoader by batches, batch 256",
    "Ray Data": "Ray Data, batch 256",
}
"""Rows of the first table, and the cases that they show."""


class Recorded:
    """The files of a folder of results, by benchmark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, dict[str, Any]] = {}

    def has(self, name: str) -> bool:
        """Whether a benchmark has recorded anything."""
        return (self.folder / f"{name}.json").exists()

    def file(self, name: str) -> dict[str, Any]:
        """What a benchmark has recorded."""
        if name not in self._files:
            self._files[name] = json.loads((self.folder / f"{name}.json").read_text())
        return self._files[name]

    def case(self, name: str, case: str) -> dict[str, Any]:
        """One case of it.

        Raises:
            KeyError: there is none; names the benchmark.
        """
        for one in self.file(name)["cases"]:
            if one["name"] == case:
                found: dict[str, Any] = one
                return found
        raise KeyError(f"{name}.json has no case {case!r}")

    def ratio(self, name: str, case: str, inverse: bool = False, which: str = "ratio") -> float:
        """Median ratio of a case beside the one that it is compared with."""
        value = float(self.case(name, case)[which])
        return 1 / value if inverse else value


def number(value: float) -> str:
    """Three digits, or two of what is small; thousands with a thin gap.

    >>> number(0.7373), number(3.349), number(15.87), number(483254.4)
    ('0.74', '3.35', '15.9', '483 254')
    """
    if value >= 1000:
        return f"{round(value):,}".replace(",", " ")
    return f"{value:.{max(2 - max(math.floor(math.log10(max(value, 0.1))), 0), 0)}f}"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _facts(file: dict[str, Any]) -> str:
    """Where and when the rounds ran."""
    machine, settings = file["machine"], file.get("settings", {})
    rounds = settings.get("rounds") or file.get("rounds")
    parts = [f"{machine['cores']} cores"]
    if rounds:
        parts.append(f"{rounds} rounds")
    others = machine.get("cores_of_others")
    if others is not None:
        parts.append(f"{max(others.values()):.1f} cores of other programs' work meanwhile")
    else:
        parts.append(f"load {machine['load_1m']:.1f}")
    return ", ".join(parts)


def _throughput(recorded: Recorded) -> Iterator[str]:
    file = recorded.file("map_throughput")
    rows = number(file["settings"]["rows"])
    yield _paragraph(
        f"`benchmarks.map_throughput`: {rows} rows of uint8 `[3, 32, 32]` to float32, {file['settings']['workers']} "
        f"workers ({_facts(file)}). The hand-written loop runs in two forked processes over reserved memory-mapped "
        "files, at the same chunk size. The range is that of the rounds."
    )
    yield ""
    yield "| case | rows/s | × the hand-written loop | range |"
    yield "|---|---|---|---|"
    for label, name in THROUGHPUT.items():
        case = _find(recorded, name)
        if case is None:
            continue
        low, high = _spread(case, file)
        yield f"| {label} | {number(case['rate'])} | {number(case['ratio'])} | {number(low)} to {number(high)} |"
    yield ""
    calls = {one["start_method"]: one["beyond_ms"] for one in file["settings"]["latency"]}
    told = ", ".join(f"{number(value)} ms ({method})" for method, value in calls.items())
    yield _paragraph(f"Cost of a call over 1000 rows on a warm pool, without the work itself: {told}.")


def _find(recorded: Recorded, name: str) -> dict[str, Any] | None:
    cases = {one["name"]: one for one in recorded.file("map_throughput")["cases"]}
    found = cases.get(name) or cases.get(name.replace(", batch 256", " of 256"))
    return found if found is not None and found.get("ratio") else None


def _spread(case: dict[str, Any], file: dict[str, Any]) -> tuple[float, float]:
    """The smallest and the largest ratio of a round."""
    ratios = case.get("ratios")
    if not ratios:
        other = next(one for one in file["cases"] if one["name"] == case["against"])
        scale = case["units"] / other["units"]
        ratios = [theirs / mine * scale for mine, theirs in zip(case["seconds"], other["seconds"])]
    return min(ratios), max(ratios)


def _core(recorded: Recorded) -> Iterator[str]:
    file = recorded.file("core_ops")
    worst = max(case["ratio"] for case in file["cases"] if case["ratio"])
    mean = number(file["geometric_mean"])
    yield _paragraph(
        f"`benchmarks.core_ops`: {len(file['cases'])} operations of `tensordict_lite` take {mean} times as long as in "
        f"the `tensordict` package (geometric mean); the slowest takes {number(worst)} times as long."
    )


def _serialization(recorded: Recorded) -> Iterator[str]:
    settings = recorded.file("serialization")["settings"]
    tensors, megabytes = settings["transformer: tensors, MB, threads"][:2]
    small = settings["small: tensors, MB, threads"][0]
    yield _paragraph(
        f"`benchmarks.serialization`, time as a multiple of the other's time (below 1 is faster): a transformer of "
        f"{megabytes} MB in {tensors} tensors, and {number(small)} tensors of 256 bytes, one file each in this format."
    )
    yield ""
    yield "| | transformer | many small tensors |"
    yield "|---|---|---|"
    lines = {
        "save, beside `torch.save`": "save {}: ours",
        "save, beside `tensordict`": "save {}: ours (again)",
        "load, beside `torch.load(mmap=True)`": "load {}: ours (again)",
        "load, beside `tensordict`": "load {}: ours",
    }
    for label, case in lines.items():
        values = [number(recorded.ratio("serialization", case.format(what))) for what in ("transformer", "small")]
        yield f"| {label} | {' | '.join(values)} |"


BESIDE = (
    ("mean and variance of 2 GB of float32, beside two processes of numpy", "mapreduce_moments", "tdmap.reduce", False),
    ("10 M rows by 1 M keys, summed and counted, beside Polars", "mapreduce_group", "tdmap.group_by", False),
    ("the same beside DuckDB", "mapreduce_group", "DuckDB, own table", True),
    ("the same beside Dask DataFrame", "mapreduce_group", "Dask DataFrame, split_out=1", True),
    ("the same beside Ray Data", "mapreduce_group", "Ray Data groupby", True),
    ("5 GB in random order, beside `cp`: 12 KiB a row", "mapreduce_shuffle", "tdmap.shuffle, 12288 bytes a row", False),
    ("the same, 256 bytes a row", "mapreduce_shuffle", "tdmap.shuffle, 256 bytes a row", False),
    ("epochs of images, beside torch's DataLoader by batches", "loader", "torch DataLoader by batches", True),
    ("the same beside torch's DataLoader by rows", "loader", "torch DataLoader by rows", True),
    ("the same beside `datasets`", "loader", "datasets.IterableDataset in a DataLoader", True),
    ("the same beside mosaicml-streaming", "loader", "mosaicml-streaming in a DataLoader", True),
    ("the same beside grain", "loader", "grain", True),
    ("map to four times the bytes, in a fifth of their memory, beside two bare processes", "larger_than_memory",
     "tdmap, map", False),
    ("sort of narrow rows in that memory, beside two processes that copy them", "larger_than_memory", "tdmap, sort",
     False),
    ("shuffle of wide rows in that memory, beside the same", "larger_than_memory", "tdmap, shuffle", False),
    ("map from and to an S3 server, beside bare GETs and PUTs", "object_store", "tdmap map, store to store", False),
)  # fmt: skip
"""Rows of the last table: label, file, case, and whether its ratio is the other's over ours."""

ON_DEMAND = {"larger_than_memory", "object_store"}
"""Benchmarks that `run` leaves out unless they are named: their rows are shown once they have been recorded."""


def _beside(recorded: Recorded) -> Iterator[str]:
    facts = _facts(recorded.file("loader"))
    yield f"`benchmarks.mapreduce` and `benchmarks.loader`, 2 workers, all contenders interleaved ({facts}):"
    yield ""
    yield "| case | times as fast | work per CPU second |"
    yield "|---|---|---|"
    for label, file, case, inverse in BESIDE:
        if file in ON_DEMAND and not recorded.has(file):
            continue
        ratio, known = number(recorded.ratio(file, case, inverse)), recorded.case(file, case)["cpu_ratio"] is not None
        per_second = f"{number(recorded.ratio(file, case, inverse, 'cpu_ratio'))} ×" if known else ""
        yield f"| {label} | {ratio} × | {per_second} |"


def _of_tables(recorded: Recorded) -> Iterator[str]:
    file = recorded.file("tables")
    rows = number(file["settings"]["rows"])
    yield _paragraph(
        f"`benchmarks.tables`: {rows} rows of three columns, {file['settings']['workers']} workers ({_facts(file)}); "
        "times as fast as"
    )
    yield ""
    yield "| | Polars | DuckDB |"
    yield "|---|---|---|"
    for operation in dict.fromkeys(case["name"].partition(", ")[2] for case in file["cases"]):
        values = [number(recorded.ratio("tables", f"{peer}, {operation}")) for peer in ("Polars", "DuckDB")]
        yield f"| {operation} | {values[0]} × | {values[1]} × |"


def _overhead(recorded: Recorded) -> Iterator[str]:
    yield "`benchmarks.overhead`, time with a feature as a multiple of the time without it:"
    yield ""
    yield "| | ratio |"
    yield "|---|---|"
    for case in recorded.file("overhead")["cases"]:
        if case["ratio"] and case["name"].endswith(", with"):
            yield f"| {case['name'].removesuffix(', with')} | {number(case['ratio'])} |"


def render(folder: Path = RESULTS) -> str:
    """All tables, from the files of a folder."""
    recorded = Recorded(folder)
    parts = (_throughput, _core, _serialization, _beside, _of_tables, _overhead)
    return "\n\n".join("\n".join(part(recorded)) for part in parts)


GLANCE: dict[str, tuple[tuple[str, str, str, bool], ...]] = {
    "load epochs of images": (
        ("torch DataLoader", "loader", "torch DataLoader by batches", True),
        ("`datasets`", "loader", "datasets.IterableDataset in a DataLoader", True),
        ("mosaicml-streaming", "loader", "mosaicml-streaming in a DataLoader", True),
        ("grain", "loader", "grain", True),
    ),
    "group 10 M rows by 1 M keys, sum and count": (
        ("Polars", "mapreduce_group", "tdmap.group_by", False),
        ("DuckDB", "mapreduce_group", "DuckDB, own table", True),
        ("Dask DataFrame", "mapreduce_group", "Dask DataFrame, split_out=1", True),
        ("Ray Data", "mapreduce_group", "Ray Data groupby", True),
    ),
    **{
        f"{job} 5 M rows{how}": tuple((peer, "tables", f"{peer}, {case}", False) for peer in ("Polars", "DuckDB"))
        for job, how, case in (
            ("sort", " by an integer", "sort by integer"),
            ("join", "", "join"),
            ("filter", "", "filter"),
            ("filter", " by a function", "filter by function"),
        )
    },
    "mean and variance of 2 GB of float32": (
        ("two processes of NumPy", "mapreduce_moments", "tdmap.reduce", False),
    ),
    "shuffle 5 GB, 12 KiB per row": (("`cp`", "mapreduce_shuffle", "tdmap.shuffle, 12288 bytes a row", False),),
    "map from and to an S3 server": (("bare GETs and PUTs", "object_store", "tdmap map, store to store", False),),
}  # fmt: skip
"""Rows of the table in the README: a job, and its peers as in `BESIDE`."""

WIDEST = 2.0
"""The README leaves out a comparison if its largest ratio of a round is more than this many times its smallest."""


def glance(folder: Path = RESULTS) -> str:
    """The table of the README: one row per job, with every comparison that is certain enough."""
    recorded = Recorded(folder)
    lines = ["| job, 2 workers on 2 cores | speed of tdmap relative to (above 1 ×, tdmap is faster) |", "|---|---|"]
    wide = 0
    for job, peers in GLANCE.items():
        told = []
        for peer, file, case, inverse in peers:
            if file in ON_DEMAND and not recorded.has(file):
                continue
            low, high = _spread(recorded.case(file, case), recorded.file(file))
            if low == high or high > WIDEST * low:  # one round alone, or rounds that disagree
                wide += 1
            else:
                told.append(f"{peer}: **{number(recorded.ratio(file, case, inverse))} ×**")
        if told:
            lines.append(f"| {job} | {', '.join(told)} |")
    note = (
        "Each figure is the median over the rounds; in a round all contenders take turns. Comparisons of one round, "
        f"and those whose rounds differ by more than a factor of {WIDEST:g}, are left out here ({wide})."
    )
    return "\n".join([*lines, "", _paragraph(note)])


PAGES = {_ROOT / "README.md": glance, _ROOT / "docs" / "performance.md": render}
"""The pages that show tables, and which."""


def section(text: str) -> tuple[str, str, str]:
    """What is before the tables of a page, the tables, and what is behind."""
    before, _, rest = text.partition(BEGIN + "\n")
    tables, _, behind = rest.partition("\n" + END)
    return before + BEGIN + "\n", tables, "\n" + END + behind


def update(check: bool, *pages: Path, folder: Path = RESULTS) -> int:
    """Write the tables into the pages that show them, or only say whether they are there; the exit code.

    Args:
        check: change nothing.
        pages: files with the two marks. Default: `PAGES`.
        folder: of the recorded files.
    """
    wanted = {page: PAGES.get(page, render)(folder) for page in pages or PAGES}
    texts = {page: section(page.read_text()) for page in wanted}
    old = [page for page, (_, tables, _) in texts.items() if tables != wanted[page]]
    if not old:
        print("the tables of the README are those of the recorded files")
        return 0
    names = " and ".join(page.name for page in old)
    if check:
        print(f"the tables of {names} differ from the recorded files: python -m benchmarks tables", file=sys.stderr)
        return 1
    for page in old:
        before, _, behind = texts[page]
        page.write_text(before + wanted[page] + behind)
    print(f"wrote the tables of {names}")
    return 0
