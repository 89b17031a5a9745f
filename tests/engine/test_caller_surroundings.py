"""A function finds arguments, folder, umask and environment of the program that calls `map` now, in every worker."""

from __future__ import annotations

import multiprocessing
import os
import textwrap
from pathlib import Path

import pytest
import torch

import tdmap
from tdmap.datasets import Table, from_dataset, read, write
from tensordict_lite import TensorDict
from tests import interpreters

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
    done = interpreters.run(["script.py", "42", method], cwd=tmp_path)
    assert done.stdout == "[42, 42, 42, 42]\n", done.stderr


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


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("method", METHODS)
def test_files_of_warm_workers_have_the_umask_of_the_caller(tmp_path, method, umask):
    data = TensorDict({"x": torch.arange(40)}, [40])
    write(Table.of({"x": torch.arange(10), "s": ["a"] * 10}), source := tmp_path / "t.parquet")

    def touch(chunk):
        Path(f"{tmp_path}/{mask:o}/of the function").touch()
        os.umask(0o777)
        return chunk

    with tdmap.WorkerPool(1, method) as pool:
        for mask in (0o022, 0o077):
            umask(mask)
            (out := tmp_path / f"{mask:o}").mkdir()
            tdmap.map(data, touch, out=out / "map", pool=pool)
            tdmap.map(data, lambda c: c, out=out / "shards", rows_per_shard=16, pool=pool)
            tdmap.sort(data, "x", out / "sorted", pool=pool)
            tdmap.flat_map(data, lambda c: c, out / "flat", pool=pool)
            data.pipeline().map(lambda c: c).write(out / "pipeline", pool=pool)
            read(source, out / "read", pool=pool)
            from_dataset([{"x": i, "s": "a"} for i in range(9)], out / "dataset", pool=pool)
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


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_has_a_name(method):
    def name(x):
        return multiprocessing.current_process().name, os.getpid()

    with tdmap.WorkerPool(1, method) as pool:
        ((found, pid),) = tdmap.map_iter(torch.zeros(1), name, pool=pool)
    assert found == f"tdmap-{pid}" and multiprocessing.current_process().name != found
