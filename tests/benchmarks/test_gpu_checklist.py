"""The checklist of `make gpu` runs over a pretended link as far as it can, and is never green for want of a device."""

import subprocess
from types import SimpleNamespace

import pytest
import torch

import tdmap
from benchmarks import gpu
from tdmap.memory import links as device

PLAYED = [one for one in gpu.EXPERIMENTS if not one.needs_cuda]


@pytest.fixture(autouse=True)
def _as_it_was():
    tdmap.close_pools()
    yield
    device.LINKS.pop("mtia", None)
    device.NO_FORKS.discard("mtia")
    tdmap.close_pools()


@pytest.mark.parametrize("one", PLAYED, ids=[one.name for one in PLAYED])
def test_an_experiment_finds_what_it_should_over_a_fake_link(one: gpu.Experiment) -> None:
    assert one.run(gpu.Place(fake=True))


def test_an_experiment_sees_what_it_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdmap.runtime.ondevice.Runner._fetch", lambda self, result: self.link.fetch([result])[0])
    with pytest.raises(AssertionError, match="wrong bytes"):
        gpu.conjugates(gpu.Place(fake=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_it_fails_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 2
    assert "nothing was run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "status", "outcome"),
    [
        ("37 skipped in 3.00s", 0, "FAILED"),
        ("1 failed, 36 passed in 9s", 1, "FAILED"),
        ("== 36 passed, 1 skipped in 9s ==", 0, "ok"),
        ("", 2, "FAILED"),
    ],
)
def test_tests_that_were_all_skipped_are_no_success(
    monkeypatch: pytest.MonkeyPatch, said: str, status: int, outcome: str
) -> None:
    done = SimpleNamespace(stdout=said, stderr="", returncode=status)
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: done)
    assert gpu.tests().outcome == outcome


def test_an_experiment_that_hangs_or_dies_is_a_line_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    one = PLAYED[0]

    def hang(*args, **options):
        raise subprocess.TimeoutExpired("it", options["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    assert "hangs" in gpu.in_a_process(one, fake=True).said
    died = SimpleNamespace(stdout="", stderr="Segmentation fault\n", returncode=-11)
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: died)
    line = gpu.in_a_process(one, fake=True)
    assert line.outcome == "FAILED" and "-11: Segmentation fault" in line.said


def test_every_experiment_has_a_title_and_a_name_of_its_own() -> None:
    assert all(one.title for one in gpu.EXPERIMENTS) and len({one.name for one in gpu.EXPERIMENTS}) >= 16
