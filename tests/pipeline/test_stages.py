"""What each stage does, and what it says when it cannot."""

import itertools
import re

import numpy as np
import pytest
import torch
from torch import nn

import tdmap
from tdmap import Pipeline
from tdmap.errors import OutputMismatch
from tensordict_lite import TensorDict, lazy_stack, tensorclass


def odd(td):
    return td["x"] % 2 == 1


def rows(pipeline, **options) -> list[int]:
    return pipeline.collect(**{"num_workers": 0, **options})["x"].tolist()


def test_every_call_returns_a_new_pipeline(data):
    base = data.pipeline()
    longer = base.take(3)
    assert base is not longer
    assert (base.count(), longer.count()) == (40, 3)
    assert isinstance(base, Pipeline) and bool(base)


def test_nothing_runs_before_the_end(data):
    def never(td):
        raise AssertionError("called")

    pipeline = data.pipeline().map(never).filter(never).batch(3).map(never)
    pipeline.iter(num_workers=0)
    with pytest.raises(AssertionError, match="called"):
        next(pipeline.iter(num_workers=0))


def test_a_global_shuffle_is_that_of_map_iter(data):
    order = torch.cat(list(tdmap.map_iter(data, lambda td: td["x"], shuffle=True, seed=9, num_workers=1)))
    assert rows(data.pipeline().shuffle(9)) == order.tolist()


def test_a_shuffle_after_a_filter_is_a_permutation_of_what_is_left(data):
    got = rows(data.pipeline().filter(odd).shuffle(4))
    assert sorted(got) == list(range(1, 40, 2)) and got != sorted(got)


def test_a_shuffle_buffer_draws_anew_each_time():
    got = rows(TensorDict({"x": torch.arange(400)}, [400]).pipeline().shuffle(0, buffer=20))
    assert sum(later == one + 1 for one, later in itertools.pairwise(got)) < 40  # an order drawn once undoes itself


def test_zip_puts_entries_side_by_side(data, workers):
    other = TensorDict({"z": torch.arange(40) * 2}, [40])
    known = data.pipeline().shuffle(1).zip(other.pipeline().shuffle(1))
    assert torch.equal(known.collect(**workers)["z"], known.collect(**workers)["x"] * 2)
    filtered = data.pipeline().filter(odd).zip(other.pipeline().filter(lambda td: td["z"] % 4 == 2))
    got = list(filtered.batch(3).iter(**workers))
    assert [len(batch) for batch in got] == [3] * 6 + [2]
    assert all(torch.equal(batch["z"], batch["x"] * 2) for batch in got)
    assert filtered.count(**workers) == 20


@tensorclass
class Point:
    x: torch.Tensor


@pytest.mark.parametrize("cut", [lambda p: p, lambda p: p.filter(lambda td: torch.ones(len(td), dtype=torch.bool))])
@pytest.mark.parametrize(
    "left",
    [
        Point(torch.arange(6), batch_size=[6]),
        TensorDict({"x": torch.arange(6)}, [6]).lock_(),
        TensorDict({"x": torch.arange(6).view(6, 1)}, [6, 1]),
        lazy_stack([TensorDict({"x": torch.tensor(n)}, []) for n in range(6)]),
    ],
    ids=["typed", "locked", "two dimensions", "lazy"],
)
def test_zip_has_room_beside_rows_of_any_kind(left, cut):
    right = TensorDict({"day": torch.arange(6)}, [6])
    right.arrow_types = {"day": "timestamp[s]"}
    zipped = cut(left.pipeline()).zip(cut(right.pipeline())).collect(num_workers=0)
    assert zipped["x"].flatten().tolist() == zipped["day"].tolist() == list(range(6))
    assert zipped.batch_size == torch.Size([6]) and zipped.arrow_types == {"day": "timestamp[s]"}


def test_zip_of_uneven_rows_is_an_error(data):
    with pytest.raises(ValueError, match=r"40 and 30.*\.take\(30\)"):
        data.pipeline().zip(TensorDict({"z": torch.zeros(30)}, [30]))
    uneven = data.pipeline().filter(odd).zip(TensorDict({"z": torch.zeros(25)}, [25]))
    with pytest.raises(ValueError, match="ended after 20"):
        uneven.collect(num_workers=0)
    with pytest.raises(ValueError, match="both pipelines have 'image', 'x'"):
        data.pipeline().zip(data).collect(num_workers=0)


def test_concat_wants_rows_that_look_alike(data):
    with pytest.raises(OutputMismatch, match="'image'"):
        data.pipeline().concat(data.pipeline().select("x")).shuffle(1).collect(num_workers=0)
    with pytest.raises(OutputMismatch, match="'x' is float32"):
        other = data.pipeline().map(lambda td: td.clone(False).set("x", td["x"].float()))
        data.pipeline().concat(other).shuffle(1).collect(num_workers=0)


def test_select_takes_nested_keys():
    nested = TensorDict({"a": {"b": torch.arange(3), "c": torch.zeros(3)}, "d": torch.zeros(3)}, [3])
    kept = nested.pipeline().select(("a", "b"), "d").collect(num_workers=0)
    assert set(kept.keys(True, True)) == {("a", "b"), "d"}


def test_modules_and_entries(data):
    net = nn.Linear(4, 2)
    got = data.pipeline().map(net, in_keys="image", out_keys="score").collect(num_workers=0)
    assert torch.allclose(got["score"], net(data["image"])) and not got["score"].requires_grad
    assert "map(Linear)" in repr(data.pipeline().map(net, in_keys="image"))


# -- bad input -----------------------------------------------------------------------------------------

BAD = {
    "map": [(3,), (None,)],
    "filter": [("x",)],
    "batch": [(0,), (2.5,), (True,), ("3",)],
    "take": [(-1,), (1.0,)],
    "skip": [(-1,)],
    "shard": [(2, 2), (-1, 2), (0, 0)],
    "shuffle": [("a",), (1.5,), (1, 0)],
    "repeat": [(0,), (-1,)],
    "select": [(), (3,), ((),)],
    "zip": [([1, 2],)],
    "concat": [(5,)],
    "cache": [(7,)],
}


@pytest.mark.parametrize(("name", "arguments"), [(name, args) for name, many in BAD.items() for args in many])
def test_bad_arguments_are_refused_where_they_are_given(data, name, arguments):
    with pytest.raises((TypeError, ValueError)):
        getattr(data.pipeline(), name)(*arguments)


WRONG = {
    "batch twice": (lambda p: p.batch(2).batch(3), "unbatch"),
    "unbatch without batch": (lambda p: p.unbatch(), r"after \.batch"),
    "flat_map of batches": (lambda p: p.batch(2).flat_map(odd), r"before \.batch"),
    "shuffle of batches": (lambda p: p.batch(2).shuffle(1), r"before \.batch"),
    "shuffle of unknown rows": (lambda p: p.flat_map(odd).shuffle(1), r"flat_map\(odd\).*cache\(path\).*buffer="),
    "shuffle of counted rows": (lambda p: p.filter(odd).take(3).shuffle(1), r"take\(3\).*cache\(path\)"),
    "shuffle of epochs": (lambda p: p.repeat(2).shuffle(1), r"\.shuffle\(\) first"),
    "cache of batches": (lambda p: p.batch(2).cache("c"), r"before \.batch"),
    "rows with batches": (lambda p: p.concat(p.batch(2)), "rows with batches"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_a_stage_in_the_wrong_place_is_refused_at_once(data, case):
    build, words = WRONG[case]
    with pytest.raises(ValueError, match=words):
        build(data.pipeline())


def test_stages_after_the_end(data):
    with pytest.raises(AttributeError, match=r"\.iter\(\) ends a pipeline: write \.batch"):
        data.pipeline().iter(num_workers=0).batch(3)
    with pytest.raises(AttributeError):
        data.pipeline().count().batch(3)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda td: td["image"] > 0, r"\[40, 3, 4\].*all"),
        (lambda td: td["x"], "int64.*Compare"),
        (lambda td: torch.ones(3, dtype=torch.bool), r"\[3\]"),
        (lambda td: True, "bool"),
        (lambda td: None, "NoneType"),
    ],
)
def test_a_predicate_with_another_answer_is_refused(data, answer, words):
    with pytest.raises(OutputMismatch, match=words):
        data.pipeline().filter(answer).collect(num_workers=0, chunksize=40)
    with pytest.raises((ValueError, TypeError), match="bool|batch"):
        data.pipeline().batch(4).filter(lambda td: td["x"] > 0).collect(num_workers=0)


def test_numpy_and_lists_are_masks(data):
    assert rows(data.pipeline().filter(lambda td: np.asarray(td["x"]) < 3)) == [0, 1, 2]
    assert rows(data.pipeline().filter(lambda td: [int(x) < 3 for x in td["x"]])) == [0, 1, 2]


def test_map_must_keep_the_number_of_rows(data):
    with pytest.raises(ValueError, match=r"as many rows as it takes, 10: got 9.*flat_map"):
        data.pipeline().map(lambda td: td[1:]).collect(num_workers=0, chunksize=10)
    with pytest.raises(TypeError, match="float"):
        data.pipeline().map(lambda td: 1.0).collect(num_workers=0)
    with pytest.raises(TypeError, match="Iterate such a pipeline"):
        data.pipeline().batch(4).map(lambda td: "text").collect(num_workers=0)


def test_the_note_names_the_stage_and_the_rows(data, workers):
    def broken(td):
        raise ZeroDivisionError("here")

    with pytest.raises(ZeroDivisionError) as caught:
        data.pipeline().map(lambda td: td).map(broken).collect(chunksize=10, **workers)
    notes = "\n".join(caught.value.__notes__)
    assert "stage 2 of 2: map(" in notes and "broken" in notes and re.search(r"rows \d+:\d+ ", notes)


def test_rows_of_the_dataset_are_not_changed(data, workers):
    before = data.clone()
    with pytest.raises(RuntimeError, match="in place"):
        data.pipeline().map(lambda td: td.set("y", td["image"].mul_(2))).collect(**workers)
    assert torch.equal(before["image"], data["image"])
    shuffled = data.pipeline().shuffle(1).map(lambda td: td.set("y", td["image"].mul_(2)))  # copies: no harm is done
    assert torch.equal(shuffled.collect(**workers)["y"].sum(), before["image"].sum() * 2)
    assert torch.equal(before["image"], data["image"])


def test_data_that_has_no_rows(data):
    with pytest.raises(TypeError, match="a list"):
        Pipeline([1, 2])
    with pytest.raises(TypeError, match="no dimension"):
        Pipeline(torch.tensor(1))
    with pytest.raises(TypeError, match="seed"):
        Pipeline(data, seed="x")
    with pytest.raises(TypeError, match="no option 'worker'"):
        data.pipeline().iter(worker=3)
    with pytest.raises(ValueError, match="prefetch"):
        data.pipeline().iter(prefetch=0)
    with pytest.raises(ValueError, match="chunksize"):
        data.pipeline().collect(chunksize=0)


def test_a_key_that_is_not_there_is_an_error_at_once_while_that_is_known(data):
    with pytest.raises(KeyError, match=r"key of \.select\(\) is 'X', which is not an entry of the data. Entries:"):
        data.pipeline().filter(odd).shuffle(0).select("X")
    later = data.pipeline().map(lambda td: TensorDict({"X": td["x"]}, td.batch_size)).select("X")
    assert later.collect(num_workers=0)["X"].tolist() == data["x"].tolist()


def test_a_batch_that_loses_all_its_rows_leaves_none(data, workers):
    def emptied(batch):
        return batch[:0] if batch["x"][0] % 8 == 0 else batch

    left = [x for x in range(40) if x // 4 % 2]
    pipeline = data.pipeline().select("x").batch(4).map(emptied).unbatch()
    assert rows(pipeline, **workers) == left
    assert sorted(rows(pipeline.shuffle(0, buffer=3), **workers)) == left
    assert rows(data.pipeline().select("x").shuffle(0, buffer=1).batch(4).map(emptied).unbatch(), **workers) == left
    other = TensorDict({"y": torch.arange(20)}, [20]).pipeline().filter(lambda td: td["y"] >= 0)
    zipped = pipeline.zip(other).collect(**workers)
    assert zipped["x"].tolist() == left and zipped["y"].tolist() == list(range(20))


def test_a_tensor_decides_about_a_batch(data, workers):
    pipeline = data.pipeline().batch(5)
    assert rows(pipeline.filter(lambda td: td["x"].sum() > 20), **workers) == list(range(5, 40))
    with pytest.raises(ValueError, match="one bool"):
        rows(pipeline.filter(lambda td: td["x"] > 20), **workers)


def test_tensors_of_inference_mode_are_rows(workers):
    with torch.inference_mode():
        data = TensorDict({"x": torch.arange(6.0)}, [6])
    assert data["x"].is_inference()
    twice = data.pipeline().map(lambda td: td.apply(lambda x: x * 2)).collect(**workers)
    assert twice["x"].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert tdmap.map(data, lambda td: td.apply(lambda x: x + 1), **workers)["x"].sum() == 21


def test_a_formula_over_an_entry_that_is_not_there_is_said_at_once(data):
    with pytest.raises(KeyError, match=r"a column of the predicate col\('X'\) > 0 is 'X', which is not an entry"):
        data.pipeline().take(5).filter(tdmap.col("X") > 0)
    made = data.pipeline().map(lambda td: TensorDict({"X": td["x"]}, td.batch_size)).filter(tdmap.col("X") > 37)
    assert made.collect(num_workers=0)["X"].tolist() == [38, 39]  # a function comes before, so nobody knows
