"""The benchmarks as one program.

python -m benchmarks run                     # all of them, and the tables of the README from what they record
python -m benchmarks run overhead loader     # some
python -m benchmarks compare OLD NEW         # files or folders: what changed by more than its spread
python -m benchmarks tables [--check]        # the tables of the README from benchmarks/results
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ALL = ("map_throughput", "memory", "core_ops", "serialization", "overhead", "mapreduce", "tables", "loader", "ingest")
MORE = ("functional", "gpu", "device", "larger_than_memory", "object_store", "language", "arrays")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="run benchmarks and record what they give")
    runs.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join((*ALL, *MORE))}")
    compares = commands.add_parser("compare", help="what changed by more than its spread; exit code 1 if for the worse")
    compares.add_argument("old", type=Path)
    compares.add_argument("new", type=Path)
    tables = commands.add_parser("tables", help="write the tables of the README")
    tables.add_argument("--check", action="store_true", help="change nothing; exit code 1 if they differ")
    options = parser.parse_args()
    if options.command == "compare":
        from benchmarks._compare import compare

        for path in (options.old, options.new):
            if not path.exists():
                parser.error(f"{path} does not exist")
        return compare(options.old, options.new)
    if options.command == "tables":
        from benchmarks._tables import update

        return update(options.check)
    unknown = [name for name in options.names if name not in (*ALL, *MORE)]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join((*ALL, *MORE))}")
    return run(options.names or list(ALL))


def run(names: list[str]) -> int:
    """Each in a process of its own; the last exit code that is not 0."""
    worst = 0
    for name in names:
        print(f"== {name}", flush=True)
        worst = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode or worst
    from benchmarks._tables import update

    return update(False) or worst


if __name__ == "__main__":
    sys.exit(main())
