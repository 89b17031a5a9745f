"""An exception costs no row: who goes on, with the iterator or from its position, gets what could not be had."""

import json
import random
from pathlib import Path

import pytest
import torch

from tensordict_lite import TensorDict


class Once:
    """Raises at a row, the first time that it comes."""

    def __init__(self, row: int, mended: Path, error: type[BaseException] = ValueError) -> None:
        self.row, self.mended, self.error = row, mended, error

    def __call__(self, td):
        if bool((td["x"] == self.row).any()) and not self.mended.exists():
            self.mended.touch()
            raise self.error("a file that is not there yet")
        return td


def not_third(td):
    return td["x"] % 3 != 0


def tenfold(td):
    return TensorDict({"z": td["x"] * 10}, td.batch_size)


CHAINS = {
    "rows": lambda p, fn: p.map(fn),
    "rows of a filter": lambda p, fn: p.filter(not_third).map(fn),
    "batches in workers": lambda p, fn: p.batch(4).map(fn),
    "batches here": lambda p, fn: p.filter(not_third).batch(4).map(fn),
    "two batches zipped": lambda p, fn: p.batch(4).zip(p.map(fn).map(tenfold).batch(4)),
    "batches here zipped": lambda p, fn: (
        p.filter(not_third).batch(4).zip(p.filter(not_third).batch(4).map(fn).map(tenfold))
    ),
    "rows after batches": lambda p, fn: p.filter(not_third).batch(4).map(fn).unbatch(),
    "epochs": lambda p, fn: p.shuffle(seed=1).filter(not_third).take(9).map(fn).repeat(3),
    "a share": lambda p, fn: p.filter(not_third).shard(1, 2, even="pad").map(fn),
    "ranks": lambda p, fn: p.filter(not_third).batch(3).map(fn).shard(1, 2, even="drop"),
}


def plain(elements):
    return [{key: value.tolist() for key, value in element.items()} for element in elements]


@pytest.mark.parametrize("chain", list(CHAINS))
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_who_goes_on_after_an_exception_misses_nothing(data, chain, error, tmp_path):
    rows, draw = data.select("x"), random.Random(chain)
    wanted = plain(CHAINS[chain](rows.pipeline(), lambda td: td).iter(num_workers=0, chunksize=5))
    for number in range(6):
        fn = Once(draw.choice([1, 4, 13, 22, 38]), tmp_path / f"mended{number}", error)
        pipeline = CHAINS[chain](rows.pipeline(), fn)
        options = {"num_workers": 0 if error is KeyboardInterrupt else draw.choice([0, 1, 2]), "chunksize": 5}
        elements, got, raised = pipeline.iter(**options), [], False
        while len(got) < len(wanted):
            try:
                got.append(next(elements))
            except (ValueError, KeyboardInterrupt, RuntimeError):
                assert not raised, "once is enough"
                raised = True
                if draw.random() < 0.5:
                    state = json.loads(json.dumps(elements.state_dict()))
                    elements = pipeline.iter(**options)
                    elements.load_state_dict(state)
        assert plain(got) == wanted
        assert raised or chain == "epochs", "rows beyond the last one that is taken may raise unheard"
        assert next(elements, None) is None


@pytest.mark.parametrize("chain", list(CHAINS)[:6])
def test_an_exception_comes_after_the_elements_before_it(data, chain, workers):
    def fail(td):
        if (td["x"] >= 22).any():
            raise ValueError("a bad row")
        return td

    rows, got = data.select("x"), []
    with pytest.raises(ValueError, match="a bad row"):
        for element in CHAINS[chain](rows.pipeline(), fail).iter(chunksize=2, **workers):
            got.append(element)
    wanted = plain(CHAINS[chain](rows.pipeline(), lambda td: td).iter(num_workers=0))
    bad = next(n for n, element in enumerate(wanted) if max(torch.tensor(element["x"]).reshape(-1)) >= 22)
    assert plain(got) == wanted[:bad]


def test_a_shuffle_buffer_cannot_go_back_and_says_so(data, tmp_path):
    pipeline = data.pipeline().shuffle(seed=1, buffer=8).batch(4).map(Once(20, tmp_path / "mended"))
    elements = pipeline.iter(num_workers=0)
    with pytest.raises(ValueError, match="not there yet"):
        list(elements)
    for ask in (elements.__next__, elements.state_dict):
        with pytest.raises(RuntimeError, match="load a state_dict"):
            ask()


def test_a_function_that_raises_stop_iteration_does_not_end_the_rows(data, workers):
    def stop(batch):
        if batch["x"][0] > 20:
            raise StopIteration
        return batch

    for chain in (data.pipeline().filter(not_third).batch(4), data.pipeline().batch(4)):
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(chain.map(stop).iter(**workers))


def test_a_position_between_two_shares_is_numbers(data):
    for even in ("drop", "pad"):
        pipeline = data.pipeline().filter(not_third).shard(0, 4, even=even)
        wanted = [int(row["x"]) for row in pipeline.iter(num_workers=0, chunksize=5)]
        for used in range(len(wanted)):
            elements = pipeline.iter(num_workers=0, chunksize=5)
            got = [int(next(elements)["x"]) for _ in range(used)]
            later = pipeline.iter(num_workers=0)
            later.load_state_dict(json.loads(json.dumps(elements.state_dict())))
            assert got + [int(row["x"]) for row in later] == wanted


def test_an_epoch_of_which_nothing_is_left_does_not_end_the_others(workers):
    rows = TensorDict({"x": torch.arange(23)}, [23])
    for seed in range(4):
        epoch = rows.pipeline().shuffle(seed).take(1).filter(not_third)
        wanted = [int(row["x"]) for turn in range(6) for row in epoch.iter(num_workers=0, epoch=turn)]
        for pipeline in (epoch.repeat(6), epoch.take(5).repeat(6)):
            assert [int(row["x"]) for row in pipeline.iter(**workers)] == wanted
            assert pipeline.count(**workers) == len(wanted)


@pytest.mark.parametrize("rows", [0, 1, 23, 3000])
def test_epochs_without_end_of_which_nothing_is_left_do_end(rows):
    pipeline = TensorDict({"x": torch.arange(rows)}, [rows]).pipeline()
    nothing = pipeline.filter(lambda td: td["x"] < 0)
    for chain in (
        nothing.repeat(),
        nothing.take(3).repeat(),
        nothing.repeat().batch(4),
        pipeline.batch(4).repeat().filter(lambda batch: False),
        pipeline.repeat().batch(4).filter(lambda batch: False),
    ):
        assert list(chain.iter(num_workers=0)) == []
    assert len(nothing.repeat().take(3).collect(num_workers=0)) == 0
