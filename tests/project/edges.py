"""Delete edges from a copy of the tree: the rest must import, collect its tests and pass them.

    python -m tests.project.edges                           for each edge: import both packages, collect the tests
    python -m tests.project.edges nn --run tests/core -x    for one; and run these tests, with options of pytest

`EDGES` says what is deleted. The table in docs/design.md lists the same edges.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

PACKAGES = ("tdmap", "tensordict_lite")
OTHERS = ("benchmarks", "docs", "examples", "tests")
FACES = ("tdmap/__init__.py", "tensordict_lite/__init__.py")
"""Files that name the core and its edges. Imports of a deleted module go, and every line with a name from there."""

WHOLE_TREE = """
    tests/differential/*::* tests/frozen/test_frozen.py tests/project/test_design.py tests/project/test_doctests.py
    tests/project/test_edges.py tests/project/test_examples.py tests/project/test_layers.py
    tests/project/test_markdown.py tests/project/test_packaging.py tests/project/test_wheel.py tests/site tests/typing
""".split()
"""Tests that compare the tree with a record or the reference, or run all pages. They are left out with any edge."""


class Edge(NamedTuple):
    """What is deleted."""

    code: str
    """Files and folders of the package."""
    tests: str
    """Tests of the edge, and others that use it: files, folders, and patterns of test ids (`FILE::PATTERN`)."""
    takes: str = ""
    """Edges that need it: they are deleted with it."""


EDGES = {
    "nn": Edge(
        "tensordict_lite/nn",
        """tests/nn tests/functions/test_tensordict_modules.py tests/core/*::*Mod(* tests/core/*::*Seq(*
        tests/core/*::*Params(* tests/core/test_detach_locked.py::test_what_may_be_swapped_*""",
    ),
    "distributed": Edge("tensordict_lite/distributed", "tests/distributed"),
    "persistent": Edge(
        "tensordict_lite/persistent tdmap/stores/arrays.py",
        "tests/persistent tests/stores/test_arrays_as_rows.py",
        takes="datasets",
    ),
    "consolidated": Edge(
        "tensordict_lite/consolidated",
        """tests/consolidated tests/memmap/test_one_file_crash.py tests/memmap/test_safetensors.py
        tests/device/test_one_storage_gpu.py tests/engine/test_process_settings.py tests/*/*::*consolidate*
        tests/core/test_typed.py::*lazy_stacks_of_them* tests/core/test_wrong_files.py::*safetensors*""",
    ),
    "archive": Edge(
        "tensordict_lite/memmap/archive",
        """tests/memmap/test_archive.py tests/memmap/test_archive_safety.py tests/memmap/test_one_file_crash.py
        tests/device/test_one_storage_gpu.py tests/engine/test_process_settings.py tests/faults/test_others_files.py
        tests/machines/test_other_machines.py tests/*/*::*archive* tests/*/*::*.tdz*
        tests/consolidated/test_files.py::*missing* tests/consolidated/test_travel.py::*queues*
        tests/core/test_wrong_files.py::*folder-another*
        tests/core/test_wrong_files.py::*folder-empty* tests/core/test_wrong_files.py::*tdz* tests/faults/*::*unpack*
        tests/memmap/test_copy_on_write.py::*descriptors* tests/memmap/test_copy_on_write.py::*travels*
        tests/memmap/test_exchange.py::*unpack* tests/memmap/test_old_folders.py::*True-*
        tests/memmap/test_old_folders.py::*one_byte_more* tests/memmap/test_roundtrip.py::*without_a_file_form*
        tests/memmap/test_safetensors.py::*awkward* tests/memmap/test_safety.py::*no_dataset_there*
        tests/memmap/test_saving_again.py::*no_rows* tests/memmap/test_saving_again.py::*pack*
        tests/memmap/test_saving_again.py::*shorter* tests/memmap/test_sync.py::*one_file*
        tests/memmap/test_text.py::*not_mistaken*""",
    ),
    "cli": Edge(
        "tdmap/cli tdmap/doctor.py tdmap/__main__.py",
        """tests/project/test_cli.py tests/project/test_cli_commands.py tests/project/test_cli_look.py
        tests/project/test_cli_options.py tests/project/test_cli_outline.py tests/project/test_cli_tables.py
        tests/project/test_cli_terminal.py tests/project/test_demo.py tests/project/test_doctor.py
        tests/project/test_file_urls.py
        tests/diagnostics/test_profile_command.py tests/stores/test_cli_shards.py""",
    ),
    "datasets": Edge(
        "tdmap/datasets",
        """benchmarks/ingest.py benchmarks/language.py tests/benchmarks/test_language.py tests/core/test_frames.py
        tests/datasets
        tests/engine/test_process_settings.py tests/faults/test_others_files.py tests/project/test_file_urls.py
        tests/project/test_cli_tables.py tests/stores/test_arrays_as_rows.py tests/rows/test_rows_memory.py
        tests/rows/test_uneven_stacks.py::*different_lengths*""",
    ),
    "stores": Edge(
        "tdmap/stores",
        """tests/stores/test_arrays_as_rows.py tests/stores/test_object_store.py tests/stores/test_text_in_stores.py
        tests/stores/test_transports.py tests/stores/test_leading_out.py tests/stores/test_cli_shards.py
        tests/stores/test_results_in_shards.py::*go_to_a_store* tests/stores/test_resume_in_shards.py::*not_done_again*
        tests/stores/test_resume_in_shards.py::*others_look*""",
        takes="datasets",
    ),
    "ray": Edge(
        """tdmap/runtime/executors/raycluster.py tdmap/runtime/executors/raypool.py
        tdmap/runtime/executors/rayworkers.py""",
        "benchmarks/ray.py tests/ray tests/engine/test_ray_options.py",
    ),
    "reports": Edge(
        "tdmap/diagnostics/reports",
        """tests/diagnostics/test_notebook.py tests/diagnostics/test_profile_command.py
        tests/diagnostics/test_profiler.py tests/diagnostics/test_verdicts.py::*from_the_disk*""",
    ),
    "testing": Edge(
        "tdmap/testing",
        """tests/device/test_map_on_device.py tests/engine/test_executors.py tests/ray/test_ray_jobs.py
        tests/stores/test_arrays_as_rows.py""",
    ),
}


def deleted_with(name: str) -> list[Edge]:
    """An edge and those that need it."""
    edge = EDGES[name]
    return [edge, *(below for other in edge.takes.split() for below in deleted_with(other))]


def code_of(name: str) -> list[str]:
    """The files and folders of the packages that are deleted."""
    return [path for edge in deleted_with(name) for path in edge.code.split()]


def tests_of(name: str) -> list[str]:
    """The tests that are deleted."""
    return [*WHOLE_TREE, *(test for edge in deleted_with(name) for test in edge.tests.split())]


def copy_without(name: str, to: Path, *folders: str) -> tuple[list[str], list[str]]:
    """Copy some folders of the tree without an edge.

    Returns:
        The files that are deleted, and the lines of the faces.
    """
    gone = [*code_of(name), *tests_of(name)]
    found = [file for folder in folders for file in (ROOT / folder).rglob("*")]
    files = [file.relative_to(ROOT).as_posix() for file in [*found, *ROOT.glob("[!.]*")] if file.is_file()]
    deleted = [path for path in files if any(path == one or path.startswith(f"{one}/") for one in gone)]
    for path in {*files} - {*deleted}:
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, to / path)  # with its time, so that what is compiled of it stays true
    modules = tuple(path.removesuffix(".py").replace("/", ".") for path in code_of(name))
    deleted = [path for path in deleted if not path.endswith(".pyc")]
    return deleted, [line for face in FACES for line in _cut(to / face, modules)]


def _cut(face: Path, modules: tuple[str, ...]) -> list[str]:
    """Delete the lines that import some modules or have a name from there, and return them."""
    text = face.read_text()
    nodes, lines = list(ast.walk(ast.parse(text))), text.splitlines()
    names, cut = set[str](), set[int]()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if f"{node.module}.{alias.name}.".startswith(tuple(f"{module}." for module in modules)):
                    names.add(alias.asname or alias.name)
                    cut.update(range(node.lineno, (node.end_lineno or 0) + 1))
    if names:
        word = re.compile(rf"\b(?<!\.)({'|'.join(names)})\b")
        cut.update(number for number, line in enumerate(lines, 1) if word.search(line))
    for node in nodes:
        if isinstance(node, ast.If) and cut.issuperset(range(node.lineno + 1, (node.end_lineno or 0) + 1)):
            cut.add(node.lineno)
    face.write_text("".join(f"{line}\n" for number, line in enumerate(lines, 1) if number not in cut))
    return [lines[number - 1] for number in sorted(cut)]


def python(tree: Path, *args: str, edge: str = "", capture: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of a copy."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "WITHOUT_EDGE": edge}
    return subprocess.run([sys.executable, *args], cwd=tree, env=environment, capture_output=capture, text=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out single tests of the deleted edge: this file is a plugin of pytest in the copy."""
    patterns = [test for test in tests_of(os.environ["WITHOUT_EDGE"]) if "::" in test]
    out = [item for item in items if any(fnmatchcase(item.nodeid, pattern) for pattern in patterns)]
    items[:] = [item for item in items if item not in set(out)]
    config.hook.pytest_deselected(items=out)


EVERY_NAME = (
    "import tdmap, tensordict_lite\nfor one in (tdmap, tensordict_lite): [getattr(one, n) for n in one.__all__]"
)


def check(name: str, run: list[str] | None) -> bool:
    """Delete an edge from a copy, and say what came of it."""
    pytest_in = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.project.edges")
    with tempfile.TemporaryDirectory(prefix="tdmap-without-") as folder:
        tree = Path(folder)
        files, lines = copy_without(name, tree, *PACKAGES, *OTHERS)
        print(f"{name}: without {len(files)} files, and {len(lines)} lines of {' and '.join(FACES)}", flush=True)
        for step in (("-c", EVERY_NAME), (*pytest_in, "--collect-only")):
            done = python(tree, *step, edge=name)
            if done.returncode:
                print(done.stdout[-6000:], done.stderr[-6000:])
                return False
            print(f"    {(done.stdout or 'both packages are imported').rstrip().splitlines()[-1]}", flush=True)
        return run is None or python(tree, *pytest_in, "-n", "2", *run, edge=name, capture=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.project.edges", description=__doc__.split("\n")[0])
    parser.add_argument("edges", nargs="*", metavar="EDGE", help=f"one of {', '.join(EDGES)}; default: each in turn")
    parser.add_argument("--run", nargs=argparse.REMAINDER, help="run the tests that are left; arguments of pytest")
    given = parser.parse_args()
    failed = [name for name in given.edges or EDGES if not check(name, given.run)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
