"""What `map` gives, on every executor: the documented meanings, checked against plain torch."""

from __future__ import annotations

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict, lazy_stack

EXECUTORS = ["serial", "thread", "process"]


@pytest.fixture(params=EXECUTORS)
def run(request):
    """`tdmap.map` on one executor with two workers."""

    def call(data, fn, *args, **options):
        return tdmap.map(data, fn, *args, num_workers=2, executor=request.param, **options)

    return call


def test_results_are_concatenated(run, data):
    result = run(data, lambda td: td.apply(lambda x: x * 2), chunksize=7)
    assert result.batch_size == torch.Size([40])
    assert torch.equal(result["x"], data["x"] * 2)
    assert torch.equal(result["meta", "row"], data["meta", "row"] * 2)


def test_each_chunk_has_chunksize_rows_and_the_last_the_rest(run, data):
    sizes = run(data, lambda td: torch.full((td.shape[0],), td.shape[0]), chunksize=7)
    assert sizes.tolist() == [7] * 35 + [5] * 5


def test_num_chunks(run, data):
    sizes = run(data, lambda td: torch.full((td.shape[0],), td.shape[0]), num_chunks=3)
    assert sizes.tolist() == [14] * 28 + [12] * 12


def test_default_chunk_size_does_not_depend_on_workers(data):
    def size_of(td):
        return torch.full((td.shape[0],), td.shape[0])

    one = tdmap.map(data, size_of, num_workers=1, executor="thread")
    assert torch.equal(one, tdmap.map(data, size_of, num_workers=3, executor="thread"))


def test_chunksize_zero_passes_rows_without_their_dimension_and_stacks(run, data):
    result = run(data, lambda td: TensorDict({"y": td["x"].sum() + td.ndim}, td.batch_size), chunksize=0)
    assert result.batch_size == torch.Size([40])
    assert torch.equal(result["y"], data["x"].sum(1))


def test_chunksize_zero_with_tensor_results(run, data):
    assert torch.equal(run(data, lambda td: td["x"] + 1, chunksize=0), data["x"] + 1)


def test_tensors_are_joined_too(run, data):
    assert torch.equal(run(data, lambda td: td["x"].sum(1), chunksize=7), data["x"].sum(1))


def test_a_tensor_is_data_too(run):
    x = torch.arange(30.0)
    assert torch.equal(run(x, lambda part: part * part, chunksize=4), x * x)


@pytest.mark.parametrize("lazy", [False, True])
def test_rows_along_another_dimension(run, lazy):
    data = TensorDict({"x": torch.arange(60.0).reshape(3, 10, 2)}, [3, 10])
    data = lazy_stack(list(data.unbind(0))) if lazy else data
    for dim in (1, -1):
        result = run(data, lambda td: td.apply(lambda x: x + td.shape[1]), dim, chunksize=4)
        expected = data["x"] + torch.tensor([4, 4, 4, 4, 4, 4, 4, 4, 2, 2])[None, :, None]
        assert result.batch_size == torch.Size([3, 10])
        assert torch.equal(result["x"], expected)


def test_none_results_mean_in_place(run, data):
    before = data.clone()

    def increment(td):
        td["x"].add_(1)
        td["meta", "row"].mul_(3)

    assert run(data, increment, chunksize=7) is None
    assert torch.equal(data["x"], before["x"] + 1)
    assert torch.equal(data["meta", "row"], before["meta", "row"] * 3)


@pytest.mark.filterwarnings("ignore:.*changed rows of the source")
def test_changed_and_returned_rows_are_both_seen(run, data):
    before = data.clone()

    def increment(td):
        td["x"].add_(1)
        return td

    result = run(data, increment, chunksize=7)
    assert torch.equal(result["x"], before["x"] + 1)
    assert torch.equal(data["x"], before["x"] + 1)


def test_some_none_results_are_left_out(run, data):
    with pytest.warns(RuntimeWarning, match="returned None for 20 of 40 rows"):
        result = run(data, lambda td: td if td["x"][0, 0] >= 60 else None, chunksize=4)
    assert torch.equal(result["x"], data["x"][20:])


def test_other_row_counts_are_concatenated_in_order(run, data):
    result = run(data, lambda td: td[: td.shape[0] // 2], chunksize=7)
    expected = torch.cat([part[: len(part) // 2] for part in data["x"].split(7)])
    assert torch.equal(result["x"], expected)


def test_row_counts_that_differ_only_later(run, data):
    result = run(data, lambda td: td[td["x"][:, 0] % 9 != 0] if td["x"][0, 0] > 50 else td, chunksize=3)
    parts = [p[p[:, 0] % 9 != 0] if p[0, 0] > 50 else p for p in data["x"].split(3)]
    assert torch.equal(result["x"], torch.cat(parts))


def test_dtypes_that_differ_only_later_are_promoted_as_cat_does(run):
    x = torch.arange(20)
    result = run(x, lambda part: part if part[0] < 10 else part.double() / 2, chunksize=2)
    expected = torch.cat([part if part[0] < 10 else part.double() / 2 for part in x.split(2)])
    assert result.dtype == expected.dtype
    assert torch.equal(result, expected)


def test_out_is_filled_and_returned(run, data):
    out = TensorDict({"y": torch.zeros(40, 3, dtype=torch.float64)}, [40])
    assert run(data, lambda td: TensorDict({"y": td["x"] / 2}, td.batch_size), out=out, chunksize=7) is out
    assert torch.equal(out["y"], data["x"].double() / 2)


def test_out_in_memory_mapped_files(run, data, tmp_path):
    out = TensorDict({"y": torch.zeros(40, 3)}, [40]).memmap_(tmp_path)
    run(data, lambda td: TensorDict({"y": td["x"] + 1, "unwanted": td["x"]}, td.batch_size), out=out, chunksize=7)
    assert torch.equal(TensorDict.load_memmap(tmp_path)["y"], data["x"] + 1)


def test_out_in_shared_memory(run, data):
    out = TensorDict({"y": torch.zeros(40, 3)}, [40]).share_memory_()
    run(data, lambda td: TensorDict({"y": td["x"] + 1}, td.batch_size), out=out, chunksize=7)
    assert torch.equal(out["y"], data["x"] + 1)


def test_out_keeps_what_the_function_does_not_return(run, data):
    out = TensorDict({"y": torch.zeros(40, 3), "kept": torch.arange(40)}, [40])
    run(data, lambda td: TensorDict({"y": td["x"]}, td.batch_size), out=out, chunksize=7)
    assert torch.equal(out["kept"], torch.arange(40))
    assert torch.equal(out["y"], data["x"])


def test_out_may_be_a_tensor(run, data):
    out = torch.zeros(40)
    assert run(data, lambda td: td["x"].sum(1), out=out, chunksize=7) is out
    assert torch.equal(out, data["x"].sum(1))


def test_out_with_unbound_rows(run, data):
    out = TensorDict({"x": torch.zeros(40, 3)}, [40])
    run(data, lambda td: td.apply(lambda x: x + 1), out=out, chunksize=0)
    assert torch.equal(out["x"], data["x"] + 1)


def test_out_may_be_the_data(run, data):
    before = data["x"].clone()
    assert run(data, lambda td: TensorDict({"x": td["x"] * 2}, td.batch_size), out=data, chunksize=7) is data
    assert torch.equal(data["x"], before * 2)


def test_none_results_leave_out_alone(run, data):
    out = TensorDict({"y": torch.ones(40)}, [40])
    assert run(data, lambda td: None, out=out, chunksize=7) is out
    assert torch.equal(out["y"], torch.ones(40))


def test_memory_mapped_source(run, data, tmp_path):
    mapped = data.memmap_like(tmp_path)
    mapped.update_(data)
    mapped = TensorDict.load_memmap(tmp_path)
    result = run(mapped, lambda td: td.apply(lambda x: x + 1), chunksize=7)
    assert torch.equal(result["meta", "row"], data["meta", "row"] + 1)
    run(mapped, _negate, chunksize=7)
    assert torch.equal(TensorDict.load_memmap(tmp_path)["x"], -data["x"])


def _negate(td):
    td["x"].neg_()


@pytest.mark.parametrize("kind", ["memory", "mapped"])
def test_chunks_are_locked_and_named_as_the_data(run, data, kind, tmp_path):
    data.names = ["rows"]
    data = data.lock_() if kind == "memory" else data.memmap(tmp_path)

    def look(td):
        assert td.is_locked and td["meta"].is_locked and td.names == data.names == ["rows"]
        return td.select("x").clone()

    assert torch.equal(run(data, look, chunksize=7)["x"], data["x"])


@pytest.mark.parametrize("kind", ["mapped", "sharded"])
def test_files_keep_the_rows_that_a_function_changes_and_returns(run, data, kind, tmp_path):
    parts = [data] if kind == "mapped" else [data[:5], data[5:]]
    for number, part in enumerate(parts):
        part.memmap(tmp_path / str(number))
    source = tdmap.open([tmp_path / str(number) for number in range(len(parts))])

    def negate(td):
        td["x"].neg_()
        return td

    for _ in range(2):
        assert torch.equal(run(source, negate, chunksize=3)["x"], -data["x"])
    assert torch.equal(source[:]["x"], data["x"])


def test_views_of_larger_tensors_and_expanded_ones(run):
    base = torch.arange(400.0).reshape(100, 4)
    data = TensorDict({"v": base[10:50:2, 1:3], "e": torch.ones(1, 2).expand(20, 2)}, [20])
    result = run(data, lambda td: td.apply(lambda x: x + 1), chunksize=3)
    assert torch.equal(result["v"], base[10:50:2, 1:3] + 1)
    assert torch.equal(result["e"], torch.full((20, 2), 2.0))


def test_a_result_of_one_map_is_the_source_of_the_next(run, data):
    first = run(data, lambda td: td.apply(lambda x: x + 1), chunksize=7)
    second = run(first, lambda td: td.apply(lambda x: x * 2), chunksize=5)
    assert torch.equal(second["x"], (data["x"] + 1) * 2)


def test_no_rows_give_no_rows(run, data):
    result = run(data[:0], lambda td: td, chunksize=7)
    assert result.batch_size == torch.Size([0])
    assert result["x"].shape == (0, 3)
    out = TensorDict({"x": torch.zeros(0, 3)}, [0])
    assert run(data[:0], lambda td: td, out=out) is out


def test_more_workers_than_rows(data):
    result = tdmap.map(data[:2], lambda td: td["x"] + 1, num_workers=4, chunksize=1)
    assert torch.equal(result, data["x"][:2] + 1)


def test_results_that_require_grad_are_detached(run):
    x = torch.arange(6.0)
    weight = torch.ones(1, requires_grad=True)
    result = run(x, lambda part: part * weight, chunksize=2)
    assert torch.equal(result.detach(), x)
    out = torch.zeros(6)
    run(x, lambda part: part * weight, chunksize=2, out=out)
    assert not out.requires_grad


@pytest.mark.parametrize("chunksize", [1, 3, 1000])
def test_many_tiny_chunks(run, chunksize):
    x = torch.arange(2000)
    assert torch.equal(run(x, lambda part: part + 1, chunksize=chunksize), x + 1)


def test_dense_data_without_tensors(run):
    data = TensorDict({}, [10])
    result = run(data, lambda td: torch.full(td.batch_size, td.shape[0]), chunksize=4)
    assert result.tolist() == [4] * 8 + [2] * 2
