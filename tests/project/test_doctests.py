"""The examples in the docstrings of both packages are true."""

import doctest
import importlib
from pathlib import Path

import pytest
import torch

from tensordict_lite import TensorDict

ROOT = Path(__file__).parents[2]


def module_names() -> list[str]:
    """Every module whose docstrings hold an example, found without importing any."""
    found = []
    for package in ("tdmap", "tensordict_lite", "benchmarks"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if ">>> " in path.read_text():
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                found.append(name.removesuffix(".__init__"))
    return found


@pytest.mark.parametrize("name", module_names())
def test_docstring_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testmod(module, optionflags=flags, extraglobs={"torch": torch, "TensorDict": TensorDict})
    assert result.attempted, "the examples of this module are not where doctest finds them"
    assert not result.failed, f"{result.failed} of {result.attempted} examples are wrong; see above"
