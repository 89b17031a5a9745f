"""A function finds the arguments, folder and environment of the program that calls `map` now, in every worker."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import tdmap

ROOT = Path(__file__).resolve().parents[2]
METHODS = ["fork", "forkserver", "spawn"]


@pytest.mark.parametrize("method", METHODS)
def test_the_arguments_of_the_program(tmp_path, method):
    code = """
        import sys, torch, tdmap
        def fn(x):
            return x + int(sys.argv[1])
        print(tdmap.map(torch.zeros(4, dtype=torch.long), fn, num_workers=1, mp_start_method=sys.argv[2]).tolist())
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(code))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "script.py", "42", method], cwd=tmp_path, env=env, capture_output=True)
    assert done.stdout.decode() == "[42, 42, 42, 42]\n", done.stderr.decode()


@pytest.mark.parametrize("method", METHODS)
def test_a_warm_worker_follows_the_caller(tmp_path, method, monkeypatch):
    def look(x):
        found = (os.environ.get("TDMAP_TEST"), Path("here.txt").read_text(), "TDMAP_GONE" in os.environ)
        os.environ["TDMAP_TEST"] = "changed by the function"
        os.chdir("/")
        return found

    monkeypatch.setenv("TDMAP_GONE", "1")
    with tdmap.WorkerPool(1, method) as pool:
        pool.warm_up()
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "here.txt").write_text(name)
            monkeypatch.chdir(tmp_path / name)
            monkeypatch.setenv("TDMAP_TEST", name)
            monkeypatch.delenv("TDMAP_GONE", raising=False)
            assert list(tdmap.map_iter(torch.zeros(1), look, pool=pool)) == [(name, name, False)]
    assert os.environ["TDMAP_TEST"] == "b"


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


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_has_a_name(method):
    def name(x):
        return multiprocessing.current_process().name, os.getpid()

    with tdmap.WorkerPool(1, method) as pool:
        ((found, pid),) = tdmap.map_iter(torch.zeros(1), name, pool=pool)
    assert found == f"tdmap-{pid}" and multiprocessing.current_process().name != found
