"""What is known about jobs on Ray without a cluster: options, errors, probes of folders."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap import RayCluster
from tdmap.runtime.executors import probes


@pytest.mark.parametrize("executor", ["ray", RayCluster(num_cpus=2)])
def test_without_ray_the_error_says_what_to_install(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"tdmap\[ray\]"):
        tdmap.map(torch.arange(4), torch.neg, executor=executor)
    with pytest.raises(ModuleNotFoundError, match=r"tdmap\[ray\]"):
        tdmap.reduce(torch.arange(4), tdmap.reducers.Sum(), executor=executor)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_cpus": -1}, "num_cpus"),
        ({"num_gpus": "one"}, "num_gpus"),
        ({"num_cpus": 0}, "must require a resource"),
        ({"transport": "pigeon"}, "transport must be one of"),
    ],
)
def test_an_impossible_cluster_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RayCluster(**options)


def test_options_about_processes_do_not_go_with_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RayCluster, "require", lambda self: None)
    for name, value in {"mp_start_method": "spawn", "max_tasks_per_child": 3, "max_memory": 1 << 30}.items():
        with pytest.raises(ValueError, match=name):
            tdmap.map(torch.arange(4), torch.neg, executor=RayCluster(), **{name: value})


def test_no_workers_means_the_caller_on_a_cluster_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RayCluster, "connect", lambda self: pytest.fail("nobody asked for the cluster"))
    assert tdmap.map(torch.arange(4), torch.neg, num_workers=0, executor=RayCluster()).tolist() == [0, -1, -2, -3]


def test_a_folder_is_shared_when_its_probe_is_found_and_answered(tmp_path: Path) -> None:
    file = tmp_path / "x.memmap"
    file.write_bytes(b"rows")
    with probes.Probes([str(file)], written=True) as asked:
        assert asked.accept(probes.answer(asked.questions))
        # Another machine with a folder of the same name: no probe in it, or that of somebody else.
        elsewhere = [probe._replace(path=str(tmp_path / "other")) for probe in asked.questions]
        assert not asked.accept(probes.answer(elsewhere))
        others = [probe._replace(token="0" * 32) for probe in asked.questions]
        assert not asked.accept(probes.answer(others))
    assert os.listdir(tmp_path) == ["x.memmap"]


def test_a_folder_that_the_worker_may_only_read_takes_no_results(tmp_path: Path) -> None:
    file = tmp_path / "x.memmap"
    file.write_bytes(b"rows")
    for written in (False, True):
        with probes.Probes([str(file)], written=written) as asked:
            assert asked.accept([True]) is not written  # it has found the probe, and could put nothing beside it


def test_a_folder_that_the_driver_may_only_read_is_known_by_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.memmap"
    file.write_bytes(b"rows" * 100_000)
    monkeypatch.setattr(probes, "open", _read_only_open, raising=False)
    with probes.Probes([str(file)], written=False) as asked:
        assert asked.accept(probes.answer(asked.questions))
        file.write_bytes(b"ROWS" * 100_000)
        assert not asked.accept(probes.answer(asked.questions))


def _read_only_open(path: Any, mode: str = "r") -> Any:
    if mode == "x":
        raise PermissionError(path)
    return open(path, mode)
