"""What lower packages use of higher ones is there as soon as the package is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tensordict_lite import registry


def test_every_declared_part_is_registered_by_the_import_alone() -> None:
    code = (
        "import tensordict_lite\n"
        "from tensordict_lite import registry\n"
        "print([name for name in registry.__annotations__ if not hasattr(registry, name)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_part_that_is_not_declared_is_refused() -> None:
    with pytest.raises(ValueError, match="nosuch"):
        registry.register(nosuch=1)
