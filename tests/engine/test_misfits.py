"""Results that do not fit their output, or would get lost without a word: the error names the entry and what to do."""

import re
import warnings

import numpy as np
import pytest
import torch

import tdmap
from tdmap.errors import OutputMismatch
from tensordict_lite import Ragged, TensorDict, lazy_stack


@pytest.fixture
def run(run):
    return lambda data, fn, **options: run(data, fn, **{"chunksize": 5, **options})


def column(shape=(3,), dtype=torch.float32, rows=40):
    return torch.zeros(rows, *shape, dtype=dtype)


def table(rows=40, **entries):
    return TensorDict(entries, [rows])


def of(**entries):
    """A function that returns entries that are made of a chunk."""
    return lambda chunk: TensorDict({key: make(chunk) for key, make in entries.items()}, chunk.batch_size)


def x(chunk):
    return chunk["x"] * 1.0


def words(chunk):
    return ["a"] * len(chunk)


def first(chunk):
    return x(chunk)[..., 0]


def folder(data, path):
    return path / "out"


def late(make, other):
    """A function whose results are others from row 20 on."""
    return lambda chunk: (make if int(chunk["meta", "row"].reshape(-1)[0]) < 20 else other)(chunk)


def jagged(chunk):
    lengths = [int(row) % 5 + 1 for row in chunk["meta", "row"]]
    return torch.nested.nested_tensor([torch.ones(length) for length in lengths], layout=torch.jagged)


CASES = {
    "a shape": (lambda d, p: table(y=column((4,))), of(y=x), r"'y'.*\(5, 4\).*\(5, 3\)"),
    "a nested shape": (
        lambda d, p: table(meta={"y": column((4,))}),
        of(meta=lambda chunk: TensorDict({"y": x(chunk)}, chunk.batch_size)),
        r"^\('meta', 'y'\): .*\(5, 4\).*\(5, 3\)",
    ),
    "a shape that broadcasts": (lambda d, p: table(y=column()), of(y=lambda c: x(c)[:, :1]), "'y'"),
    "a shape in place": (lambda d, p: d, of(x=lambda c: x(c)[:, :1]), "^'x'"),
    "a dtype": (lambda d, p: table(y=column(dtype=torch.int32)), of(y=x), "'y'.*int32.*float32"),
    "a tensor for a collection": (lambda d, p: table(y=column()), x, "TensorDict.*Tensor"),
    "another length": (lambda d, p: table(30, x=column(rows=30)), x, r"40 rows.*\(30,\)"),
    "no entry of out": (lambda d, p: table(y=column(), n=column(())), of(Y=x), r"\['Y'\].*none of them.*\['n', 'y'\]"),
    "no nested entry of out": (lambda d, p: table(meta={"y": column()}), of(Y=x), "none of them is in out"),
    "a name that is nearly one": (
        lambda d, p: table(value=column(), row=column(())),
        of(valeu=x, row=first),
        "Did you mean 'value' instead of 'valeu'",
    ),
    "a nested name that is nearly one": (
        lambda d, p: table(meta={"value": column(), "row": column(())}),
        of(meta=lambda chunk: TensorDict({"valeu": x(chunk)}, chunk.batch_size)),
        "in 'meta', and none of them is in out.*Did you mean 'value' instead of 'valeu'",
    ),
    "a new entry in place": (lambda d, p: d, of(Y=x), "the new entry 'Y', and out=data changes a dataset in place"),
    "a new nested entry in place": (
        lambda d, p: d,
        lambda chunk: chunk.clone().set(("meta", "half"), x(chunk)),
        r"new entry \('meta', 'half'\).*no room",
    ),
    "a set in a folder": (
        folder,
        of(meta=lambda c: TensorDict({"word": [{row} for row in range(len(c))]}, [len(c)])),
        r"\('meta', 'word'\) holds a set, and a folder holds strings",
    ),
    "uneven lists in a folder": (
        folder,
        lambda chunk: {"ids": [list(range(row % 3)) for row in range(len(chunk))]},
        r"'ids' holds a Tensor, .*Return rows of numbers .* as Ragged\.from_list\(rows\)",
    ),
    "None for a folder": (folder, lambda chunk: None, "returned None"),
    "a tensor for a folder": (folder, x, "holds a collection"),
    "fewer rows in a folder": (folder, lambda chunk: chunk[:1], r"as many rows as its chunk \(5\).*the shape \(1,\)"),
    "rows that differ in shape": (
        folder,
        lambda chunk: lazy_stack([TensorDict({"x": torch.zeros(n)}, []) for n in range(len(chunk))]),
        "LazyStackedTensorDict, whose rows may differ in shape",
    ),
    "no strings later": (lambda d, p: None, late(of(y=x, s=words), of(y=x)), r"this one lacks \['s'\]"),
    "no strings later, in a folder": (folder, late(of(y=x, s=words), of(y=x)), r"this one lacks \['s'\]"),
    "strings later": (folder, late(of(y=x), of(y=x, s=words)), r"this one has also \['s'\]"),
    "other names later": (folder, late(of(y=x), of(z=x)), "look alike"),
    "another shape later": (
        folder,
        late(of(y=x), of(y=lambda c: x(c)[:, :2])),
        r"'y' is float32 \(\d, 2\) where .* \(\d, 3\)",
    ),
    "other lengths and shapes later": (
        lambda d, p: None,
        late(lambda c: c[:3].select("x"), lambda c: TensorDict({"x": x(c)[:3, :2]}, [3])),
        r"^rows \d+:\d+, unlike rows \d+:\d+: .*'x' is float32 \(\d, 2\) where .* \(\d, 3\)",
    ),
    "another dtype later, in shards": (
        folder, late(of(y=x), of(y=lambda c: x(c).long())), "'y' is .*int64", {"rows_per_shard": 20}
    ),
    "tensors of several lengths": (
        lambda d, p: None,
        lambda row: torch.zeros(int(row["meta", "row"]) + 1, 2),
        r"this one is float32 \(\d+, 2\) where the others are float32 \(\d+, 2\); rows of different lengths are a",
        {"chunksize": 0},
    ),
    "rows of several lengths in a folder": (
        folder,
        lambda row: {"y": torch.zeros(int(row["meta", "row"]) + 1, 2)},
        r"'y' is float32 \(\d+, 2\) where the others are float32 \(\d+, 2\)",
        {"chunksize": 0},
    ),
    "sparse": (
        lambda d, p: None, lambda c: {"y": torch.eye(len(c)).to_sparse()},
        "^row.*: 'y' is .*layout torch.sparse_coo, .* or use map_iter",
    ),
    "nested": (folder, lambda c: TensorDict({"y": jagged(c)}, [len(c)]), "^row.*'y' is nested on cpu"),
}  # fmt: skip
"""Where results go, the function, what the error says, and options of the call."""


@pytest.mark.parametrize("case", CASES)
def test_a_result_that_does_not_fit_names_the_entry(run, data, case, tmp_path):
    place, fn, message, *options = CASES[case]
    out, before = place(data, tmp_path), data.clone()
    with pytest.raises(OutputMismatch, match=message) as caught:
        run(data, fn, out=out, **dict(*options))
    assert not isinstance(caught.value.__cause__, RuntimeError)
    assert (data == before).all() and not (tmp_path / "out").exists()
    assert not isinstance(out, TensorDict) or out is data or all((leaf == 0).all() for leaf in out.values(True, True))


def test_jagged_results_are_joined(run, data):
    result = run(data, lambda chunk: {"y": jagged(chunk)})["y"]
    assert [len(row) for row in result.unbind()] == [int(row) % 5 + 1 for row in data["meta", "row"]]


def test_a_value_that_cannot_be_joined_is_named(run, data):
    with pytest.raises(TypeError, match="returned a int"):
        run(data, lambda chunk: 3)


@pytest.mark.parametrize("in_place", [False, True], ids=["no out", "out=data"])
@pytest.mark.parametrize("key", ["y", "x", ("meta", "row")], ids=str)
def test_an_entry_that_is_assigned_and_not_returned(run, data, key, in_place):
    def assign(chunk):
        chunk[key] = chunk["x"] * 2 if key == "y" else chunk[key] * 2

    before, said = data.clone(), re.escape(repr(key))
    with pytest.raises(OutputMismatch, match=rf"assigned chunk\[{said}\] and returned None.*Return the chunk"):
        run(data, assign, out=data if in_place else None)
    assert (data == before).all()
    assert list(tdmap.map_iter(data, assign, num_workers=2, chunksize=10)) == [None] * 4, "where None is a result"


def test_rows_that_are_written_in_place_are_no_mistake(run, data):
    def write(chunk):
        chunk["x"] *= 2  # in place, and assigned: the same tensor
        chunk["meta", "row"][:] = 0

    expected = data["x"] * 2
    assert run(data, write) is None
    assert torch.equal(data["x"], expected) and not data["meta", "row"].any()


def test_more_entries_and_fewer_entries_than_out_are_no_mistake(run, data):
    out = table(x=column(), label=torch.ones(40))
    assert run(data, of(x=x, debug=x), out=out) is out
    assert torch.equal(out["x"], data["x"]) and bool(out["label"].all())


@pytest.mark.parametrize(
    "made, wanted, value",
    [
        (torch.int64, torch.uint8, 402),
        (torch.int64, torch.int32, 2**31),
        (torch.int32, torch.uint8, -1),
        (torch.int64, torch.uint64, -1),
        (torch.uint64, torch.int64, 2**63),
        (torch.float64, torch.float16, 1e6),
        (torch.float32, torch.float16, -7e4),
        (torch.float64, torch.float32, 1e300),
        (torch.int64, torch.float16, 70_000),
    ],
    ids=str,
)
def test_a_value_that_its_output_has_no_room_for(run, data, made, wanted, value):
    values, out = torch.tensor([value], dtype=made), table(y=column((), wanted))
    with pytest.raises(OutputMismatch, match=rf"'y': out has dtype {wanted}.* with the value .*no room"):
        run(data, of(y=lambda chunk: values.expand(len(chunk))), out=out)
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
def test_a_cast_that_keeps_values_or_rounds_them(run, data, made, wanted, value):
    values, out = torch.tensor([value], dtype=made), table(y=column((), wanted))
    run(data, of(y=lambda chunk: values.expand(len(chunk))), out=out)
    assert torch.equal(out["y"].nan_to_num(7.0), values.to(wanted).expand(40).nan_to_num(7.0))


def test_values_without_room_can_be_skipped(data):
    out, errors = table(y=column((), torch.uint8)), tdmap.RowErrors()
    tdmap.map(data, of(y=lambda c: c["meta", "row"] * 7), out=out, on_error=errors, num_workers=2, chunksize=8)
    assert errors.rows == [37, 38, 39]
    assert out["y"].tolist() == [row * 7 if row < 37 else 0 for row in range(40)]


def test_rows_of_which_the_function_returns_none_are_named(run, data):
    with pytest.warns(RuntimeWarning, match=r"returned None for 10 of 40 rows \(rows 5:10, rows 20:25\)"):
        result = run(data, lambda chunk: None if int(chunk["meta", "row"][0]) in (5, 20) else chunk.clone())
    assert result["meta", "row"].tolist() == [row for row in range(40) if row // 5 not in (1, 4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = table(y=torch.ones(40))
        assert run(data, lambda chunk: None, out=out) is out and out["y"].all()


def test_columns_of_dicts_that_are_ragged_or_read_only():
    data = TensorDict({"name": ["ant", "", "bee"], "x": torch.arange(3)}, [3])
    fixed = np.arange(3.0)
    fixed.flags.writeable = False

    def fn(td):
        return {
            "name": Ragged.from_list(list(td["name"])),
            "x": fixed[td["x"].numpy()],
            "all": fixed[: len(td)].view(),
        }

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = tdmap.map(data, fn, num_workers=0)
        assert tdmap.map(data["x"], lambda x: fixed[: len(x)], num_workers=0, chunksize=3).tolist() == [0, 1, 2]
    assert result["name"] == ["ant", "", "bee"] and result["x"].tolist() == [0, 1, 2]
    found = tdmap.map(data, lambda td: {"y": Ragged.from_list([[1]] * len(td))}, num_workers=0)
    assert found["y"].tolist() == [[1]] * 3
