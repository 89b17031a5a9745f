"""Several folders opened as one: the same rows, and the same results of every operation, as of one dataset."""

import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tdmap.reducers import Sum
from tdmap.shards import sources
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tests.processes import in_child
from tests.stores.kinds import KINDS, numbers, same, strings

LENGTHS = (7, 13, 1, 20, 9)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def saved(root: Path, kind: Any = numbers, lengths: tuple[int, ...] = LENGTHS) -> tuple[list[str], Any]:
    """Folders of consecutive rows, and all of these rows in memory."""
    first, folders, parts = 0, [], []
    for place, count in enumerate(lengths):
        rows = kind(first, count)
        rows.memmap(f"{root}/part{place}")
        folders.append(f"{root}/part{place}")
        parts.append(rows)
        first += count
    return folders, torch.cat(parts)


def double(chunk: Any) -> TensorDict:
    return TensorDict({"z": chunk["x"] * 2 + chunk["n", "y"], "s": chunk["p"].float().sum((1, 2))}, chunk.batch_size)


# -- rows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_rows_of_every_kind_are_those_of_the_folders(kind: Any, root: Path) -> None:
    folders, whole = saved(root, kind)
    data = tdmap.open(folders)
    assert len(data) == len(whole) and tuple(data.batch_size)[0] == 50
    for index in (0, 49, -1, slice(3, 30), slice(20, 21), slice(5, 5), slice(0, 50, 7)):
        assert same(data[index], whole[index]), index
    for rows in ([49, 0, 20, 20, 7], torch.tensor([-1, 5]), torch.arange(50) % 3 == 0, range(8, 3, -1)):
        wanted = torch.as_tensor(list(rows) if isinstance(rows, range) else rows)
        assert same(data[rows], whole[wanted]), rows
    assert same(data.contiguous(), whole)


def test_columns_keys_and_parts(root: Path) -> None:
    folders, whole = saved(root, strings)
    data = tdmap.open(folders)
    assert list(data.keys()) == list(whole.keys()) and "s" in data and "q" not in data
    assert torch.equal(data["x"], whole["x"]) and list(data["s"]) == list(whole["s"])
    assert same(data.get("s"), whole.get("s"))
    assert data.get("q", None) is None
    some = data.select("s")
    assert list(some.keys()) == ["s"] and list(some[6:9]["s"]) == ["row 6", "row 7", "row 8"]
    assert "s" not in data.exclude("s")
    assert data.shards == folders and data.ends == [7, 20, 21, 41, 50]
    assert [len(piece) for piece in data.split(20)] == [20, 20, 10]
    assert sum(int(row["x"]) for row in data) == sum(range(50))
    with pytest.raises(KeyError):
        data["q"]


@pytest.mark.parametrize("index", [50, -51, [0, 50], [[50]], torch.zeros(3, dtype=torch.bool), torch.tensor([0.5])])
def test_rows_that_are_not_there_are_an_error(index: Any, root: Path) -> None:
    data = tdmap.open(saved(root)[0])
    with pytest.raises(IndexError):
        data[index]


MASK = torch.arange(50) % 3 == 0
INDICES = [
    *(MASK.to(torch.uint8), MASK.numpy().astype("u1"), MASK.numpy(), MASK.tolist(), (MASK.to(torch.uint8),)),
    *(torch.ones(2, dtype=torch.uint8), torch.ones(50, 1, dtype=torch.bool), torch.tensor(1, dtype=torch.uint8)),
    *(torch.tensor([[0, 49], [-1, 7]]), np.array([[3], [4]]), [[3, 4]], torch.zeros(0, 2, dtype=torch.int64)),
    *(True, False, np.True_, torch.tensor(True), np.array(False), (True,), None, ...),
    *(slice(None, None, -1), slice(None, None, 20), range(9, 2, -3), np.array([4, 2])[::-1], np.array([4, 2], ">i8")),
    *(np.array([1, 2], kind) for kind in ("i1", "u1", "u2", "i4", "u8", "f4", "O", "U1")),
    *([], torch.tensor([]), np.zeros(0), torch.tensor(3), np.int8(3), np.array(49), ["x"], {1}, b"x", "x y"),
]


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("kind", [numbers, strings])
@pytest.mark.parametrize("index", INDICES)
def test_an_index_means_what_it_means_in_memory(kind: Any, index: Any, root: Path) -> None:
    folders, whole = saved(root, kind)
    try:
        expected = whole[index]
    except (IndexError, TypeError, ValueError, KeyError) as error:
        with pytest.raises((IndexError, type(error))):
            tdmap.open(folders)[index]
    else:
        assert same(tdmap.open(folders)[index], expected)


def test_what_is_done_to_rows_does_not_reach_the_files(root: Path) -> None:
    folders, whole = saved(root)
    data = tdmap.open(folders)
    rows = data[0:5]
    rows["x"].fill_(-1)
    rows["new"] = torch.zeros(5)
    assert torch.equal(data[0:5]["x"], whole[0:5]["x"])
    assert torch.equal(TensorDict.load_memmap(folders[0])["x"], whole[:7]["x"])

    def change(chunk: Any) -> Any:
        chunk["x"] += 100
        return chunk.select("x")

    result = tdmap.map(data, change, num_workers=2, chunksize=4)
    assert torch.equal(result["x"], whole["x"] + 100)
    assert torch.equal(tdmap.open(folders)["x"], whole["x"])


def test_it_is_read_only(root: Path) -> None:
    data = tdmap.open(saved(root)[0])
    for write in (lambda: data.__setitem__("x", 1), lambda: data.set("x", 1), lambda: data.zero_()):
        with pytest.raises((TypeError, AttributeError), match="read-only"):
            write()
    with pytest.raises(TypeError, match="ShardedDataset"):
        data + 1
    with pytest.raises(ValueError, match="read-only"):
        tdmap.map(data, double, out=data)
    with pytest.raises(tdmap.errors.OutputMismatch, match="returned None"):
        tdmap.map(data, lambda chunk: None, num_workers=0)
    with pytest.raises(ValueError, match="dimension 0"):
        tdmap.map(tdmap.concat([TensorDict({"x": torch.zeros(2, 3)}, [2, 3])] * 1), double, dim=1)


def test_datasets_in_memory_mapped_and_sharded_follow_each_other(root: Path) -> None:
    folders, whole = saved(root)
    mapped = TensorDict.load_memmap(folders[1])
    data = tdmap.concat([tdmap.open(folders[:1]), mapped, numbers(20, 5), mapped[:0], numbers(25, 25)[:]])
    assert same(data.contiguous(), numbers(0, 50))
    assert same(tdmap.map(data, double, num_workers=2, chunksize=3), double(whole))
    copy = pickle.loads(pickle.dumps(data))
    assert same(copy[18:27], whole[18:27])


# -- operations ----------------------------------------------------------------------------------------------------

OPERATIONS: dict[str, Any] = {
    "map by rows": lambda data: tdmap.map(data, lambda row: row.select("x"), num_workers=0, chunksize=0),
    "map by rank": lambda data: [tdmap.map(data, double, num_workers=0, chunksize=5, shard=(r, 3)) for r in range(3)],
    "shuffled iter": lambda data: list(
        tdmap.map_iter(data, lambda c: c["x"].clone(), num_workers=2, chunksize=4, shuffle=True, seed=3)
    ),
    "join right": lambda data: tdmap.join(TensorDict({"x": torch.arange(0, 60, 2)}, [30]), data, on="x", num_workers=2),
    "shuffled pipeline": lambda data: [batch.clone() for batch in data.pipeline().shuffle(seed=1).batch(8)],
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_every_operation_gives_what_one_dataset_gives(operation: Any, root: Path) -> None:
    folders, whole = saved(root)
    assert same(operation(tdmap.open(folders)), operation(whole))


def words(first: int, count: int) -> TensorDict:
    """Rows with strings that are there several times."""
    rows = range(first, first + count)
    named = TensorDict({"x": torch.arange(first, first + count), "n": TensorDict({}, [count])}, [count])
    named["s"] = [f"w{row * 37 % 11}" for row in rows]
    named["n", "s"] = [f"w{row % 3}" for row in rows]
    return named


TEAMS = TensorDict({"s": ["w1", "w3", "other"], "team": torch.arange(3)}, [3])
BY_STRINGS: dict[str, Any] = {
    "sort": lambda data, workers: tdmap.sort(data, "s", num_workers=workers),
    "sort by two": lambda data, workers: tdmap.sort(data, [("n", "s"), "x"], descending=True, num_workers=workers),
    "sort by a function": lambda data, workers: tdmap.sort(data, lambda rows: rows["s"], num_workers=workers),
    "reduce": lambda data, workers: tdmap.group_by(data, "s").reduce({"x": Sum("x")}, num_workers=workers),
    "agg": lambda data, workers: tdmap.group_by(data, ["s", ("n", "s")]).agg({"x": ["median"]}, num_workers=workers),
    "map_groups": lambda data, workers: tdmap.group_by(data, ("n", "s")).map_groups(
        lambda rows: rows[:2], num_workers=workers
    ),
    "top_k of groups": lambda data, workers: tdmap.group_by(data, "s").top_k("x", 2, num_workers=workers),
    "unique": lambda data, workers: tdmap.unique(data, "s", num_workers=workers),
    "value_counts": lambda data, workers: tdmap.value_counts(data, "s", num_workers=workers),
    "join left": lambda data, workers: tdmap.join(data, TEAMS, "s", "left", num_workers=workers),
    "join right": lambda data, workers: tdmap.join(TEAMS, data, "s", "right", num_workers=workers),
    "join anti": lambda data, workers: tdmap.join(data, TEAMS, "s", "anti", num_workers=workers),
    "join outer": lambda data, workers: tdmap.join(TEAMS, data, "s", "outer", num_workers=workers),
    "split": lambda data, workers: list(tdmap.train_test_split(data, 0.25, seed=0, stratify="s", num_workers=workers)),
}


@pytest.mark.parametrize("operation", BY_STRINGS.values(), ids=BY_STRINGS)
def test_strings_are_keys_as_of_one_dataset(operation: Any, root: Path) -> None:
    folders, whole = saved(root, words)
    wanted = operation(whole, 0)
    first, last = tdmap.open(folders[:2]), tdmap.open(folders[2:])
    in_memory = words(sum(LENGTHS[:2]), sum(LENGTHS[2:]))
    for data, workers in (
        (tdmap.open(folders), 2),
        (tdmap.concat([first, last]), 0),
        (tdmap.concat([first, in_memory]), 0),
    ):
        assert same(operation(data, workers), wanted)


def test_columns_beside_those_of_folders(root: Path) -> None:
    folders, whole = saved(root, words)
    more = TensorDict({"k": torch.arange(50) ** 2}, [50])
    for data in (tdmap.open(folders), tdmap.open(folders).select("x"), tdmap.open(folders).window(5, 45)):
        first = 5 if len(data) == 40 else 0
        wide = pickle.loads(pickle.dumps(data.with_columns(more[first : first + len(data)])))
        assert torch.equal(wide["k"], wide["x"] ** 2) and set(wide.keys()) == {*data.keys(), "k"}
        assert torch.equal(wide[3:30]["k"], wide[3:30]["x"] ** 2)
        assert torch.equal(wide[[30, 2, 20]].get("k"), wide[[30, 2, 20]]["x"] ** 2)
        assert wide.select("k")[[-1, 0]]["k"].tolist() == [(first + len(data) - 1) ** 2, first**2]
        assert wide.exclude("k").keys() == data.keys()


def test_an_entry_without_tensors_has_all_rows(root: Path) -> None:
    rows = TensorDict({"x": torch.arange(3), "none": TensorDict({"inner": {}}, [3])}, [3])
    data = tdmap.concat([rows, rows.clone()])
    for found in (data["none"], data.get("none"), data.select("none")["none"]):
        assert found.batch_size == (6,) and found["inner"].batch_size == (6,)
    other = TensorDict({"x": torch.tensor([1]), "y": torch.tensor([5])}, [1])
    assert tdmap.join(data, other, "x", "outer", num_workers=0)["none"].batch_size == (6,)


def test_workers_get_paths_and_not_rows(root: Path) -> None:
    """However many rows there are, what is sent to a worker is the names of the folders."""
    folders, _ = saved(root, numbers, (20_000, 20_000))
    assert len(pickle.dumps(tdmap.open(folders))) < 8_000


# -- a part that is not as it should be ------------------------------------------------------------------------------


def test_a_part_travels_with_its_own_folders_alone(root: Path) -> None:
    folders, whole = saved(root)
    part = pickle.dumps(tdmap.open(folders).window(5, 9))
    assert [folder for folder in folders if folder.encode() in part] == folders[:2]
    assert same(pickle.loads(part)[:], whole[5:9])


def test_datasets_that_do_not_fit_are_refused_by_name(root: Path) -> None:
    a, b = TensorDict({"x": torch.zeros(3, 2)}, [3]), TensorDict({"x": torch.zeros(3, 4)}, [3])
    c, d = TensorDict({"y": torch.zeros(3, 2)}, [3]), TensorDict({"x": torch.zeros(3, 2, dtype=torch.int32)}, [3])
    for name, rows in zip("abcd", (a, b, c, d), strict=True):
        rows.memmap(f"{root}/{name}")
    for other, told in (("b", r"shape \(4,\)"), ("c", "'y'"), ("d", "int32")):
        with pytest.raises(ValueError, match=told) as error:
            tdmap.open([f"{root}/a", f"{root}/{other}"])
        assert f"{root}/a" in str(error.value) and f"{root}/{other}" in str(error.value)
        assert "'x'" in str(error.value)


def test_lists_that_make_no_dataset_are_refused(root: Path) -> None:
    folders, _ = saved(root)
    (root / "link").symlink_to(folders[0])
    for wrong, error, told in (
        ([], ValueError, "empty"),
        ([folders[0], f"{folders[0]}/"], ValueError, "twice"),
        ([folders[0], str(root / "link")], ValueError, "twice"),
        ([folders[0], f"{root}/nowhere"], DatasetNotFoundError, "nowhere"),
        ([folders[0], str(root)], DatasetNotFoundError, "neither meta.json nor shards.json"),
        ([3], TypeError, "int"),
        (3, TypeError, "int"),
    ):
        with pytest.raises(error, match=told):
            tdmap.open(wrong)
    for wrong in ([], [torch.zeros(3)], [TensorDict()], torch.zeros(3)):
        with pytest.raises((ValueError, TypeError), match="concat takes"):
            tdmap.concat(wrong)


@pytest.fixture
def sharded(root: Path) -> Path:
    """A folder of five shards of ten rows."""
    tdmap.map(numbers(0, 50), lambda chunk: chunk, num_workers=0, out=root / "set", rows_per_shard=10)
    return root / "set"


def shard_paths(folder: Path) -> list[Path]:
    return [folder / entry["path"] for entry in json.loads((folder / "shards.json").read_text())["shards"]]


def test_a_shard_that_is_missing_replaced_or_of_other_length_is_named(sharded: Path, root: Path) -> None:
    victim = shard_paths(sharded)[3]
    opened = tdmap.open(sharded)
    kept = root / "kept"
    victim.rename(kept)
    for read in (lambda: tdmap.open(sharded), lambda: opened[32]):
        with pytest.raises(DatasetError, match=f"{victim.name}.*missing"):
            read()
    numbers(0, 7).memmap(victim)
    for read in (lambda: tdmap.open(sharded), lambda: tdmap.map(opened, double, num_workers=2)):
        with pytest.raises(DatasetError, match=f"{victim.name}"):
            read()
    with pytest.raises(DatasetError, match="has 7 rows, and had 10"):
        tdmap.open(sharded)
    shutil.rmtree(victim)
    TensorDict({"x": torch.zeros(10)}, [10]).memmap(victim)
    with pytest.raises(DatasetError, match="is not the shard"):
        tdmap.open(sharded)
    shutil.rmtree(victim)
    victim.symlink_to(kept)
    with pytest.raises(DatasetError, match="symbolic link"):
        tdmap.open(sharded)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: m.update(format="other"), "not a manifest"),
        (lambda m: m.update(version=9), "version 9"),
        (lambda m: m.update(shards=[]), "lists no shards"),
        (lambda m: m.update(rows=3), "3 rows"),
        (lambda m: m["shards"][0].update(path="../elsewhere"), "leads out"),
        (lambda m: m["shards"][0].update(path="/etc"), "leads out"),
        (lambda m: m["shards"][0].update(path="s3://x/y"), "leads out"),
        (lambda m: m["shards"][0].update(rows=-1), "rows, bytes and a digest"),
        (lambda m: m["shards"].append(m["shards"][0]), "twice"),
        (lambda m: m["shards"].append("x"), "is an object"),
    ],
)
def test_a_manifest_that_was_edited_is_refused(change: Any, told: str, sharded: Path) -> None:
    manifest = json.loads((sharded / "shards.json").read_text())
    change(manifest)
    (sharded / "shards.json").write_text(json.dumps(manifest))
    with pytest.raises(DatasetError, match=told):
        tdmap.open(sharded)


def test_a_folder_of_shards_can_be_moved(sharded: Path, root: Path) -> None:
    sharded.rename(root / "elsewhere")
    assert same(tdmap.open(root / "elsewhere").contiguous(), numbers(0, 50))
    assert same(tdmap.open(f"file://{root}/elsewhere")[5:15], numbers(5, 10))


@pytest.mark.parametrize(
    "first", [2, [2, 0], torch.tensor([1, 3]), np.array(1), slice(1, 3), [True, False, True, False]]
)
@pytest.mark.parametrize("second", [(), (1,), ([1, 0],), (torch.tensor([1, 2]),), (slice(1, 3),), (None,)])
def test_an_index_of_several_parts_means_what_it_means_in_memory(first, second):
    data = TensorDict({"x": torch.arange(24).reshape(4, 3, 2)}, [4, 3])
    shards = tdmap.concat([data[:1], data[1:]])
    assert torch.equal(shards[(first, *second)]["x"], data[(first, *second)]["x"])


def test_functions_of_torch_say_what_to_use():
    shards = tdmap.concat([TensorDict({"x": torch.arange(3)}, [3])] * 1)
    with pytest.raises(TypeError, match=r"torch.cat takes collections in memory.*tdmap.concat"):
        torch.cat([shards, shards])


@pytest.mark.parametrize("kind", [numbers, strings])
def test_rows_in_random_order_open_each_shard_once(root: Path, kind: Any) -> None:
    folders, rows = saved(root, kind, (4,) * 100)
    data = tdmap.open(folders)

    def read() -> None:
        opened: list[str] = []
        sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" else None)
        batches = list(data.pipeline().shuffle(seed=0).batch(50).iter(num_workers=0, epoch=0))
        assert same(tdmap.sort(torch.cat(batches), "x"), tdmap.sort(rows, "x"))
        assert max(sum(str(path).startswith(f"{folder}/") for path in opened) for folder in folders) < 12

    assert in_child(read) == 0


def test_shards_that_were_read_last_stay_open(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a process may have mappings for; the others are opened again."""
    monkeypatch.setattr(sources, "MOST_OPEN", 40)
    folders, rows = saved(root, numbers, (4,) * 50)
    data = tdmap.open(folders)
    for first in (0, 100, 50, 0):
        assert same(data[first : first + 100], rows[first : first + 100])
        assert 0 < len(mapped_files(root)) <= 40


def mapped_files(root: Path) -> set[str]:
    return {line.split()[-1] for line in open("/proc/self/maps") if f"{root}/" in line}


def test_files_of_text_count_among_those_that_stay_open(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_OPEN", 8)
    texts = [f"row {number}" for number in range(5000)]
    for place in range(12):
        TensorDict({"t": texts}, [5000]).memmap(f"{root}/part{place}")
    data = tdmap.open([f"{root}/part{place}" for place in range(12)])
    for place in range(12):
        assert data[5000 * place + 7 : 5000 * place + 9]["t"] == texts[7:9]
        assert 0 < len(mapped_files(root)) <= 8
