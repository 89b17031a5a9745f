"""What `map` makes of chunks and their results, beside plain torch; `tdmap.testing.executor` asks of executors more."""

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict, lazy_stack


@pytest.mark.parametrize("folder", [False, True])
def test_chunksize_zero_passes_rows_without_their_dimension_and_stacks(run, data, folder, tmp_path):
    out = tmp_path / "out" if folder else None
    result = run(data, lambda td: TensorDict({"y": td["x"].sum() + td.ndim}, td.batch_size), chunksize=0, out=out)
    assert result.batch_size == torch.Size([40])
    assert torch.equal(result["y"], data["x"].sum(1))


@pytest.mark.parametrize(("lazy", "folder"), [(False, False), (True, False), (False, True)])
def test_rows_along_another_dimension(run, lazy, folder, tmp_path):
    data = TensorDict({"x": torch.arange(60.0).reshape(3, 10, 2)}, [3, 10])
    data = lazy_stack(list(data.unbind(0))) if lazy else data
    for dim in (1, -1):
        out = tmp_path / str(dim) if folder else None
        result = run(data, lambda td: td.apply(lambda x: x + td.shape[1]), dim, chunksize=4, out=out)
        expected = data["x"] + torch.tensor([4, 4, 4, 4, 4, 4, 4, 4, 2, 2])[None, :, None]
        assert result.batch_size == torch.Size([3, 10])
        assert torch.equal(result["x"], expected)


@pytest.mark.filterwarnings("ignore:.*changed rows of the source")
@pytest.mark.parametrize("through_numpy", [False, True])
def test_changed_and_returned_rows_are_both_seen(run, data, through_numpy):
    before = data.clone()

    def increment(td):
        if through_numpy:
            td["x"].numpy()[:] += 1  # which counts no version
        else:
            td["x"].add_(1)
        return td.clone()

    result = run(data, increment, chunksize=7)
    assert torch.equal(result["x"], before["x"] + 1)
    assert torch.equal(data["x"], before["x"] + 1)


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


@pytest.mark.parametrize("chunksize", [7, 0])
@pytest.mark.parametrize("kind", ["memory", "mapped", "shared"])
def test_an_output_of_every_kind_is_filled(run, data, kind, chunksize, tmp_path):
    out = TensorDict({"y": torch.zeros(40, 3)}, [40])
    out = out.memmap_(tmp_path) if kind == "mapped" else out.share_memory_() if kind == "shared" else out
    run(
        data,
        lambda td: TensorDict({"y": td["x"] + 1, "unwanted": td["x"]}, td.batch_size),
        out=out,
        chunksize=chunksize,
    )
    assert torch.equal((TensorDict.load_memmap(tmp_path) if kind == "mapped" else out)["y"], data["x"] + 1)


@pytest.mark.parametrize("keys", [("x", "meta"), ("x",)], ids=["nested", "flat"])
@pytest.mark.parametrize("kind", ["memory", "mapped"])
def test_chunks_are_unlocked_and_named_as_the_data(run, data, kind, keys, tmp_path):
    data = data.select(*keys)
    data.names = ["rows"]
    data = data.lock_() if kind == "memory" else data.memmap(tmp_path)

    def look(td):
        assert not td.is_locked and not td.get("meta", td).is_locked and td.names == data.names == ["rows"]
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


def test_results_that_require_grad_are_detached(run):
    x = torch.arange(6.0)
    weight = torch.ones(1, requires_grad=True)
    result = run(x, lambda part: part * weight, chunksize=2)
    assert torch.equal(result.detach(), x)
    out = torch.zeros(6)
    run(x, lambda part: part * weight, chunksize=2, out=out)
    assert not out.requires_grad


def test_dense_data_without_tensors(run):
    data = TensorDict({}, [10])
    result = run(data, lambda td: torch.full(td.batch_size, td.shape[0]), chunksize=4)
    assert result.tolist() == [4] * 8 + [2] * 2
