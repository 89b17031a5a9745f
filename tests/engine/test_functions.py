"""What can be mapped: lambdas, closures, partials, methods, modules, under every start method."""

from __future__ import annotations

import functools
import math
import os

import numpy as np
import pytest
import torch

import tdmap
from tensordict_lite import TensorDict

METHODS = ["fork", "forkserver", "spawn"]
SCALE = 3


def module_level(td):
    return td["x"] * SCALE


class Offset:
    def __init__(self, by):
        self.by = by

    def __call__(self, td):
        return td["x"] + self.by

    def method(self, td):
        return td["x"] - self.by


@pytest.fixture(params=METHODS)
def run(request):
    def call(data, fn, **options):
        return tdmap.map(data, fn, num_workers=2, chunksize=7, mp_start_method=request.param, **options)

    return call


def test_all_kinds_of_functions(run, data):
    x, local = data["x"], torch.tensor([1.0, 2.0, 3.0])

    def closure(td):
        return td["x"] * local + math.pi

    assert torch.equal(run(data, lambda td: td["x"] + 1), x + 1)
    assert torch.equal(run(data, closure), x * local + math.pi)
    assert torch.equal(run(data, module_level), x * 3)
    assert torch.equal(run(data, Offset(2)), x + 2)
    assert torch.equal(run(data, Offset(2).method), x - 2)
    assert torch.equal(run(data, functools.partial(lambda td, k: td["x"] * k, k=4)), x * 4)


def test_a_module_with_parameters(run, data):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)).eval()
    result = run(data["x"], model)
    assert torch.allclose(result, model(data["x"]), atol=1e-5)


def test_what_a_function_carries_belongs_to_each_worker(run):
    state = torch.zeros(100_000)

    def count(x):
        state.add_(1)
        return x

    run(torch.arange(40.0), count)
    assert state.sum() == 0


def test_numpy_works(run, data):
    result = run(data, lambda td: torch.from_numpy(np.cumsum(td["x"].numpy(), axis=1)))
    assert torch.equal(result, data["x"].cumsum(1))


def test_torch_threads_of_workers(data):
    for threads in (1, 2):
        result = tdmap.map(
            data["x"],
            lambda x: torch.full((len(x),), torch.get_num_threads()),
            num_workers=1,
            worker_threads=threads,
            mp_start_method="forkserver",
        )
        assert result.unique().tolist() == [threads]


def test_workers_with_more_threads_run_matrix_products():
    a = torch.randn(64, 256, 256)
    result = tdmap.map(a, lambda x: x @ x, num_workers=2, worker_threads=2, chunksize=8)
    assert torch.allclose(result, a @ a, atol=1e-3)


def test_a_nested_map_runs_serially_and_says_so(data, capfd):
    tdmap.close_pools()  # workers of an earlier test would write where that one looked

    def nested(td):
        return tdmap.map(td, lambda inner: inner["x"] + os.getpid() * 0, num_workers=2, chunksize=2)

    assert torch.equal(tdmap.map(data, nested, num_workers=2, chunksize=20, mp_start_method="spawn"), data["x"])
    assert "runs serially" in capfd.readouterr().err


def test_non_tensor_data_and_strings():
    data = TensorDict({"x": torch.arange(6), "name": "photos"}, [6])
    result = tdmap.map(data, lambda td: td, num_workers=2, chunksize=2)
    assert torch.equal(result["x"], torch.arange(6))
    assert result["name"] == "photos"
    names = list(tdmap.map_iter(data, lambda td: td["name"], num_workers=2, chunksize=3))
    assert names == ["photos", "photos"]


def test_standard_input_of_workers_is_empty(data):
    import sys

    def read(td):
        return torch.full((td.shape[0],), len(os.read(0, 10)))

    assert sys.stdin is not None
    assert tdmap.map(data, read, num_workers=2, mp_start_method="fork").sum() == 0


def test_no_workers_run_in_the_caller(data):
    def pid_of(td):
        return torch.full((td.shape[0],), os.getpid())

    assert set(tdmap.map(data, pid_of, num_workers=0).tolist()) == {os.getpid()}
    assert {part[0].item() for part in tdmap.map_iter(data, pid_of, num_workers=0)} == {os.getpid()}
    assert set(data.map(pid_of, num_workers=0).tolist()) == {os.getpid()}


def test_functions_that_refer_to_each_other_in_a_circle():
    def down(n):
        return 0 if n == 0 else up(n - 1) + 1

    def up(n, *, step=1):
        up.calls = getattr(up, "calls", 0) + 1
        return 0 if n == 0 else down(n - step) + 1

    def itself(n):
        return n if n < 2 else itself(n - 1) + itself(n - 2)

    for method in ("fork", "forkserver"):
        result = tdmap.map(torch.zeros(4), lambda x: x + down(5) + itself(6), num_workers=1, mp_start_method=method)
        assert result.tolist() == [13.0] * 4
