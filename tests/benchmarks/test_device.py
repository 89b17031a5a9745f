"""The device benchmark runs over a pretended link, and says why it stops where there is no device."""

import pytest
import torch

import tdmap
from benchmarks import device
from tdmap.memory import links as device_module


@pytest.fixture(autouse=True)
def _end_workers():
    yield
    tdmap.close_pools()


def test_every_case_runs_over_a_fake_link(capsys: pytest.CaptureFixture[str]) -> None:
    bench = device.main(["--fake", "--megabytes", "4", "--workers", "1", "--rounds", "1"])
    assert bench is not None and len(bench.results) >= 6
    assert {name: result.error for name, result in bench.results.items() if result.error} == {}
    assert "copies from page-locked memory" in capsys.readouterr().out
    assert "mtia" not in device_module.LINKS


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_it_says_so_and_stops(capsys: pytest.CaptureFixture[str]) -> None:
    assert device.main(["--rounds", "1"]) is None
    assert "skipped, because torch sees no CUDA device" in capsys.readouterr().out
