"""Which library carries the requests to a store, and with what it is told to."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tdmap
from tdmap.runtime.workers.launch import safe_to_fork
from tdmap.stores.store import VARIABLE, Store
from tdmap.stores.through_fsspec import FsspecFiles
from tdmap.stores.through_obstore import ObstoreFiles, translated
from tdmap.stores.transport import CannotServe, ShortRead
from tests import interpreters
from tests.stores.kinds import numbers, same
from tests.stores.proxy import FaultyProxy

pytestmark = pytest.mark.xdist_group("stores")
pytest.importorskip("obstore")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No configuration but that of a test."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_SESSION_TOKEN", VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    yield


def who(how: dict[str, Any]) -> tuple[str, str, str | None]:
    found = how["credential_provider"]()
    return found["access_key_id"], found["secret_access_key"], found["token"]


def test_options_of_s3fs_mean_the_same(credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-environment")
    how = translated({"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": "https://a:1", "region_name": "eu"}})
    assert who(how) == ("k", "s", None), "the token goes with the keys of the environment, and not with these"
    assert (how["endpoint"], how["region"], how["client_options"]["allow_http"]) == ("https://a:1", "eu", False)
    how = translated({"endpoint_url": "http://a:1", "config_kwargs": {"s3": {"payload_signing_enabled": False}}})
    assert who(how) == ("the-key", "the-secret", "of-the-environment")
    assert how["unsigned_payload"] and how["client_options"]["allow_http"] and how["region"] == "us-east-1"
    how = translated({"anon": True, "endpoint_url": "http://a:1", "config_kwargs": {"read_timeout": 7}})
    assert how["skip_signature"] and "credential_provider" not in how
    assert how["client_options"]["read_timeout"] == "7s"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://b:2")
    assert translated({})["endpoint"] == "http://b:2"
    for attempts in ({"max_attempts": 2}, {"total_max_attempts": 3}):
        assert translated({"config_kwargs": {"retries": attempts}})["retry_config"]["max_retries"] == 2


def test_configuration_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "AWS_SHARED_CREDENTIALS_FILE").write_text("[other]\naws_access_key_id = a\naws_secret_access_key = b\n")
    (tmp_path / "AWS_CONFIG_FILE").write_text(
        "[profile other]\nregion = eu-north-1\nendpoint_url = http://c:3\n[profile odd]\ns3 =\n  max_queue_size = 3\n"
    )
    how = translated({"profile": "other"})
    assert who(how) == ("a", "b", None) and (how["endpoint"], how["region"]) == ("http://c:3", "eu-north-1")
    for profile in ("odd", "nobody"):
        with pytest.raises(CannotServe):
            translated({"profile": profile})


@pytest.mark.parametrize(
    "options",
    [
        {"requester_pays": True},
        {"client_kwargs": {"verify": "/some/bundle.pem"}},
        {"config_kwargs": {"user_agent_extra": "x"}},
        {"config_kwargs": {"s3": {"addressing_style": "virtual"}}},
        {"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}},
        {"s3_additional_kwargs": {"ServerSideEncryption": "aws:kms"}},
    ],
)
def test_what_it_has_no_name_for_goes_through_fsspec(options: dict[str, Any], credentials: None) -> None:
    with pytest.raises(CannotServe):
        translated(options)
    assert type(Store("s3", options).files) is FsspecFiles


def test_it_is_taken_where_it_is_and_can_be_ruled_out(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(Store("s3", options).files) is ObstoreFiles
    assert type(Store("memory", {}).files) is FsspecFiles
    monkeypatch.setitem(sys.modules, "obstore", None)
    assert type(Store("s3", options).files) is FsspecFiles
    monkeypatch.undo()
    monkeypatch.setenv(VARIABLE, "fsspec")
    assert type(Store("s3", options).files) is FsspecFiles


def test_both_say_the_same_of_what_is_there(bucket: str, options: dict[str, Any]) -> None:
    """A run that was begun through one is resumed through the other, and names are names."""
    ours, theirs = ObstoreFiles("s3", options), FsspecFiles("s3", options)
    names = ["plain", "a%2Fb c", "we~ird #1?*[x]{y}|^", "über", "n/deep", "empty"]
    for place, (writer, reader) in enumerate([(ours, theirs), (theirs, ours)]):
        root = f"{bucket}/set{place}"
        writer.put({f"{root}/{name}": name.encode() * (name != "empty") for name in names})
        assert ours.find(root).keys() == theirs.find(root).keys() == set(names)
        sizes = [{name: size for name, (size, _) in files.find(root).items()} for files in (ours, theirs)]
        etags = [{name: version.split()[0] for name, (_, version) in f.find(root).items()} for f in (ours, theirs)]
        assert sizes[0] == sizes[1] and etags[0] == etags[1]
        assert sorted(set(ours.names(root))) == sorted(set(theirs.names(root)))
        for name in names[:5]:
            assert reader.content(f"{root}/{name}") == name.encode()
        parts = bytearray(2), bytearray(5), bytearray(9)
        asked = [(f"{root}/plain", 1, 3), (f"{root}/plain", 0, 5), (f"{root}/plain", 2, 11)]
        *fine, short = reader.fill([(one, memoryview(part)) for one, part in zip(asked, parts, strict=True)])
        assert fine == [None, None] and parts[:2] == (b"la", b"plain")
        assert isinstance(short, ShortRead) and "3 of 9 bytes" in str(short)
        writer.remove([f"{root}/n/deep"])
        assert "n/deep" not in reader.find(root) and len(reader.find(root)) == 5
        reader.remove([f"{root}/{name}" for name in reader.find(root)])
        assert writer.find(root) == {} and writer.names(root) == []


def test_large_files_are_sent_in_parts(
    bucket: str, options: dict[str, Any], tmp_path: Path, faults: FaultyProxy
) -> None:
    files = ObstoreFiles("s3", {"endpoint_url": faults.url})
    data = bytes(range(256)) * (65 << 12)  # 65 MiB
    (tmp_path / "file").write_bytes(data)
    files.send({f"{bucket}/sent": str(tmp_path / "file")})
    assert [method for method, path, _ in faults.requests if "uploadId" in path or "uploads" in path].count("PUT") == 5
    assert files.content(f"{bucket}/sent") == data


def test_a_bucket_of_another_region_is_left_to_fsspec(
    bucket: str, options: dict[str, Any], faults: FaultyProxy
) -> None:
    store = Store("s3", {"endpoint_url": faults.url})
    store.put(f"{bucket}/x", b"12345")
    assert type(store.files) is ObstoreFiles
    faults.spoil("301", 1)
    assert store.content(f"{bucket}/x") == b"12345"
    assert faults.spoiled["301"] == 1 and type(store.files) is FsspecFiles


def test_options_that_this_version_refuses_are_left_to_fsspec(
    bucket: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store("s3", options)
    assert isinstance(store.files, ObstoreFiles)
    monkeypatch.setitem(store.files._how["client_options"], "an_option_of_a_later_version", "1s")
    assert store.names(bucket) == [] and type(store.files) is FsspecFiles


def test_a_process_that_uses_it_is_not_forked_for_workers(bucket: str, options: dict[str, Any]) -> None:
    files = ObstoreFiles("s3", options)
    assert files.names(bucket) == []
    assert not safe_to_fork(1)


FORKED = """
import os, sys, tdmap
url, endpoint = sys.argv[1:]
data = tdmap.open(url, storage_options={"endpoint_url": endpoint})
data.prefetch(0, 4)
assert data[0:2]["x"].tolist() == [0, 1]
child = os.fork()
rows = data[1:4]["x"].tolist() + data[[9, 0]]["x"].tolist()
assert rows == [1, 2, 3, 9, 0], rows
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    os._exit(0)
"""


def test_a_fork_of_the_users_reads_on(bucket: str, options: dict[str, Any]) -> None:
    """It has none of the threads that bring the bytes, and must not wait for them."""
    out = tdmap.map(numbers(0, 10), lambda rows: rows, num_workers=0, out=f"{bucket}/set", storage_options=options)
    assert same(out.contiguous(), numbers(0, 10))
    command = ["-c", FORKED, f"{bucket}/set", options["endpoint_url"]]
    done = interpreters.run(command)
    assert done.returncode == 0, done.stderr


def test_a_reader_of_files_never_finds_half_an_object(tmp_path: Path) -> None:
    files, url = FsspecFiles("local", {"auto_mkdir": True}), f"local://{tmp_path}/new/note"
    contents = [b"a" * 100_000, b"b" * 300_000]
    files.put({url: contents[0]})
    done = threading.Event()

    def write() -> None:
        for number in range(200):
            files.put({url: contents[number % 2]})
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert files.content(url) in contents
    writer.join()
    assert files.names(f"local://{tmp_path}/new") == ["note"]
