"""A real S3 server on this machine, and a proxy before it that fails as networks do."""

import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.stores.proxy import FaultyProxy


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of moto's S3 server, one for the whole session."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture(scope="session")
def proxied(server: str) -> Iterator[FaultyProxy]:
    """A proxy before it."""
    proxy = FaultyProxy(server)
    yield proxy
    proxy.close()


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fsspec finds in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
def options(server: str, credentials: None) -> dict[str, Any]:
    """`storage_options` for the server."""
    return {"endpoint_url": server}


@pytest.fixture
def bucket(options: dict[str, Any]) -> str:
    """A bucket of the test's own."""
    import fsspec

    name = f"bucket-{uuid.uuid4().hex[:12]}"
    fsspec.filesystem("s3", **options).mkdir(name)
    return f"s3://{name}"


@pytest.fixture
def faults(proxied: FaultyProxy, credentials: None) -> Iterator[FaultyProxy]:
    """The proxy, which lets everything pass until it is told otherwise."""
    proxied.heal()
    yield proxied
    proxied.heal()


NOT_OBSTORES = {"user_agent_extra": "tests"}
"""Of botocore's configuration: an option that obstore has no name for, so that fsspec serves, in workers too."""


@pytest.fixture(params=["obstore", "fsspec"])
def through(request: pytest.FixtureRequest) -> dict[str, Any]:
    """`config_kwargs` with which each library carries the requests, and does not make them again itself."""
    if request.param == "obstore":
        pytest.importorskip("obstore")
    retries = {"retries": {"max_attempts": 1, "mode": "standard"}}
    return {"config_kwargs": retries | (NOT_OBSTORES if request.param == "fsspec" else {})}
