"""Fixtures: no process is left behind, and status files go to a folder of the test."""

import pytest


@pytest.fixture
def status_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "tdmap"
