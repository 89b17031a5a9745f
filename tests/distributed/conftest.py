"""Three ranks that the tests of a pytest worker share."""

from collections.abc import Iterator

import pytest

from tests.distributed.ranks import Ranks

_shared: list[Ranks] = []


@pytest.fixture
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """New ones where a test has left them in a state that nobody knows."""
    if _shared and _shared[0].broken:
        _shared.pop().close()
    if not _shared:
        _shared.append(Ranks(3, tmp_path_factory.mktemp("ranks")))
    return _shared[0]


@pytest.fixture(scope="session", autouse=True)
def _ending() -> Iterator[None]:
    yield
    while _shared:
        _shared.pop().close()
