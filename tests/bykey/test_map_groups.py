"""`map_groups` calls a function once with all rows of each group; its results are in the order of the keys."""

import pytest
import torch

import tdmap
from tdmap import tuning
from tensordict_lite import Ragged, TensorDict


@pytest.fixture
def small_pieces():
    with tuning.use(partition_bytes=4096, light_bytes=0):
        yield


def dataset(rows, keys):
    return TensorDict(
        {
            "k": torch.randint(0, keys, (rows,)),
            "row": torch.arange(rows),
            "m": {"x": torch.randn(rows, 3), "b": torch.arange(rows).byte()},
        },
        [rows],
    )


def expected_rows(data):
    return torch.sort(data["k"], stable=True).indices


@pytest.mark.parametrize("executor", ["process", "thread", "serial"])
@pytest.mark.parametrize("keys", [1, 5, 2000])
def test_every_row_is_seen_once_in_the_order_of_keys_and_rows(executor, keys, small_pieces):
    data = dataset(2000, keys)

    def check(rows):
        assert (rows["k"] == rows["k"][0]).all()
        assert (rows["row"].diff() > 0).all()
        return rows

    result = tdmap.group_by(data, "k").map_groups(check, num_workers=2, executor=executor, chunksize=70)
    assert (result == data[expected_rows(data)]).all()


def test_single_rows_none_and_any_number_of_rows():
    data = dataset(600, 20)

    def uneven(rows):
        key = int(rows["k"][0])
        if key % 3 == 0:
            return None
        return rows[0] if key % 3 == 1 else rows[: key // 2]

    result = tdmap.group_by(data, "k").map_groups(uneven, num_workers=2)
    parts = []
    for key in range(20):
        rows = data[data["k"] == key]
        if key % 3:
            parts.append(rows[:1] if key % 3 == 1 else rows[: key // 2])
    assert (result == torch.cat(parts)).all()


def test_results_with_other_entries_in_a_folder(tmp_path, small_pieces):
    data = dataset(1000, 40)

    def summary(rows):
        return TensorDict({"k": rows["k"][0], "mean": rows["m", "x"].mean(0), "n": torch.tensor(len(rows))}, [])

    result = tdmap.group_by(data, "k").map_groups(summary, out=tmp_path / "out", num_workers=2)
    assert result["k"].tolist() == data["k"].unique().tolist()
    for key, mean, n in zip(result["k"], result["mean"], result["n"], strict=True):
        rows = data[data["k"] == key]
        assert torch.equal(mean, rows["m", "x"].mean(0)) and n == len(rows)
    assert (TensorDict.load_memmap(tmp_path / "out") == result).all()


def test_a_function_may_change_its_rows(tmp_path):
    data = dataset(100, 4).memmap(tmp_path / "in")
    before = data.clone()

    def change(rows):
        rows["row"].fill_(7)
        return rows

    result = tdmap.group_by(data, "k").map_groups(change, num_workers=2)
    assert (result["row"] == 7).all() and (data == before).all()


@tuning.use(heap_bytes=4096)
def test_a_huge_group_is_mapped():
    data = dataset(4000, 5)
    data["k"][data["k"] < 3] = 0

    def check(rows):
        return TensorDict(
            {
                "mapped": torch.tensor([rows["row"].untyped_storage().filename is not None]),
                "s": rows["row"].sum()[None],
            },
            [1],
        )

    result = tdmap.group_by(data, "k").map_groups(check, num_workers=2, chunksize=100)
    assert result["s"].tolist() == [int(data["row"][data["k"] == key].sum()) for key in (0, 3, 4)]
    assert result["mapped"].all()
    whole = tdmap.group_by(data, "k").map_groups(lambda rows: rows, num_workers=2, chunksize=100)
    assert (whole == data[expected_rows(data)]).all()


def test_objects_strings_and_lazy_stacks_go_by_number():
    words = [f"w{row % 7}" for row in range(50)]
    data = TensorDict({"word": words, "row": torch.arange(50)}, [50])
    result = tdmap.group_by(data, "word").map_groups(lambda rows: rows[:2], num_workers=2)
    assert result["word"] == [f"w{key}" for key in range(7) for _ in range(2)]
    assert result["row"].tolist() == [row for key in range(7) for row in (key, key + 7)]
    stack = TensorDict.lazy_stack([TensorDict({"k": torch.tensor(n % 2), "v": torch.tensor(n)}) for n in range(6)])
    assert tdmap.group_by(stack, "k").map_groups(lambda rows: rows, num_workers=2)["v"].tolist() == [0, 2, 4, 1, 3, 5]


@pytest.mark.parametrize("executor", ["serial", "thread"])
def test_members_of_a_lazy_stack_stay_as_they_are(executor):
    stack = TensorDict.lazy_stack([TensorDict({"k": torch.tensor(n % 2), "v": torch.tensor(n)}) for n in range(4)])
    result = tdmap.group_by(stack, "k").map_groups(
        lambda rows: rows.apply_(lambda tensor: tensor.fill_(9)), executor=executor
    )
    assert result["v"].tolist() == [9] * 4 and stack["v"].tolist() == [0, 1, 2, 3]


def test_errors_do_not_pass_partitions_for_rows():
    def fail(rows):
        raise ZeroDivisionError("no")

    data = TensorDict({"k": torch.arange(200) + 1000}, [200])
    with pytest.raises(ZeroDivisionError) as caught:
        tdmap.group_by(data, "k").map_groups(fail, num_workers=0)
    assert "on range of keys 0 (chunk 0)" in str(caught.value.__notes__)


def test_plain_tensors():
    x = torch.arange(100)
    result = tdmap.group_by(x, lambda chunk: chunk % 10).map_groups(lambda rows: rows.sum(), num_workers=2)
    assert result.tolist() == [int(x[x % 10 == rest].sum()) for rest in range(10)]


def test_an_exception_names_the_key():
    data = TensorDict({"k": torch.tensor([4, 5, 5]), "name": ["a", "b", "b"]}, [3])
    data["text"] = Ragged.from_list(["ada", "emmy", "emmy"])

    def fail(rows):
        if len(rows) == 2:
            raise ZeroDivisionError("no")
        return rows

    for key, shown in (("k", "5"), ("name", "'b'"), ("text", "'emmy'"), (["k", "name"], "5, 'b'")):
        with pytest.raises(ZeroDivisionError) as caught:
            tdmap.group_by(data, key).map_groups(fail, num_workers=2)
        assert any(f"in the group of the key {shown} (2 rows)" in note for note in caught.value.__notes__)


def test_results_that_differ_are_refused():
    data = dataset(50, 4)

    def differ(rows):
        return rows.select("row") if rows["k"][0] == 2 else rows

    with pytest.raises(tdmap.errors.OutputMismatch, match="look alike"):
        tdmap.group_by(data, "k").map_groups(differ, num_workers=2)


def test_no_results_and_no_rows():
    data = dataset(50, 4)
    with pytest.raises(ValueError, match="no rows for any group"):
        tdmap.group_by(data, "k").map_groups(lambda rows: None, num_workers=2)
    empty = tdmap.group_by(data[:0], "k").map_groups(lambda rows: rows, num_workers=2)
    assert empty.batch_size == torch.Size([0]) and set(empty.keys()) == set(data.keys())


@pytest.mark.parametrize("where", ["out", "spill", "temporary"])
def test_no_file_is_left_after_an_error(where, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    data = dataset(3000, 1000)
    spill = str(tmp_path / "spill") if where == "spill" else None
    out = tmp_path / "out" if where == "out" else None

    def fail(rows):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tdmap.group_by(data, "k", spill_dir=spill).map_groups(fail, num_workers=2, out=out, chunksize=100)
    assert [path for path in tmp_path.rglob("*") if path.name != "spill"] == []
