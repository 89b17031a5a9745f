"""What is built can be installed and used without the checkout, and brings what it says."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[2]


def python(*words: str, cwd: Path, **environment: str) -> str:
    """The output of a fresh interpreter."""
    env = {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **environment}
    done = subprocess.run([sys.executable, *words], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    python("-m", "hatchling", "build", "-d", str(folder), cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_asks_for_no_more_than_the_readme_says(wheel: Path) -> None:
    asked = [line for line in metadata_of(wheel).get_all("Requires-Dist", []) if "extra ==" not in line]
    names = {re.split(r"[^\w.-]", line)[0] for line in asked}
    told = re.search(r"tdmap requires (.*?)\. Optional", (ROOT / "README.md").read_text(), re.DOTALL)
    assert told and set(re.findall(r"`([\w-]+)`", told[1])) == names


def test_the_wheel_holds_both_packages_their_types_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"tdmap", "tensordict_lite"}
    assert {"tdmap/py.typed", "tensordict_lite/py.typed"} <= set(names)
    tops = [ROOT / "tdmap", ROOT / "tensordict_lite"]
    sources = {path.relative_to(ROOT).as_posix() for top in tops for path in top.rglob("*.py*")}
    assert {name for name in sources if "__pycache__" not in name} - set(names) == set()


def test_the_sdist_holds_what_check_and_docs_need(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "Makefile", "constraints.txt", "zensical.toml", "pyproject.toml", "README.md", "docs/index.md",
        "docs/site/pages.py", "examples/notebook.ipynb", "tests/project/test_wheel.py", "benchmarks/__main__.py",
    }  # fmt: skip
    assert wanted - names == set()


def test_the_installed_wheel_works_far_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    place, here = tmp_path / "installed", tmp_path / "here"
    here.mkdir()
    with zipfile.ZipFile(wheel) as archive:  # what an installer does with a wheel of pure Python
        archive.extractall(place)
    code = (
        "import torch, tdmap, tensordict_lite\n"
        f"assert tdmap.__file__.startswith({str(place)!r}) and tensordict_lite.__file__.startswith({str(place)!r})\n"
        "data = tensordict_lite.TensorDict({'x': torch.arange(100)}, [100]).memmap('data')\n"
        "print(data.map(lambda c: {'y': c['x'] + 1}, out='out', num_workers=2)['y'].sum().item())\n"
        "from tdmap.cli import app\n"
        "app(['info', 'out', '--json'])\n"
    )
    printed = python("-c", code, cwd=here, PYTHONPATH=str(place))
    assert printed.startswith("5050\n") and '"ok": true' in printed
