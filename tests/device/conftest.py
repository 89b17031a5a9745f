"""A device that every machine has: fake links, under a device type that torch can spell and nobody owns."""

import pytest

from tdmap.memory import links as device_module
from tests.device.fakelink import FakeLink

FAKE = "mtia"


@pytest.fixture(params=range(4))
def links(request, monkeypatch) -> list[FakeLink]:
    """The fake links that were opened in this process, each run with other whims."""
    opened: list[FakeLink] = []

    def open_fake(device):
        opened.append(FakeLink(device, seed=request.param * 1000 + len(opened)))
        return opened[-1]

    monkeypatch.setitem(device_module.LINKS, FAKE, open_fake)
    return opened


@pytest.fixture
def fake(links) -> str:
    """The name of a fake device."""
    return f"{FAKE}:0"
