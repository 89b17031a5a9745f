"""What a user installs: both packages, their types, few dependencies, pins without surprises."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", ["tdmap", "tensordict_lite"])
def test_package_ships_its_types(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()


def test_importing_the_engine_imports_no_optional_package() -> None:
    code = (
        "import sys, tdmap, tensordict_lite\n"
        "optional = {'ray', 'datasets', 'transformers', 'PIL', 'sklearn', 'skimage', 'pandas', 'matplotlib',"
        " 'joblib', 'tensordict', 'typer', 'rich'}\n"
        "print(*sorted(optional & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert ran.stdout.split() == []


def test_data_package_does_not_import_the_engine() -> None:
    code = "import sys, tensordict_lite; print(*[m for m in sys.modules if m.split('.')[0] == 'tdmap'])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert ran.stdout.split() == []


def test_constraints_pin_every_requirement_exactly() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert "torch==2.13.0" in lines
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[^;\s]+(; python_version >= '3\.11')?", line) for line in lines)
    pinned = {re.split("==", line)[0].lower().replace("_", "-") for line in lines}
    text = (ROOT / "pyproject.toml").read_text()
    listed = text[text.index("\ndependencies = [") : text.index("[project.scripts]")]
    names = re.findall(r'"([A-Za-z][A-Za-z0-9_-]*)(?:\[[a-z]+\])?[^"]*"', listed)
    wanted = {name.lower().replace("_", "-") for name in names} - {"tdmap"}
    assert {"torch", "pytest", "ray"} <= wanted
    assert wanted - pinned == set()


def test_installed_command_has_an_entry_point() -> None:
    try:
        entries = metadata.distribution("tdmap").entry_points
    except metadata.PackageNotFoundError:
        pytest.skip("tdmap is used from its checkout, not installed")
    assert [e.value for e in entries if e.name == "tdmap"] == ["tdmap.cli:main"]
