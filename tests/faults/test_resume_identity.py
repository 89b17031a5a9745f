"""What tells one function, and one dataset, from another: the same in every process."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import tdmap
from tdmap.reducers import Sum
from tdmap.run.fingerprint import function_parts, source_parts
from tensordict_lite import TensorClass, TensorDict

ROOT = Path(__file__).resolve().parents[2]

MODULE = """
    import functools, re, torch, numpy as np
    from tdmap.run.fingerprint import function_parts

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
    for number, seed in enumerate(("0", "1")):
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
    """Path, size and time are those of the other dataset by now, which were taken for those of this one."""
    old = TensorDict({"x": torch.zeros(4), "gone": torch.zeros(4)}, [4]).memmap(tmp_path / "a")
    new = TensorDict({"x": torch.ones(4)}, [4]).memmap(tmp_path / "a")
    assert source_parts(old)["'x'"] == source_parts(TensorDict({"x": torch.zeros(4)}))["'x'"]
    assert "content" in source_parts(old)["'gone'"] and "written at" in source_parts(new)["'x'"]


class Rows(TensorClass):
    """A tensorclass of one column."""

    x: torch.Tensor


def nested(rows, folder):
    data = TensorDict({"n": {"x": rows}}, [len(rows)]).memmap(folder)
    return data, data["n", "x"]


def sharded(rows, folder):
    for number in (0, 1):
        TensorDict({"x": rows[number::2]}, [len(rows) // 2]).memmap(folder / str(number))
    return tdmap.open([folder / "0", folder / "1"]), TensorDict.load_memmap(folder / "1")["x"]


def consolidated(rows, folder):
    TensorDict({"x": rows}, [len(rows)]).consolidate(folder.with_suffix(".file"))
    data = TensorDict.from_consolidated(folder.with_suffix(".file"))
    return data, data.get("x")


def numpy_file(rows, folder):
    array = np.memmap(folder.with_suffix(".bin"), np.int64, "w+", shape=(len(rows),))
    array[:] = rows
    return TensorDict({"x": torch.from_numpy(array)}, [len(rows)]), array


def plain(data):
    return data, data.get("x")


SOURCES = {
    "dense": lambda rows, folder: plain(TensorDict({"x": rows}, [len(rows)]).memmap(folder)),
    "another mapping": lambda rows, folder: (
        TensorDict({"x": rows}, [len(rows)]).memmap(folder),
        TensorDict.load_memmap(folder)["x"],
    ),
    "part": lambda rows, folder: plain(TensorDict({"x": rows}, [len(rows)]).memmap(folder)[2:]),
    "nested": nested,
    "tensorclass": lambda rows, folder: plain(Rows(x=rows, batch_size=[len(rows)]).memmap(folder)),
    "with words": lambda rows, folder: plain(
        TensorDict({"x": rows, "w": [str(n) for n in rows.tolist()]}, [len(rows)]).memmap(folder)
    ),
    "sharded": sharded,
    "consolidated": consolidated,
    "np.memmap": numpy_file,
    "memory": lambda rows, folder: plain(TensorDict({"x": rows}, [len(rows)])),
    "shared memory": lambda rows, folder: plain(TensorDict({"x": rows}, [len(rows)]).share_memory_()),
}
"""By kind: a dataset, and the memory that some of its rows lie in."""


def numbers_of(chunk):
    return chunk.apply(lambda value: value * 2) if not isinstance(chunk, torch.Tensor) else chunk * 2


CALLS = {
    "map": lambda data, out: tdmap.map(data, numbers_of, out=out, resume=True, num_workers=0),
    "filter": lambda data, out: tdmap.filter(data, every_row, out=out, resume=True, num_workers=0),
    "shuffle": lambda data, out: tdmap.shuffle(data, 1, out=out, resume=True, num_workers=0),
    "reduce": lambda data, out: tdmap.map_reduce(data, None, Sum("x"), resume=out, num_workers=0),
    "cache": lambda data, out: data.pipeline().map(numbers_of).cache(out).collect(num_workers=0),
    "shards": lambda data, out: tdmap.map(
        data, numbers_of, out=out, rows_per_shard=4, resume=True, chunksize=4, num_workers=0
    ),
}


def every_row(chunk):
    return torch.ones(len(chunk), dtype=torch.bool)


@pytest.mark.parametrize("place", ["disk", "memory"])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_store_to_rows_that_were_stored_to_before_is_another_source(kind, place, tmp_path):
    """The kernel notes the first store to a page of a mapping only, and on tmpfs for the life of the mapping."""
    with contextlib.ExitStack() as stack:
        if place == "memory":
            tmp_path = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        data, rows = SOURCES[kind](torch.arange(8), tmp_path / "data")
        seen = []
        for value in range(4):
            rows[3] = value
            seen.append(source_parts(data))
            assert source_parts(data) == seen[-1]
        assert all(one != other for number, one in enumerate(seen) for other in seen[:number])


@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_refused_after_a_store_to_its_rows(call, tmp_path):
    data = TensorDict({"x": torch.arange(8)}, [8]).memmap(tmp_path / "data")
    data["x"][3] = 100
    CALLS[call](data, tmp_path / "out")
    data["x"][3] = 200
    with pytest.raises(tdmap.ResumeMismatch, match="written at"):
        CALLS[call](data, tmp_path / "out")
