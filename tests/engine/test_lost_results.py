"""Results that would get lost without a word: assigned and not returned, misspelt, too large for their dtype, None."""

from __future__ import annotations

import warnings

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict


@pytest.fixture(params=["serial", "thread", "process"])
def run(request):
    def call(data, fn, **options):
        return tdmap.map(data, fn, num_workers=2, executor=request.param, chunksize=7, **options)

    return call


def add_entry(chunk):
    chunk["y"] = chunk["x"] * 2


def replace_entry(chunk):
    chunk["x"] = chunk["x"] * 2


def replace_nested(chunk):
    chunk["meta", "row"] = chunk["meta", "row"] * 2


def write_rows(chunk):
    chunk["x"] *= 2  # in place, and assigned: the same tensor
    chunk["meta", "row"][:] = 0


@pytest.mark.parametrize("in_place", [False, True], ids=["no out", "out=data"])
@pytest.mark.parametrize(
    "fn, key", [(add_entry, "'y'"), (replace_entry, "'x'"), (replace_nested, r"\('meta', 'row'\)")]
)
def test_an_entry_that_is_assigned_and_not_returned(run, data, fn, key, in_place):
    before = data.clone()
    with pytest.raises(
        tdmap.errors.OutputMismatch, match=rf"assigned chunk\[{key}\] and returned None.*Return the chunk"
    ):
        run(data, fn, **({"out": data} if in_place else {}))
    assert (data == before).all()


def test_rows_that_are_written_in_place_are_no_mistake(run, data):
    expected = data["x"] * 2
    assert run(data, write_rows) is None
    assert torch.equal(data["x"], expected) and not data["meta", "row"].any()


def test_a_function_of_map_iter_may_return_none(data):
    assert list(tdmap.map_iter(data, add_entry, num_workers=2, chunksize=10)) == [None] * 4


def test_a_name_that_is_nearly_one_of_out(run, data):
    out = TensorDict({"value": torch.zeros(40, 3), "row": torch.zeros(40)}, [40])
    with pytest.raises(tdmap.errors.OutputMismatch, match="Did you mean 'value' instead of 'valeu'"):
        run(data, lambda td: TensorDict({"valeu": td["x"], "row": td["x"][:, 0]}, td.batch_size), out=out)
    nested = TensorDict({"meta": {"value": torch.zeros(40, 3), "row": torch.zeros(40)}}, [40])
    with pytest.raises(
        tdmap.errors.OutputMismatch,
        match=r"in 'meta', and none of them is in out.*Did you mean 'value' instead of 'valeu'",
    ):
        run(data, lambda td: TensorDict({"meta": {"valeu": td["x"]}}, td.batch_size), out=nested)


def test_more_entries_and_fewer_entries_than_out_are_no_mistake(run, data):
    out = TensorDict({"x": torch.zeros(40, 3), "label": torch.ones(40)}, [40])
    run(data, lambda td: TensorDict({"x": td["x"], "debug": td["x"]}, td.batch_size), out=out)
    assert torch.equal(out["x"], data["x"]) and bool(out["label"].all())


def test_a_new_entry_has_no_place_in_the_dataset_itself(run, data):
    with pytest.raises(tdmap.errors.OutputMismatch, match=r"new entry \('meta', 'half'\).*no room"):
        run(data, lambda td: td.clone().set(("meta", "half"), td["x"] / 2), out=data)


@pytest.mark.parametrize(
    "made, wanted, value, becomes",
    [
        (torch.int64, torch.uint8, 402, 146),
        (torch.int64, torch.int32, 2**31, -(2**31)),
        (torch.int32, torch.uint8, -1, 255),
        (torch.int64, torch.uint64, -1, 2**64 - 1),
        (torch.uint64, torch.int64, 2**63, -(2**63)),
        (torch.float64, torch.float16, 1e6, float("inf")),
        (torch.float32, torch.float16, -7e4, float("-inf")),
        (torch.float64, torch.float32, 1e300, float("inf")),
        (torch.int64, torch.float16, 70_000, float("inf")),
    ],
    ids=str,
)
def test_a_value_that_its_output_has_no_room_for(run, made, wanted, value, becomes):
    data = TensorDict({"x": torch.zeros(20)}, [20])
    values = torch.tensor([value], dtype=made)
    out = TensorDict({"y": torch.zeros(20, dtype=wanted)}, [20])
    with pytest.raises(tdmap.errors.OutputMismatch, match=rf"'y': out has dtype {wanted}.* with the value .*no room"):
        run(data, lambda td: TensorDict({"y": values.expand(len(td))}, td.batch_size), out=out)
    assert not out["y"].to(torch.float64).any(), "nothing wrong is written"


@pytest.mark.parametrize(
    "made, wanted, value",
    [
        (torch.int64, torch.uint8, 255),
        (torch.float64, torch.float32, 0.1),
        (torch.float32, torch.bfloat16, float("inf")),
        (torch.float64, torch.float16, float("nan")),
        (torch.uint8, torch.float32, 200),
        (torch.complex128, torch.complex64, 1 + 2j),
        (torch.bool, torch.int8, True),
    ],
    ids=str,
)
def test_a_cast_that_keeps_values_or_rounds_them(run, made, wanted, value):
    data = TensorDict({"x": torch.zeros(20)}, [20])
    values = torch.tensor([value], dtype=made)
    out = TensorDict({"y": torch.zeros(20, dtype=wanted)}, [20])
    run(data, lambda td: TensorDict({"y": values.expand(len(td))}, td.batch_size), out=out)
    assert torch.equal(out["y"].nan_to_num(7.0), values.to(wanted).expand(20).nan_to_num(7.0))


def test_values_without_room_can_be_skipped(data):
    out = TensorDict({"y": torch.zeros(40, dtype=torch.uint8)}, [40])
    errors = tdmap.RowErrors()
    tdmap.map(
        data,
        lambda td: TensorDict({"y": td["meta", "row"] * 7}, td.batch_size),
        out=out,
        on_error=errors,
        num_workers=2,
        chunksize=8,
    )
    assert errors.rows == [37, 38, 39]
    assert out["y"].tolist() == [row * 7 if row < 37 else 0 for row in range(40)]


def test_rows_of_which_the_function_returns_none_are_named(run, data):
    with pytest.warns(RuntimeWarning, match=r"returned None for 14 of 40 rows \(rows 7:14, rows 21:28\)"):
        result = run(data, lambda td: None if int(td["meta", "row"][0]) in (7, 21) else td.clone())
    assert result.shape == (26,)


def test_a_function_that_always_returns_none_says_nothing(run, data):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(data, lambda td: None) is None
