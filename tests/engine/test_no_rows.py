"""Datasets without rows: the function says what rows would look like."""

import pytest
import torch

import tdmap
from tensordict_lite import Ragged, TensorDict, lazy_stack


@pytest.fixture
def nothing():
    return TensorDict({"x": torch.zeros(0, 3, dtype=torch.uint8), "k": torch.zeros(0)}, [0])


def halve(td):
    return TensorDict({"y": td["x"].float().sum(-1) / 2}, td.batch_size)


def test_the_result_has_the_schema_of_results(nothing):
    result = tdmap.map(nothing, halve, num_workers=2)
    assert result.batch_size == (0,) and set(result.keys()) == {"y"}
    assert result["y"].dtype is torch.float32 and result["y"].shape == (0,)
    assert tdmap.map(nothing, lambda td: td["x"].new_ones(1, 7), num_workers=2).shape == (0, 7)


def test_so_has_the_dataset_in_a_folder(nothing, tmp_path):
    tdmap.map(nothing, halve, num_workers=2, out=tmp_path / "out")
    loaded = TensorDict.load_memmap(tmp_path / "out")
    assert set(loaded.keys()) == {"y"} and loaded.batch_size == (0,)
    for mode in ("raise", "drop"):
        with pytest.raises(tdmap.errors.OutputMismatch, match="returned None"):
            tdmap.map(nothing, lambda td: None, num_workers=2, out=tmp_path / "none", on_error=mode)
    assert not (tmp_path / "none").exists()


def test_functions_in_place_give_none(nothing):
    assert tdmap.map(nothing, lambda td: td["k"].add_(1) and None if len(td) else None, num_workers=2) is None


def test_an_output_is_given_back(nothing):
    out = TensorDict({"y": torch.zeros(0)}, [0])
    assert tdmap.map(nothing, halve, num_workers=2, out=out) is out
    assert list(tdmap.map_iter(nothing, halve, num_workers=2)) == []


def test_a_function_that_needs_a_row_is_named_with_its_error(nothing):
    with pytest.raises(ValueError, match=r"fails on zero rows.*IndexError") as caught:
        tdmap.map(nothing, lambda td: td["k"][0] + td["x"], num_workers=2)
    assert isinstance(caught.value.__cause__, IndexError)
    with pytest.raises(ValueError, match="no rows, and chunksize=0"):
        tdmap.map(nothing, halve, num_workers=2, chunksize=0)


KINDS = ["memory", "mapped", "lazy"]


def rows_of_kind(kind, folder):
    data = TensorDict({"id": torch.arange(4), "word": ["a", "b", "c", "d"]}, [4])
    if kind == "mapped":
        data.memmap(folder)
        data = TensorDict.load_memmap(folder)
    return (lazy_stack(list(data.unbind(0))) if kind == "lazy" else data)[:0]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_in_place_run_over_no_rows_can_be_resumed(num_workers, tmp_path):
    TensorDict({"x": torch.zeros(0)}, [0]).memmap(tmp_path / "in")
    data = TensorDict.load_memmap(tmp_path / "in")
    for _ in range(2):
        assert tdmap.map(data, lambda c: c["x"].zero_(), out=data, resume=True, num_workers=num_workers) is data


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["raise", "skip", "drop"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_gets_the_keys_of_what_a_function_gives_back(kind, mode, resume, tmp_path):
    data = rows_of_kind(kind, tmp_path / "source")
    result = tdmap.map(data, lambda rows: rows, out=tmp_path / "out", on_error=mode, resume=resume, num_workers=1)
    assert result.batch_size == (0,)
    assert set(result.keys()) == {"id", "word"}
    assert set(TensorDict.load_memmap(tmp_path / "out").keys()) == set(result.keys())


def none_left(rows):
    return rows[rows["id"] > 100]


WITHOUT_ROWS = {
    "filter": lambda data, **how: tdmap.filter(data, lambda rows: rows["id"] > 100, **how),
    "flat_map": lambda data, **how: tdmap.flat_map(data, none_left, **how),
    "map_groups": lambda data, **how: tdmap.group_by(data, "id").map_groups(none_left, **how),
    "map_groups of words": lambda data, **how: tdmap.group_by(data, "word").map_groups(none_left, **how),
    "join": lambda data, **how: tdmap.join(data, data.clone().set("id", data["id"] + 50), "id", **how),
    "write": lambda data, out, **how: data.pipeline().filter(lambda rows: rows["id"] > 100).write(out, **how),
    "write in order": lambda data, out, **how: (
        data.pipeline().shuffle(buffer=2, seed=1).filter(lambda rows: rows["id"] > 100).write(out, **how)
    ),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("operation", WITHOUT_ROWS)
def test_columns_of_strings_are_empty_and_not_lost(operation, workers, tmp_path):
    inner = TensorDict({"letter": list("abcde")}, [5])
    data = TensorDict({"id": torch.arange(5), "word": list("vwxyz"), "inner": inner}, [5])
    results = [WITHOUT_ROWS[operation](data, out=tmp_path / "out", num_workers=workers)]
    results.append(TensorDict.load_memmap(tmp_path / "out"))
    if "write" not in operation:
        results.append(WITHOUT_ROWS[operation](data, out=None, num_workers=workers))
    for result in results:
        assert len(result) == 0
        assert len(result["word"]) == len(result["inner", "letter"]) == 0


@pytest.mark.parametrize("out", [None, "out"])
def test_ragged_entries_without_rows_stay_ragged(out, tmp_path):
    place = None if out is None else tmp_path / out
    none = TensorDict({"k": torch.arange(2), "s": Ragged.from_list(["a", "b"])}, [2])[:0]
    made = tdmap.map(none, lambda rows: {"y": rows["k"] / 2, "s": rows.get("s")}, out=place, num_workers=0)
    assert len(made) == 0 and list(made.keys()) == ["y", "s"] and made["y"].dtype is torch.float32
    assert made.get("s").kind == "str"
    place = None if out is None else tmp_path / "tokens"
    options = {"out": place, "dtype": torch.int32, "num_workers": 0}
    tokens = tdmap.datasets.tokenise(none, lambda texts: [[1] for _ in texts], "s", **options)
    assert len(tokens) == 0 and tokens["input_ids"].kind == "tensor" and tokens["input_ids"].dtype is torch.int32
