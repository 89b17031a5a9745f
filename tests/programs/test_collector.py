"""Importing the package leaves the garbage collector as it was."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

import tdmap


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_as_it_was(is_on: bool) -> None:
    (gc.enable if is_on else gc.disable)()
    assert callable(tdmap.__getattr__("map"))
    assert gc.isenabled() is is_on
    with pytest.raises(AttributeError):
        tdmap.__getattr__("nothing")
    assert gc.isenabled() is is_on


def test_a_program_that_imports_the_package_has_its_collector() -> None:
    program = "import gc; on = [gc.isenabled()]; import tdmap; on.append(gc.isenabled()); gc.disable(); print(on)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, True]"
