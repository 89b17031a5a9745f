"""Options of operations at the ends of pipelines."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tdmap
from tdmap.reducers import Count, Sum
from tensordict_lite import TensorDict
from tests.pipeline.conftest import WORKERS
from tests.products import sampled

BAD = {7, 20, 21}


def fragile(td):
    if set(td["x"].tolist()) & BAD:
        raise ArithmeticError("seven, twenty")
    return td.clone()


def fragile_row(td):
    if int(td["x"]) in BAD:
        raise ArithmeticError("seven, twenty")
    return td.clone()


def fragile_predicate(td):
    fragile(td)
    return td["x"] % 2 == 0


def repeated(td):
    return [fragile(td), None, td[:0]]


def summed(td):
    return {"rows": td["x"].clone(), "sum": int(fragile(td)["x"].sum())}


ENDS: dict[str, Callable[..., list[int]]] = {
    "collect": lambda p, folder, **o: p.collect(**o)["x"].tolist(),
    "write": lambda p, folder, **o: p.write(folder / "out", **o)["x"].tolist(),
    "write, resumed": lambda p, folder, **o: p.write(folder / "out", resume=True, **o)["x"].tolist(),
    "write into": lambda p, folder, **o: [
        x for x in p.write(TensorDict({"x": torch.full((40,), -1)}, [40]), **o)["x"].tolist() if x >= 0
    ],
    "iter": lambda p, folder, **o: [int(row["x"]) for row in p.iter(**o)],
    "batches": lambda p, folder, **o: [x for batch in p.batch(6).iter(**o) for x in batch["x"].tolist()],
    "DataLoader's way": lambda p, folder, **o: [x for b in p.batch(6).unbatch().iter(**o) for x in [int(b["x"])]],
}
"""Each gives the rows that are left."""

STAGES: dict[str, Callable[[Any], Any]] = {
    "map": lambda p: p.map(fragile),
    "map_rows": lambda p: p.map_rows(fragile_row),
    "filter": lambda p: p.filter(fragile_predicate),
    "flat_map": lambda p: p.flat_map(repeated),
    "in another order": lambda p: p.shuffle(seed=2).map(fragile),
    "some rows": lambda p: p.skip(5).take(30).map(fragile),
    "of several": lambda p: p.concat(p.data[:0]).map(fragile),
}


@pytest.mark.parametrize("stage, end, workers", sampled(2, STAGES, ENDS, WORKERS), indirect=["workers"])
def test_rows_that_raise_are_left_out_and_told_by_their_numbers(data, stage, end, workers, tmp_path):
    rows, errors = data.select("x"), tdmap.RowErrors()
    got = ENDS[end](STAGES[stage](rows.pipeline()), tmp_path, on_error=errors, **workers)
    wanted = list(range(40)) if stage != "some rows" else list(range(5, 35))
    if stage == "in another order":
        wanted = rows.pipeline().shuffle(seed=2).collect(num_workers=0)["x"].tolist()
    if stage == "filter":
        wanted = [x for x in wanted if x % 2 == 0]
    assert got == [x for x in wanted if x not in BAD]
    assert errors.rows == sorted(BAD)


def test_answers_are_those_of_the_rows_that_are_left(data, workers):
    fine, chain = [x for x in range(40) if x not in BAD], data.select("x").pipeline().map(fragile)
    with pytest.warns(tdmap.errors.SkippedRows, match="3 rows failed"):
        answer = chain.reduce({"n": Count(), "sum": Sum("x")}, on_error="skip", **workers)
    assert (int(answer["n"]), int(answer["sum"])) == (len(fine), sum(fine))
    with pytest.warns(tdmap.errors.SkippedRows, match="3 rows failed"):
        assert chain.count(on_error="drop", **workers) == len(fine)
    assert chain.batch(2).count(on_error=tdmap.RowErrors(), **workers) == 19, "20 and 21 are one batch"
    assert chain.count() == 40, "no function is called"


def test_a_function_of_batches_gets_the_other_rows_together(data, workers):
    batches = data.select("x").pipeline().batch(5).map(summed).iter(on_error=tdmap.RowErrors(), **workers)
    wanted = [[x for x in range(at, at + 5) if x not in BAD] for at in range(0, 40, 5)]
    assert [(batch["rows"].tolist(), batch["sum"]) for batch in batches] == [(rows, sum(rows)) for rows in wanted]


@pytest.mark.parametrize(
    "chain, stage",
    [
        (lambda p: p.filter(lambda td: td["x"] > 2).batch(4).map(fragile), "map"),
        (lambda p: p.map(fragile).concat(p), "map"),
        (lambda p: p.zip(p.flat_map(repeated).map(lambda td: TensorDict({"z": td["x"]}, td.shape))), "flat_map|map"),
        (lambda p: p.filter(fragile_predicate).take(9).repeat(2).batch(2).filter(lambda td: True), "filter"),
    ],
)
def test_functions_whose_rows_have_no_numbers_skip_none_and_say_so(data, chain, stage, tmp_path):
    pipeline = chain(data.select("x").pipeline())
    for end in (pipeline.iter, pipeline.collect, pipeline.count, lambda **o: pipeline.write(tmp_path / "out", **o)):
        with pytest.raises(ValueError, match=rf"on_error= needs functions that workers call .*\.({stage})\("):
            end(on_error="skip", num_workers=0)


def test_a_seed_takes_the_place_of_that_of_the_pipeline(data, workers):
    def noisy(td):
        return td.select("x").set("noise", torch.rand(td.shape))

    def noise(seed=None, **options):
        return data.pipeline(seed=seed).map(noisy).collect(chunksize=7, **options, **workers)["noise"]

    assert torch.equal(noise(seed=3), torch.cat([noise(seed=3)]))
    pipeline = data.pipeline(seed=5).map(noisy)
    for options in ({"seed": 3}, {"generator": torch.Generator().manual_seed(1)}):
        first = pipeline.collect(chunksize=7, **options, **workers)["noise"]
        assert torch.equal(first, noise(seed=3)) is ("seed" in options)
        assert not torch.equal(first, noise(seed=5))
    batches = pipeline.batch(7).iter(seed=3, **workers)
    assert torch.equal(torch.cat([batch["noise"] for batch in batches]), noise(seed=3))


class Looks(tdmap.events.Callback):
    """Notes chunks, and names of spill files while there are any."""

    def __init__(self, folder=None):
        self.folder, self.chunks, self.names = folder, [], set()

    def on_lease_done(self, event):
        self.names |= set() if self.folder is None else {path.name for path in self.folder.iterdir()}

    def on_job_started(self, event):
        self.chunks.append(event.num_chunks)


@pytest.mark.parametrize("chain", [lambda p: p.map(fragile), lambda p: p.filter(fragile_predicate)])
def test_num_chunks_and_spill_dir_do_what_they_say(chain, tmp_path):
    data = TensorDict({"x": torch.arange(100, 200)}, [100])
    data["w"] = [str(x) for x in range(100)]
    (tmp_path / "spill").mkdir()
    looks, pipeline = Looks(tmp_path / "spill"), chain(data.pipeline())
    out = pipeline.write(tmp_path / "out", spill_dir=tmp_path / "spill", num_chunks=4, num_workers=2, callbacks=[looks])
    assert looks.chunks[0] == 4
    assert any(name.startswith("tdmap-spill") for name in looks.names) and not list((tmp_path / "spill").iterdir())
    assert out["x"].tolist() == pipeline.collect(num_workers=0)["x"].tolist()
    for end in (pipeline.collect, pipeline.iter):
        with pytest.raises(ValueError, match="chunksize or num_chunks, not both"):
            end(num_chunks=4, chunksize=2, num_workers=0)


def test_rows_that_are_read_are_not_written(data, tmp_path):
    other = TensorDict({"y": torch.arange(40)}, [40])
    for pipeline, out in (
        (data.pipeline(), data),
        (data.pipeline().filter(fragile_predicate), data),
        (data.pipeline().zip(other), other),
        (data.pipeline().concat(data.clone().pipeline().concat(data)), data),
    ):
        with pytest.raises(ValueError, match="shares memory with the data"):
            pipeline.write(out, num_workers=0)
