"""The machine that runs the tests is busy with them: benchmarks record all the same."""

import pytest

from benchmarks._quiet import ALLOWED


@pytest.fixture(autouse=True)
def _record_on_a_busy_machine(monkeypatch):
    monkeypatch.setenv(ALLOWED, "1")
