"""Names of objects and paths of manifests that lead out of a dataset are refused by every reader."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap import reducers
from tdmap.shards.sources import digest_of
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError

NAMES = ["o/../../../x", "o/../../../../../../../..{root}/x", "../x", "o/./x", "o//x", "o/..\\x", "..\\x"]

READS: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    "rows": lambda url, options: tdmap.open(url, storage_options=options)[0:2]["o"].tolist(),
    "map": lambda url, options: tdmap.open(url, storage_options=options).map(lambda chunk: chunk, num_workers=0),
    "reduce": lambda url, options: tdmap.reduce(
        tdmap.open(url, storage_options=options), reducers.Count(), num_workers=0
    ),
    "overwrite": lambda url, options: tdmap.map(
        TensorDict({"x": torch.arange(3)}, [3]), lambda chunk: chunk, out=url, num_workers=0, overwrite=True,
        storage_options=options,
    ),
}  # fmt: skip


def saved(folder: Path) -> Path:
    TensorDict({"x": torch.arange(3), "o": [1, {"a": 2}, None]}, [3]).memmap(folder)
    return folder


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("name", NAMES)
def test_an_object_whose_name_leads_out_is_refused(name: str, read: str, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = pytest.importorskip("fsspec.implementations.memory")
    fs = fsspec.filesystem("memory")
    fs.put(str(saved(tmp_path / "set")), "/set", recursive=True)
    evil = f"/set/{name.format(root=tmp_path)}"
    fs.store[evil] = memory.MemoryFile(fs, evil, b"written by a bucket")
    before = sorted(tmp_path.rglob("*"))
    try:
        with pytest.raises((DatasetError, FileExistsError), match="leads out of its folder"):
            READS[read]("memory://set", {})
    finally:
        fs.store.pop(evil)
        fs.rm("/set", recursive=True)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("transport", ["obstore", "fsspec"])
def test_both_transports_refuse_such_an_object(
    transport: str, read: str, bucket: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boto3 = pytest.importorskip("boto3")
    monkeypatch.setenv("TDMAP_STORE_TRANSPORT", transport)
    client = boto3.client("s3", **options)
    bucket_name, folder = bucket.removeprefix("s3://"), saved(tmp_path / "set")
    for path in folder.rglob("*"):
        if path.is_file():
            client.put_object(Bucket=bucket_name, Key=f"set/{path.relative_to(folder)}", Body=path.read_bytes())
    client.put_object(Bucket=bucket_name, Key=f"set/o/../../../../../../../..{tmp_path}/pwned", Body=b"by S3")
    with pytest.raises((DatasetError, FileExistsError), match="leads out of its folder"):
        READS[read](f"{bucket}/set", options)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("link", ["sub", "a/sub", "sub/ds"])
def test_a_manifest_does_not_lead_through_a_link(link: str, tmp_path: Path) -> None:
    saved(tmp_path / "private" / "ds")
    place = tmp_path / "evil" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "private" / "ds" if link.endswith("ds") else tmp_path / "private")
    path = link if link.endswith("ds") else f"{link}/ds"
    shard = {"path": path, "rows": 3, "meta": digest_of(str(tmp_path / "private" / "ds")), "bytes": 24}
    manifest = {"format": "tdmap.shards", "version": 1, "rows": 3, "shards": [shard]}
    (tmp_path / "evil" / "shards.json").write_text(json.dumps(manifest))
    with pytest.raises(DatasetError, match="symbolic link"):
        tdmap.open(tmp_path / "evil")
    os.symlink(tmp_path / "evil", tmp_path / "to evil")
    with pytest.raises(DatasetError, match="symbolic link"):
        tdmap.open(tmp_path / "to evil")


def test_a_dataset_that_is_reached_through_a_link_opens(tmp_path: Path) -> None:
    tdmap.map(torch_rows(), lambda chunk: chunk, out=tmp_path / "set", rows_per_shard=2, num_workers=0)
    os.symlink(tmp_path / "set", tmp_path / "link")
    assert tdmap.open(tmp_path / "link")["x"].tolist() == [0, 1, 2, 3, 4]


def torch_rows() -> TensorDict:
    return TensorDict({"x": torch.arange(5)}, [5])


@pytest.mark.parametrize("transport", ["obstore", "fsspec"])
def test_objects_that_stand_for_folders_are_no_files(
    transport: str, bucket: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The console of S3 makes them."""
    boto3 = pytest.importorskip("boto3")
    monkeypatch.setenv("TDMAP_STORE_TRANSPORT", transport)
    client = boto3.client("s3", **options)
    client.put_object(Bucket=bucket.removeprefix("s3://"), Key="set/", Body=b"")
    for overwrite in (False, True):
        out = tdmap.map(
            torch_rows(), lambda chunk: chunk, out=f"{bucket}/set", num_workers=0, storage_options=options,
            overwrite=overwrite,
        )  # fmt: skip
        assert out["x"].tolist() == [0, 1, 2, 3, 4]
