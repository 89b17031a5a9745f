"""Datasets in a real S3 server: read by ranges, written whole or not at all, through failures of the network."""

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tests.processes import comes_true
from tests.stores.kinds import KINDS, numbers, same
from tests.stores.proxy import FaultyProxy

pytestmark = pytest.mark.xdist_group("stores")


def keep(chunk: Any) -> Any:
    return chunk.clone()


def double(chunk: Any) -> TensorDict:
    return TensorDict({"z": chunk["x"] * 2, "s": chunk["p"].float().sum((1, 2))}, chunk.batch_size)


@pytest.fixture(scope="session")
def _made() -> dict[str, str]:
    return {}


@pytest.fixture
def url(server: str, options: dict[str, Any], _made: dict[str, str]) -> str:
    """A dataset of five shards with fifty rows; tests leave it as it is."""
    import fsspec

    if server not in _made:
        fsspec.filesystem("s3", **options).mkdir("shared")
        tdmap.map(
            numbers(0, 50), keep, num_workers=0, out="s3://shared/set", rows_per_shard=10, storage_options=options
        )
        _made[server] = "s3://shared/set"
    return _made[server]


# -- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_rows_of_every_kind_come_back(kind: Any, bucket: str, options: dict[str, Any], tmp_path: Path) -> None:
    import fsspec

    rows = kind(0, 12)
    rows.memmap(tmp_path / "one")
    fsspec.filesystem("s3", **options).put(f"{tmp_path}/one", f"{bucket}/one", recursive=True)
    data = tdmap.open(f"{bucket}/one", storage_options=options)
    assert same(data.contiguous(), rows)
    assert same(data[3:7], rows[3:7]) and same(data[[11, 0, 5]], rows[[11, 0, 5]]) and same(data[4], rows[4])
    assert same(torch.cat(list(tdmap.map_iter(data, keep, num_workers=0, chunksize=5))), rows)


def test_operations_over_a_store(url: str, options: dict[str, Any], tmp_path: Path) -> None:
    data, whole = tdmap.open(url, storage_options=options), numbers(0, 50)
    assert same(tdmap.map(data, double, num_workers=2, chunksize=4), double(whole))
    assert same(tdmap.filter(data, lambda c: c["x"] % 3 == 0, num_workers=2), whole[::3])
    assert same(tdmap.shuffle(data, seed=1, num_workers=2), tdmap.shuffle(whole, seed=1, num_workers=0))
    assert same(tdmap.sort(data, ("n", "m", "z"), num_workers=2, out=tmp_path / "sorted"), whole.flip(0))
    sevens = [f"{row % 7}" for row in range(50)]
    by_word = tdmap.sort(data, lambda rows: [f"{x % 7}" for x in rows["x"].tolist()], num_workers=2)
    assert same(by_word, whole[sorted(range(50), key=sevens.__getitem__)])


def test_only_the_rows_and_columns_that_are_wanted_are_fetched(url: str, faults: FaultyProxy) -> None:
    data = tdmap.open(url, storage_options={"endpoint_url": faults.url})
    data[0:1]  # what each folder needs once
    faults.heal()
    rows = data.select("x")[3:5]
    assert rows["x"].tolist() == [3, 4]
    assert [(method, asked) for method, _, asked in faults.requests] == [("GET", "bytes=24-39")]
    faults.heal()
    assert data[[2, 9]]["p"].shape == (2, 2, 3)
    assert all("shard" in path and asked for _, path, asked in faults.requests)


def fetched(faults: FaultyProxy) -> list[int]:
    """The rows of x that were asked for, without those of the look at the first ones."""
    rows: list[int] = []
    for _, path, asked in [request for request in list(faults.requests) if request[1].endswith("/x.memmap")][1:]:
        first, last = asked.removeprefix("bytes=").split("-")
        shard = 10 * int(path.split("/")[-2].rpartition("-")[2])
        rows += range(shard + int(first) // 8, shard + int(last) // 8 + 1)
    return rows


@pytest.mark.parametrize("rows, chunksize", [(9, 2), (47, 4), (47, 10)])
def test_the_next_rows_are_fetched_while_the_function_runs(
    rows: int, chunksize: int, url: str, faults: FaultyProxy
) -> None:
    """They have been asked for before the function has returned from a chunk."""
    seen: list[bool] = []

    def fn(chunk: Any) -> Any:
        x = chunk["x"]
        seen.append(int(x[-1]) == rows - 1 or comes_true(lambda: int(x[-1]) + 1 in fetched(faults)))
        return TensorDict({"x": x}, [len(x)])

    data = tdmap.open(url, storage_options={"endpoint_url": faults.url}).window(0, rows)
    faults.heal()
    result = tdmap.map(data, fn, num_workers=0, chunksize=chunksize)
    assert result["x"].tolist() == list(range(rows))
    assert all(seen) and set(fetched(faults)) == set(range(rows))
    if chunksize == 10:  # those of a shard
        assert sorted(fetched(faults)) == list(range(rows))


def test_a_shard_is_fetched_in_one_request_a_column(url: str, faults: FaultyProxy, tmp_path: Path) -> None:
    """However small the chunks of the function are: each request costs its round trip."""
    data = tdmap.open(url, storage_options={"endpoint_url": faults.url})
    faults.heal()
    tdmap.map(data, keep, num_workers=0, chunksize=1, out=tmp_path / "set", rows_per_shard=10)
    asked = [asked for _, path, asked in faults.requests if path.endswith("/x.memmap")]
    assert asked.count("bytes=0-79") == 5 and len(asked) <= 7, "five shards, and a look at the first rows"


def test_workers_get_urls_and_no_credentials_are_shown(url: str, options: dict[str, Any]) -> None:
    data = tdmap.open(url, storage_options={**options, "secret": "the-secret", "key": "the-key"})
    assert "secret" not in repr(data) and len(pickle.dumps(data)) < 8_000
    with pytest.raises(DatasetError) as error:
        tdmap.open(f"{url}/nothing", storage_options={**options, "secret": "the-secret", "key": "the-key"})
    assert "the-secret" not in str(error.value)


# -- failures of the network -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["500", "cut", "slow"])
def test_requests_that_fail_are_made_again(fault: str, url: str, faults: FaultyProxy, through: dict[str, Any]) -> None:
    options = {"endpoint_url": faults.url, **through}
    data = tdmap.open(url, storage_options=options).window(0, 20)
    faults.spoil(fault, 3, lambda method, path: path.endswith(".memmap"))
    assert same(tdmap.map(data, double, num_workers=0, chunksize=10), double(numbers(0, 20)))
    assert faults.spoiled[fault] == 3


@pytest.mark.parametrize("fault", ["500", "cut"])
def test_workers_write_through_failures(fault: str, bucket: str, faults: FaultyProxy, through: dict[str, Any]) -> None:
    options = {"endpoint_url": faults.url, **through}
    faults.spoil(fault, 4, lambda method, path: method == "PUT")
    out = f"{bucket}/set"
    result = tdmap.map(numbers(0, 30), keep, num_workers=2, out=out, rows_per_shard=10, storage_options=options)
    assert faults.spoiled[fault] == 4
    assert same(result.contiguous(), numbers(0, 30))


def test_a_store_that_fails_for_good_is_an_error_that_names_the_object(
    url: str, faults: FaultyProxy, monkeypatch: pytest.MonkeyPatch, through: dict[str, Any]
) -> None:
    s3fs = pytest.importorskip("s3fs")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    data = tdmap.open(url, storage_options={"endpoint_url": faults.url, **through})
    faults.spoil("500", 1 << 30, lambda method, path: path.endswith("x.memmap"))
    with pytest.raises(OSError, match=r"x\.memmap failed 3 times"):
        data[0:3]
    assert 3 <= len(faults.requests) <= 40, "retries are bounded"


def test_no_rights_are_told_at_once(url: str, faults: FaultyProxy, through: dict[str, Any]) -> None:
    faults.spoil("403", 1 << 30)
    with pytest.raises(PermissionError, match=r"s3://shared/set.*credentials"):
        tdmap.open(url, storage_options={"endpoint_url": faults.url, **through})
    assert len(faults.requests) <= 4


# -- bad input -------------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_named(bucket: str, options: dict[str, Any], through: dict[str, Any]) -> None:
    options = {**options, **through}
    for source, told in (
        ("s3://no-such-bucket-here/set", "no such bucket"),
        (f"{bucket}/nothing", "neither meta.json nor shards.json"),
    ):
        with pytest.raises(DatasetNotFoundError, match=told):
            tdmap.open(source, storage_options=options)
    with pytest.raises(FileNotFoundError, match="no such bucket"):
        tdmap.map(numbers(0, 4), keep, num_workers=0, out="s3://no-such-bucket-here/set", storage_options=options)
    with pytest.raises(ValueError, match="fsspec does not know"):
        tdmap.open("nothing://a/b")
    with pytest.raises(ValueError, match="twice"):
        tdmap.open([f"{bucket}/a", f"{bucket}/a/"], storage_options=options)


def test_a_url_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match=r"pip install 'tdmap\[stores\]' gcsfs"):
        tdmap.open("gs://bucket/set")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ImportError, match=r"pip install 'tdmap\[stores\]'"):
        tdmap.open("s3://bucket/set", storage_options={"one": "of this test"})


def test_memory_is_seen_by_this_process_alone(credentials: None) -> None:
    out = "memory://tests/set"
    result = tdmap.map(numbers(0, 20), keep, num_workers=0, out=out, rows_per_shard=8, overwrite=True)
    assert same(result.contiguous(), numbers(0, 20))
    assert same(tdmap.map(result, double, num_workers=2, executor="thread"), double(numbers(0, 20)))
    for call in (
        lambda: tdmap.map(result, double, num_workers=2),
        lambda: tdmap.map(numbers(0, 8), keep, num_workers=2, out="memory://tests/other"),
    ):
        with pytest.raises(tdmap.errors.SerializationError, match="memory of this process"):
            call()


def test_an_object_that_was_cut_or_replaced_is_named(
    bucket: str, options: dict[str, Any], through: dict[str, Any]
) -> None:
    import fsspec

    options = {**options, **through}
    fs, out = fsspec.filesystem("s3", **options), f"{bucket}/set"
    data = tdmap.map(numbers(0, 20), keep, num_workers=0, out=out, rows_per_shard=10, storage_options=options)
    shard = data.shards[1].removeprefix("s3://")
    fs.pipe_file(f"{shard}/x.memmap", b"12345")
    with pytest.raises(DatasetError, match=r"x\.memmap.*has 5 bytes instead of 80"):
        tdmap.open(out, storage_options=options)[15]
    fs.pipe_file(f"{shard}/meta.json", fs.cat_file(f"{shard}/meta.json").replace(b"[10", b"[9"))
    with pytest.raises(DatasetError, match="replaced"):
        tdmap.open(out, storage_options=options)[15]
    fs.rm(shard, recursive=True)
    with pytest.raises(DatasetNotFoundError, match="missing"):
        tdmap.open(out, storage_options=options)[15]
    assert int(tdmap.open(out, storage_options=options)[5]["x"]) == 5


# -- writing ---------------------------------------------------------------------------------------------------------


def test_a_failed_run_leaves_no_dataset_and_resume_goes_on(
    bucket: str, options: dict[str, Any], tmp_path: Path, through: dict[str, Any]
) -> None:
    import fsspec

    options = {**options, **through}
    fs, out, data = fsspec.filesystem("s3", **options), f"{bucket}/set", numbers(0, 40)
    log, healed = tmp_path / "log", tmp_path / "healed"

    def fn(chunk: Any) -> Any:
        first = int(chunk["x"][0])
        with open(log, "a") as file:
            print(first, file=file)
        if first == 20 and not healed.exists():
            raise ValueError("bad row")
        return chunk.select("x")

    def run(**more: Any) -> Any:
        return tdmap.map(
            data, fn, num_workers=0, chunksize=10, out=out, rows_per_shard=10, storage_options=options, **more
        )

    with pytest.raises(ValueError, match="bad row"):
        run()
    assert fs.find(bucket) == []
    log.unlink()
    with pytest.raises(ValueError, match="bad row"):
        run(resume=True)
    with pytest.raises(DatasetNotFoundError, match="is unfinished"):
        tdmap.open(out, storage_options=options)
    with pytest.raises(FileExistsError, match="unfinished run"):
        run()
    healed.touch()
    assert run(resume=True)["x"].tolist() == list(range(40))
    assert log.read_text().split() == ["0", "10", "20", "20", "30"], "what is written is not made again"
    with pytest.warns(tdmap.errors.AlreadyComplete):
        run(resume=True)


def test_an_object_that_was_replaced_is_another_source(bucket: str, options: dict[str, Any]) -> None:
    import fsspec

    fs, how = fsspec.filesystem("s3", **options), {"num_workers": 0, "rows_per_shard": 10, "storage_options": options}
    source = tdmap.map(numbers(0, 10), keep, out=f"{bucket}/source", **how)
    tdmap.map(source, keep, out=f"{bucket}/set", resume=True, **how)
    for name in ("x.memmap", "n/y.memmap"):  # each of them has its own tag, and no order is among tags
        before = fs.cat_file(f"{source.shards[0]}/{name}")
        fs.pipe_file(f"{source.shards[0]}/{name}", bytes(len(before)))
        with pytest.raises(tdmap.errors.ResumeMismatch):
            tdmap.map(
                tdmap.open(f"{bucket}/source", storage_options=options), keep, out=f"{bucket}/set", resume=True, **how
            )
        fs.pipe_file(f"{source.shards[0]}/{name}", before)


def test_a_dataset_in_a_store_is_replaced_when_the_new_one_is_whole(
    bucket: str, options: dict[str, Any], through: dict[str, Any]
) -> None:
    import fsspec

    options = {**options, **through}
    out, data = f"{bucket}/set", numbers(0, 20)
    first = tdmap.map(data, keep, num_workers=0, out=out, storage_options=options)
    assert len(first.shards) > 4, "a store gets several shards where nobody says how many"
    with pytest.raises(FileExistsError, match="holds a dataset already"):
        tdmap.map(data, keep, num_workers=0, out=out, storage_options=options)
    tdmap.map(data, double, num_workers=0, out=out, storage_options=options, overwrite=True, rows_per_shard=20)
    assert same(tdmap.open(out, storage_options=options).contiguous(), double(data))
    names = {path.split("/")[2] for path in fsspec.filesystem("s3", **options).find(out)}
    assert len(names) == 2, "one shard, and the manifest"


def test_a_url_of_this_machine_is_a_folder(tmp_path: Path) -> None:
    tdmap.map(numbers(0, 8), keep, out=f"file://{tmp_path}/set", num_workers=0)
    assert same(tdmap.open(tmp_path / "set"), numbers(0, 8))
