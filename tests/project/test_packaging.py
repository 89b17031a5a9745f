"""What a user installs: both packages, their types, few dependencies, pins without surprises."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED_AS = {
    "pillow": "PIL",
    "scikit-learn": "sklearn",
    "scikit-image": "skimage",
}
FOR_WORK_ON_THE_PROJECT = {"bench", "dev", "docs", "gpu", "test"}


def requirements(lines: list[str]) -> set[str]:
    """The distributions that these lines name, without extras, versions, and this project itself."""
    names = {re.match(r"[A-Za-z0-9._-]+", line)[0].lower().replace("_", "-") for line in lines}
    return names - {"tdmap"}


def modules(lines: list[str]) -> set[str]:
    """The modules that these requirements bring."""
    return {IMPORTED_AS.get(name, name.replace("-", "_")) for name in requirements(lines)}


def imports(folder: str) -> dict[str, set[str]]:
    """The packages of others that a folder imports, and where."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                found.setdefault(name.partition(".")[0], set()).add(f"{path.relative_to(ROOT)}:{node.lineno}")
    newer = {"annotationlib"}  # of the standard library, since Python 3.14
    return {k: v for k, v in found.items() if k not in {*sys.stdlib_module_names, *newer, "tdmap", "tensordict_lite"}}


@pytest.mark.parametrize("package", ["tdmap", "tensordict_lite"])
def test_package_ships_its_types(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()


@pytest.mark.parametrize("package", ["tdmap", "tensordict_lite"])
def test_every_package_that_is_imported_is_a_declared_requirement(package: str) -> None:
    extras = [line for name, lines in PROJECT["optional-dependencies"].items() for line in lines]
    declared = modules(PROJECT["dependencies"]) | modules(extras)
    assert {name: where for name, where in imports(package).items() if name not in declared} == {}


def test_every_extra_for_users_brings_what_the_code_uses() -> None:
    texts = [
        path.read_text()
        for folder in ("tdmap", "tensordict_lite", "examples")
        for path in ROOT.glob(f"{folder}/**/*.py")
    ]
    for extra, lines in PROJECT["optional-dependencies"].items():
        if extra not in FOR_WORK_ON_THE_PROJECT:
            for module in modules(lines):
                assert any(re.search(rf"\b{module}\b", text) for text in texts), (
                    f"extra {extra!r}: {module} is not used"
                )


def test_readme_lists_every_extra() -> None:
    table = (ROOT / "README.md").read_text().partition("| extra | for |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:]))) == set(
        PROJECT["optional-dependencies"]
    )


def test_importing_the_engine_adds_few_megabytes_and_no_package_of_others() -> None:
    """Beside torch, and what torch imports; what a call needs is imported by that call."""
    code = (
        "import sys, torch, psutil\n"
        "process, before = psutil.Process(), set(sys.modules)\n"
        "memory = process.memory_info().rss\n"
        "import tensordict_lite\n"
        "print(*[name for name in sys.modules if name.partition('.')[0] == 'tdmap'])\n"
        "import tdmap\n"
        "print((process.memory_info().rss - memory) >> 20)\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    of_the_engine, megabytes, modules = ran.stdout.splitlines()
    assert not of_the_engine, "the data package imports the engine"
    assert int(megabytes) <= 25
    assert set(modules.split()) <= {"tdmap", "tensordict_lite", "torch", "numpy"}


def test_names_are_imported_when_they_are_asked_for() -> None:
    code = (
        "import sys, tdmap\n"
        "print(*[name for name in ('torch', 'tdmap.ops') if name in sys.modules])\n"
        "offered = {name for name in dir(tdmap) if not name.startswith('_')}\n"
        "print(*[name for name in tdmap.__all__ if name not in offered or getattr(tdmap, name, None) is None])\n"
        "print(hasattr(tdmap, 'sorted'), tdmap.sort is tdmap.ops.sort.sort, tdmap.datasets.__name__)\n"
        "import tdmap.runtime.executors.rayworkers\n"
        "print('ray' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert ran.stdout.splitlines() == ["", "", "False True tdmap.datasets", "False"]


def test_the_command_shows_its_help_without_torch() -> None:
    code = (
        "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules))\n"
        "from tdmap.cli import app; app(['--help'])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "Usage: " in ran.stdout and ran.stdout.endswith("False\n")


def test_constraints_pin_every_requirement_exactly() -> None:
    text = (ROOT / "constraints.txt").read_text()
    head, lines = re.findall("^#.*$", text, re.MULTILINE), re.findall("^[^#\n].*$", text, re.MULTILINE)
    assert "uv pip compile pyproject.toml --universal" in "\n".join(head)
    assert not re.search(r"//|[\s=\"']/", "\n".join(head)), "a host or a path of the machine that wrote it"
    assert any(re.match(r"torch==2\.13\.0( ;|$)", line) for line in lines)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[^;\s]+( ; .+)?", line) for line in lines)
    pinned = {re.split("==", line)[0].lower().replace("_", "-") for line in lines}
    wanted = requirements([*PROJECT["dependencies"], *sum(PROJECT["optional-dependencies"].values(), [])])
    assert {"torch", "pytest", "ray"} <= wanted
    assert wanted - pinned == set()


def test_installed_command_has_an_entry_point() -> None:
    try:
        entries = metadata.distribution("tdmap").entry_points
    except metadata.PackageNotFoundError:
        pytest.skip("tdmap is used from its checkout, not installed")
    assert [e.value for e in entries if e.name == "tdmap"] == ["tdmap.cli:main"]
