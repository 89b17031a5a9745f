"""Fixtures of the tests of operations by key: no process may be left behind."""

from __future__ import annotations

import pytest

import tdmap


@pytest.fixture(scope="session", autouse=True)
def _end_workers_at_the_end():
    yield
    tdmap.close_pools()
