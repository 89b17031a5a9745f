"""What tells one function, and one dataset, from another: the same in every process."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from tdmap.resume.fingerprint import function_parts, source_parts
from tensordict_lite import TensorDict

ROOT = Path(__file__).resolve().parents[2]

MODULE = """
    import functools, re, torch, numpy as np
    from tdmap.resume.fingerprint import function_parts

    NAMES = {"alpha", "beta", "gamma", "delta"}
    PATTERN = re.compile("a+")

    class Model:
        table = {"a": 1, "b": [1, 2]}
        def __init__(self, scale):
            self.scale = torch.full((3,), scale)
            self.me = self
        def __call__(self, x):
            return x * self.scale

    def helper(x):
        return x in {"a", "b", "c"} and PATTERN.match(x)

    model = Model(2.0)

    def outer(k, array=np.arange(3)):
        def inner(td, by=(1, "two", 3.0)):
            return [helper(n) for n in NAMES] and model(td["x"]) * k + array.sum()
        return inner

    for fn in (outer(2), model, functools.partial(outer(3), by=4), model.__call__, torch.nn.Linear, len, lambda x: x):
        print(sorted(function_parts(fn).items()))
"""


def test_the_same_function_is_the_same_in_every_process(tmp_path):
    outputs = set()
    for number, seed in enumerate(("0", "1", "77")):
        script = tmp_path / f"at{number}" / "script.py"  # neither its place nor its lines matter
        script.parent.mkdir()
        script.write_text("\n" * number + textwrap.dedent(MODULE))
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        outputs.add(subprocess.run([sys.executable, script], env=env, capture_output=True, check=True).stdout)
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) == 7


class Model:
    """A callable object with state."""

    factor = 1

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, td):
        return td * self.scale * self.factor


def make(scale=1, constant=0):
    def fn(td, shift=constant):
        return td * scale + shift

    return fn


def differing(a, b):
    a, b = function_parts(a), function_parts(b)
    return sorted(key for key in {**a, **b} if a.get(key) != b.get(key))


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        (make(1), make(1), []),
        (make(1), make(2), ["closure variable scale"]),
        (make(True), make(1), ["closure variable scale"]),
        (make(0.0), make(-0.0), ["closure variable scale"]),
        (make(constant=1), make(constant=2), ["default 0"]),
        (make(torch.ones(3)), make(torch.ones(3)), []),
        (make(torch.ones(3)), make(torch.tensor([1.0, 1.0, 2.0])), ["closure variable scale"]),
        (make(torch.ones(3)), make(torch.ones(3).double()), ["closure variable scale"]),
        (make(np.ones(3)), make(np.zeros(3)), ["closure variable scale"]),
        (make({"a": {1, 2}}), make({"a": {2, 1}}), []),
        (make({"a": {1, 2}}), make({"a": {1, 3}}), ["closure variable scale"]),
        (make(TensorDict({"a": torch.ones(2)})), make(TensorDict({"a": torch.ones(2)})), []),
        (make(TensorDict({"a": torch.ones(2)})), make(TensorDict({"a": torch.zeros(2)})), ["closure variable scale"]),
        (Model(1), Model(1), []),
        (Model(1), Model(2), ["attribute scale"]),
        (functools.partial(make(1), shift=2), functools.partial(make(1), shift=3), ["argument shift"]),
        (functools.partial(make(1), shift=2), functools.partial(make(2), shift=2), ["function closure variable scale"]),
        (lambda x: x + 1, lambda x: x + 1, []),
        (lambda x: x + 1, lambda x: x + 2, ["code"]),
        (lambda x: x.a, lambda x: x.b, ["code"]),
        (torch.abs, torch.neg, ["callable"]),
    ],
)  # fmt: skip
def test_each_part_of_a_function_counts(a, b, wanted):
    assert differing(a, b) == wanted


def test_helpers_and_globals_are_followed():
    def build(body):
        scope = {"__name__": "__main__", "SCALE": 2}
        exec(body + "\ndef fn(x): return helper(x) * SCALE", scope)
        return scope["fn"]

    one, two = build("def helper(x): return x + 1"), build("def helper(x): return x + 2")
    assert differing(one, two) == ["helper helper"]
    two = build("def helper(x): return x + 1")
    two.__globals__["SCALE"] = 3
    assert differing(one, two) == ["global SCALE"]


def test_a_changed_method_counts():
    before = function_parts(Model(1))
    Model.helper = lambda self: 1
    try:
        assert function_parts(Model(1)) != before
    finally:
        del Model.helper
    assert function_parts(Model(1)) == before


def test_weights_of_a_module_count():
    torch.manual_seed(0)
    one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    two.load_state_dict(one.state_dict())
    assert function_parts(one) == function_parts(two)
    with torch.no_grad():
        two.bias[0] += 1
    assert differing(one, two) == ["module"]


def test_objects_that_cannot_be_pickled_do_no_harm(tmp_path):
    with open(tmp_path / "file", "w") as file:
        assert function_parts(make(file)) == function_parts(make(file))


def test_sources_are_known_by_their_files(tmp_path):
    data = TensorDict({"x": torch.arange(4), "n": {"s": "text"}}, [4])
    memory = source_parts(data)
    assert memory == source_parts(data.clone())
    mapped = data.memmap(tmp_path / "a")
    first = source_parts(mapped)
    assert "written at" in first["'x'"] and "written at" not in source_parts(mapped, contents=False)["'x'"]
    mapped["x"].fill_(7)
    assert source_parts(mapped, contents=False) == source_parts(TensorDict.load_memmap(tmp_path / "a"), contents=False)
    assert source_parts(mapped[1:], contents=False) != source_parts(mapped, contents=False)
    assert memory["('n', 's')"] == first["('n', 's')"]
    assert memory["('n', 's')"] != source_parts(TensorDict({"n": {"s": "other"}}, [4]))["('n', 's')"]


def test_rows_whose_file_a_later_save_has_replaced_are_known_by_their_values(tmp_path):
    """Path, size and time are those of the other dataset by now, which a cache took for this one."""
    old = TensorDict({"x": torch.zeros(4), "gone": torch.zeros(4)}, [4]).memmap(tmp_path / "a")
    new = TensorDict({"x": torch.ones(4)}, [4]).memmap(tmp_path / "a")
    (tmp_path / "a" / "gone.memmap").unlink()
    assert source_parts(old)["'x'"] == source_parts(TensorDict({"x": torch.zeros(4)}))["'x'"]
    assert "content" in source_parts(old)["'gone'"] and "written at" in source_parts(new)["'x'"]
    double = {"fn": lambda chunk: {"y": chunk["x"] * 2}, "num_workers": 0, "cache": tmp_path / "c"}
    assert [data.map(**double)["y"].sum() for data in (new, old, new, old)] == [8, 0, 8, 0]
