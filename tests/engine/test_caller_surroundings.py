"""A function finds arguments, folder, umask and environment of the program that calls `map` now, in every worker."""

import contextlib
import multiprocessing
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import tdmap
from tensordict_lite import TensorDict
from tests.engine.conftest import put

METHODS = ["fork", "forkserver", "spawn"]


@pytest.fixture(scope="module", params=METHODS)
def pool(request):
    """One warm worker."""
    with tdmap.WorkerPool(1, request.param) as pool:
        pool.warm_up()
        yield pool


def test_a_warm_worker_follows_the_caller(tmp_path, pool, monkeypatch):
    def look(x):
        found = (os.environ.get("TDMAP_TEST"), Path("here.txt").read_text(), "TDMAP_GONE" in os.environ)
        os.environ["TDMAP_TEST"] = "changed by the function"
        os.chdir("/")
        return found

    monkeypatch.setenv("TDMAP_GONE", "1")
    assert list(tdmap.map_iter(torch.zeros(1), lambda x: "TDMAP_GONE" in os.environ, pool=pool)) == [True]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "here.txt").write_text(name)
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.setenv("TDMAP_TEST", name)
        monkeypatch.delenv("TDMAP_GONE", raising=False)
        assert list(tdmap.map_iter(torch.zeros(1), look, pool=pool)) == [(name, name, False)]
    assert os.environ["TDMAP_TEST"] == "b"


@contextlib.contextmanager
def put_attribute(module, name, value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, value)
        yield


def environ(value):
    os.environ.pop("TDMAP_TEST", None) if value is None else os.environ.update(TDMAP_TEST=value)


@contextlib.contextmanager
def filtered(action):
    with warnings.catch_warnings():
        warnings.simplefilter(action, Mine)
        yield


class Mine(UserWarning):
    pass


def warned():
    try:
        warnings.warn("of the function", Mine, stacklevel=1)
    except Mine:
        return "error"
    return "shown or ignored"


def numpy_divides():
    try:
        with np.errstate(over="ignore"):
            return float(np.ones(1)[0] / np.zeros(1)[0])
    except FloatingPointError:
        return "raises"


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def made():
    return torch.empty(1).device.type, torch.empty(1).dtype


STATE = {
    "folder": (os.getcwd, contextlib.chdir, ["/", "/tmp"]),
    "environment": (lambda: os.environ.get("TDMAP_TEST"), lambda value: put(environ, value, None), ["a", "b"]),
    "arguments": (lambda: list(sys.argv), lambda value: put_attribute(sys, "argv", value), [["a"], ["b", "c"]]),
    "umask": (current_umask, lambda value: put(os.umask, value, current_umask()), [0o77, 0o27]),
    "import path": (lambda: "/a" in sys.path, lambda value: put_attribute(sys, "path", [value, *sys.path]), ["/a"]),
    "default dtype": (made, lambda value: put(torch.set_default_dtype, value, torch.float32), [torch.float64]),
    "default device": (made, lambda value: put(torch.set_default_device, value, None), ["meta"]),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled, [False, True]),
    "inference mode": (torch.is_inference_mode_enabled, torch.inference_mode, [True, False]),
    "autocast": (
        lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        lambda value: torch.autocast("cpu", value),
        [torch.bfloat16, torch.float16],
    ),
    "deterministic": (
        torch.are_deterministic_algorithms_enabled,
        lambda value: put(torch.use_deterministic_algorithms, value, False),
        [True],
    ),
    "errors of NumPy": (numpy_divides, lambda value: np.errstate(divide=value), ["raise", "ignore"]),
    "warnings": (warned, filtered, ["error", "ignore"]),
    "recursion limit": (sys.getrecursionlimit, lambda value: put(sys.setrecursionlimit, value, 1000), [3000, 2000]),
}
"""What a function sees, a context that sets it, and values."""


def find_state(name, **workers):
    look, state, values = STATE[name]
    for value in values:
        with state(value):
            here = look()
            assert list(tdmap.map_iter(torch.zeros(1, device="cpu"), lambda x: look(), **workers)) == [here]
    if name != "import path":  # entries that a worker has, it keeps
        assert list(tdmap.map_iter(torch.zeros(1), lambda x: look(), **workers)) == [look()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STATE)
def test_a_function_finds_the_state_of_the_caller(name, pool):
    find_state(name, pool=pool)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("executor", ["thread", "serial"])
@pytest.mark.parametrize("name", STATE)
def test_threads_find_the_state_of_the_caller(name, executor):
    find_state(name, executor=executor, num_workers=1)


def test_a_worker_imports_no_compiler_to_be_deterministic():
    """It takes a second; the compiler is deterministic all the same where a function imports it."""

    def look(chunk):
        before = "torch._inductor.config" in sys.modules
        import torch._inductor.config

        return before, torch._inductor.config.deterministic, torch.are_deterministic_algorithms_enabled()

    with tdmap.WorkerPool(1, "spawn") as pool:
        for mode, imported in ((True, False), (False, True)):
            with STATE["deterministic"][1](mode):
                assert list(tdmap.map_iter(torch.zeros(1), look, pool=pool)) == [(imported, mode, mode)]


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def test_files_of_warm_workers_have_the_umask_of_the_caller(tmp_path, pool, umask):
    data = TensorDict({"x": torch.arange(40)}, [40])
    tdmap.datasets.write({"x": torch.arange(10), "s": ["a"] * 10}, source := tmp_path / "t.parquet")

    def touch(chunk):
        Path(f"{tmp_path}/{mask:o}/of the function").touch()
        os.umask(0o777)
        return chunk

    for mask in (0o022, 0o077):
        umask(mask)
        (out := tmp_path / f"{mask:o}").mkdir()
        tdmap.map(data, touch, out=out / "map", pool=pool)
        tdmap.map(data, lambda c: c, out=out / "shards", rows_per_shard=16, pool=pool)
        tdmap.sort(data, "x", out=out / "sorted", pool=pool)
        tdmap.flat_map(data, lambda c: c, out=out / "flat", pool=pool)
        data.pipeline().map(lambda c: c).write(out / "pipeline", pool=pool)
        tdmap.datasets.read(source, out / "read", pool=pool)
        tdmap.datasets.from_dataset([{"x": i, "s": "a"} for i in range(9)], out / "dataset", pool=pool)
        made = [path for path in out.rglob("*") if ".tdmap" not in path.parts]
        modes = {path: path.stat().st_mode & 0o777 for path in made}
        assert modes == {path: (0o777 if path.is_dir() else 0o666) & ~mask for path in made}


def test_a_folder_that_is_gone_is_no_obstacle(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with tdmap.WorkerPool(1, "fork") as pool:
        assert tdmap.map(torch.zeros(2), lambda x: x + 1, pool=pool).tolist() == [1, 1]


def test_somebody_elses_pool_is_left_as_it_is(tmp_path, monkeypatch):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        before = pool.apply(os.getcwd)
        monkeypatch.chdir(tmp_path)
        tdmap.map(torch.zeros(4), torch.neg, pool=pool)
        assert pool.apply(os.getcwd) == before


def test_a_worker_has_a_name(pool):
    def name(x):
        return multiprocessing.current_process().name, os.getpid()

    ((found, pid),) = tdmap.map_iter(torch.zeros(1), name, pool=pool)
    assert found == f"tdmap-{pid}" and multiprocessing.current_process().name != found
