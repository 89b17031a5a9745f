"""`filter`: the rows for which a predicate is true, in their order, copied once."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tdmap
from tdmap.errors import OutputMismatch
from tensordict_lite import TensorDict

from .conftest import WORKERS, bits, make


@pytest.mark.parametrize("options", WORKERS, ids=str)
@pytest.mark.parametrize("to", ["memory", "folder"])
def test_the_rows_are_those_of_a_boolean_index(options, to, tmp_path):
    data = make()
    out = None if to == "memory" else tmp_path / "out"
    kept = tdmap.filter(data, lambda td: td["x"] % 3 == 0, out=out, chunksize=7, **options)
    assert bits(kept) == bits(data[data["x"] % 3 == 0])
    if to == "folder":
        assert bits(TensorDict.load_memmap(tmp_path / "out")) == bits(kept)
        assert not (tmp_path / "out" / ".tdmap").exists()


@given(
    mask=st.lists(st.booleans(), max_size=60),
    chunksize=st.integers(1, 20),
    form=st.sampled_from([torch.tensor, np.array, list]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_mask_gives_what_indexing_gives(mask, chunksize, form):
    wanted = torch.tensor(mask, dtype=torch.bool)
    data = TensorDict({"x": torch.arange(len(mask)), "m": wanted, "w": torch.rand(len(mask), 3)}, [len(mask)])

    def answer(td):
        return td["m"].clone() if form is torch.tensor else form(td["m"].tolist())

    assert bits(tdmap.filter(data, answer, num_workers=0, chunksize=chunksize)) == bits(data[wanted])


def test_rows_one_by_one():
    data = make()
    for answer in (bool, np.bool_, torch.tensor):
        kept = tdmap.filter(data, lambda row, answer=answer: answer(int(row["x"]) > 190), chunksize=0, num_workers=2)
        assert kept["x"].tolist() == list(range(191, 200))


def test_no_rows_keep_the_schema(tmp_path):
    data = make()
    for source in (data, data[:0]):
        none = tdmap.filter(source, lambda td: td["x"] < 0, num_workers=2)
        assert none.batch_size == (0,) and bits(none) == bits(data[:0])
    saved = tdmap.filter(data, lambda td: td["x"] < 0, out=tmp_path / "none", num_workers=2)
    assert saved.batch_size == (0,) and TensorDict.load_memmap(tmp_path / "none")["nested", "y"].shape == (0, 2, 3)
    assert tdmap.filter(torch.zeros(0, 3), lambda rows: rows[:, 0] > 0).shape == (0, 3)


@pytest.mark.parametrize(
    ("predicate", "found"),
    [
        (lambda td: td["x"] % 2, r"int64 of shape \[50\]"),
        (lambda td: td["nested", "y"] > 0, r"bool of shape \[50, 2, 3\]"),
        (lambda td: (td["x"] > 0)[:-1], r"bool of shape \[49\]"),
        (lambda td: torch.tensor(True), r"bool of shape \[\]"),
        (lambda td: (td["x"] > 0).int().numpy(), r"int32 of shape \[50\]"),
        (lambda td: [1, 0] * 25, "a list"),
        (lambda td: None, "a NoneType"),
        (lambda td: td, "a TensorDict"),
    ],
)
def test_what_is_no_mask_is_named(predicate, found):
    with pytest.raises(OutputMismatch, match=rf"bools of shape \[50\].*returned {found}") as caught:
        tdmap.filter(make(), predicate, num_workers=2, chunksize=50)
    assert any("rows" in note for note in caught.value.__notes__)


def test_a_predicate_that_draws_gives_the_same_rows_for_any_workers():
    data = make()
    draws = [
        tdmap.filter(data, lambda td: torch.rand(len(td)) < 0.5, seed=5, chunksize=9, **options)["x"].tolist()
        for options in WORKERS
    ]
    assert all(draw == draws[0] for draw in draws) and 50 < len(draws[0]) < 150


def test_an_output_that_exists_is_written_and_cut(tmp_path):
    data = make()
    wanted = data[data["x"] % 3 == 0]
    mapped = wanted.select("x", "odd").memmap_like(tmp_path / "out")
    assert tdmap.filter(data, lambda td: td["x"] % 3 == 0, out=mapped, num_workers=2) is mapped
    assert torch.equal(mapped["odd"], wanted["odd"])
    larger = TensorDict({"x": torch.full((100,), -1.0), "other": torch.ones(100)}, [100])  # ordinary memory, and a cast
    cut = tdmap.filter(data, lambda td: td["x"] % 3 == 0, out=larger, num_workers=2)
    assert cut.batch_size == (67,) and cut["x"].tolist() == wanted["x"].tolist()
    assert larger["x"][67:].eq(-1).all() and larger["other"].eq(1).all()
    column = torch.zeros(80, dtype=torch.int64)
    assert tdmap.filter(data["x"], lambda x: x % 3 == 0, out=column, num_workers=2).tolist() == wanted["x"].tolist()


def test_rows_with_a_last_dimension_of_one_as_rewards_have_it():
    data = TensorDict({"x": torch.arange(10), "done": torch.arange(10)[:, None] % 4 == 3}, [10])
    assert tdmap.filter(data, lambda td: td["done"], num_workers=0)["x"].tolist() == [3, 7]
    assert tdmap.filter(data, lambda row: row["done"], chunksize=0, num_workers=0)["x"].tolist() == [3, 7]
