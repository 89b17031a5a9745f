"""Many strings in a store: two objects, of which the rows that are wanted are fetched, and no others."""

from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.tuning import DEFAULT
from tests.stores.kinds import same
from tests.stores.proxy import FaultyProxy

pytestmark = pytest.mark.xdist_group("stores")

ROWS = DEFAULT.text_rows + 7


def named(kind: type = str) -> TensorDict:
    """Rows with a string or bytes each, some of them empty, at two levels."""
    rows = TensorDict({"x": torch.arange(ROWS), "n": {"y": torch.arange(ROWS)}}, [ROWS])
    values: list[Any] = ["" if row % 5 == 0 else f"row {row} é" * (row % 3) for row in range(ROWS)]
    if kind is bytes:
        values = [value.encode() for value in values]
    rows["s"] = values
    rows["n", "t"] = values[::-1]
    return rows


def keep(chunk: Any) -> Any:
    return chunk


def test_strings_are_written_and_read_as_two_objects(bucket: str, options: dict[str, Any], faults: FaultyProxy) -> None:
    import fsspec

    rows, out = named(), f"{bucket}/set"
    tdmap.map(rows, keep, num_workers=0, out=out, rows_per_shard=ROWS, storage_options=options)
    found = {path.split("/", 3)[3] for path in fsspec.filesystem("s3", **options).find(out) if "/shard-" in path}
    strings = {f"{folder}/{name}.memmap" for folder in ("s", "n/t") for name in ("values", "offsets")}
    assert found == {"meta.json", "s/meta.json", "n/meta.json", "n/t/meta.json", "x.memmap", "n/y.memmap"} | strings
    data = tdmap.open(out, storage_options={"endpoint_url": faults.url})
    assert same(data[5:9], rows[5:9])
    faults.heal()
    some = data[4000:4003]
    assert list(some["s"]) == list(rows["s"])[4000:4003] and list(some["n", "t"]) == list(rows["n", "t"])[4000:4003]
    fetched = [path.rpartition("shard-")[2].partition("/")[2] for _, path, asked in faults.requests if asked]
    assert sorted(fetched) == sorted({"x.memmap", "n/y.memmap"} | strings), "one range of each object"
    for _, _, asked in faults.requests:
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        assert last - first < 100
    far = [ROWS - 1, 0, 17, 17, 4000]
    assert same(data[far], rows[far]) and same(data[10:10], rows[10:10])
    faults.heal()
    assert list(data.select("s")[0:3]["s"]) == list(rows["s"])[0:3]
    assert all("/s/" in path for _, path, _ in faults.requests)


def test_bytes_of_a_folder_that_was_copied_there(bucket: str, options: dict[str, Any], tmp_path: Path) -> None:
    import fsspec

    rows = named(bytes)
    rows.memmap(tmp_path / "set")
    fsspec.filesystem("s3", **options).put(f"{tmp_path}/set", f"{bucket}/set", recursive=True)
    data = tdmap.open(f"{bucket}/set", storage_options=options)
    assert same(data[[7, 4100, 3]], rows[[7, 4100, 3]]) and same(data[1:4], rows[1:4])


def test_operations_over_strings_in_a_store(bucket: str, options: dict[str, Any]) -> None:
    rows = named()
    data = tdmap.map(rows, keep, num_workers=0, out=f"{bucket}/set", rows_per_shard=ROWS, storage_options=options)
    assert same(data.contiguous(), rows)
    kept = tdmap.filter(data, lambda chunk: chunk["x"] % 1000 == 1, num_workers=0)
    assert list(kept["s"]) == [list(rows["s"])[row] for row in kept["x"].tolist()] and len(kept) == 5
    again = tdmap.map(data, keep, num_workers=2, out=f"{bucket}/two", rows_per_shard=3000, storage_options=options)
    assert same(again.contiguous(), rows)


def test_strings_that_are_cut_or_lead_astray_are_named(bucket: str, options: dict[str, Any]) -> None:
    import fsspec

    fs, out = fsspec.filesystem("s3", **options), f"{bucket}/set"
    data = tdmap.map(named(), keep, num_workers=0, out=out, rows_per_shard=ROWS, storage_options=options)
    folder = f"{data.shards[0].removeprefix('s3://')}/s"
    offsets = fs.cat_file(f"{folder}/offsets.memmap")
    wrong = torch.frombuffer(bytearray(offsets), dtype=torch.int64).clone()
    wrong[3] = 1 << 40
    fs.pipe_file(f"{folder}/offsets.memmap", wrong.numpy().tobytes())
    with pytest.raises(DatasetError, match=r"s/offsets\.memmap.*leads out"):
        tdmap.open(out, storage_options=options)[0:3]
    fs.pipe_file(f"{folder}/offsets.memmap", offsets[:-8])
    with pytest.raises(DatasetError, match=r"offsets\.memmap.*is truncated"):
        tdmap.open(out, storage_options=options)[0:3]
    meta = fs.cat_file(f"{folder}/meta.json")
    fs.pipe_file(f"{folder}/meta.json", meta.replace(f'"rows": {ROWS}'.encode(), b'"rows": -1'))
    with pytest.raises(DatasetError, match="needs kind, rows and bytes of strings"):
        tdmap.open(out, storage_options=options)[0:3]
