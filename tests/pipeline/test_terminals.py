"""write, cache, reduce, collect, count."""

import os

import pytest
import torch

import tdmap
from tdmap.errors import OutputMismatch, ResumeMismatch
from tdmap.reducers import Count, Mean, Sum
from tensordict_lite import TensorDict


def not_third(td):
    return td["x"] % 3 != 0


def tenfold(td):
    return td.clone(False).set("y", td["x"] * 10)


def test_write_into_a_dataset(data, workers):
    for pipeline in (
        data.pipeline().map(tenfold).take(30),
        data.pipeline().filter(lambda td: td["x"] < 30).map(tenfold),
    ):
        out = TensorDict({"y": torch.full((35,), -1)}, [35])
        assert pipeline.write(out, **workers) is out
        assert out["y"].tolist() == [10 * x for x in range(30)] + [-1] * 5


def test_an_output_that_is_too_small_is_refused_with_numbers(data, workers):
    out = TensorDict({"x": torch.zeros(10, dtype=torch.int64)}, [10])
    with pytest.raises(OutputMismatch, match="out has 10 rows and the pipeline yields 40 rows"):
        data.pipeline().write(out, **workers)
    with pytest.raises(OutputMismatch, match="out has 10 rows and the pipeline yields more"):
        data.pipeline().filter(not_third).write(out, **workers)


def test_going_on_with_another_function_is_refused_by_its_stage(data, tmp_path):
    def failing(td):
        if td["x"][0] > 10:
            raise OSError("disk")
        return td

    with pytest.raises(OSError, match="disk"):
        data.pipeline().map(tenfold).map(failing).write(tmp_path / "out", resume=True, num_workers=0, chunksize=5)
    with pytest.raises(ResumeMismatch, match=r"stage 2, map\(tenfold\): version"):
        data.pipeline().map(tenfold).map(tenfold).write(tmp_path / "out", resume=True, num_workers=0, chunksize=5)


def test_datasets_that_are_put_together_can_be_gone_on_with(data, workers, tmp_path):
    mapped = data.memmap(tmp_path / "data")
    broken = tmp_path / "broken"
    broken.touch()

    def fragile(td):
        if 70 in td["row"] and broken.exists():
            raise OSError("disk")
        return td

    row = TensorDict({"row": torch.arange(80)}, [80])
    pipeline = mapped.pipeline().concat(data.pipeline().map(tenfold).select("x", "image")).zip(row).map(fragile)
    with pytest.raises(OSError, match="disk"):
        pipeline.write(tmp_path / "out", resume=True, chunksize=4, **workers)
    broken.unlink()
    written = pipeline.write(tmp_path / "out", resume=True, chunksize=4, **workers)
    assert written["row"].tolist() == list(range(80))
    assert written["x"].tolist() == list(range(40)) * 2


def test_a_write_with_counting_stages_cannot_be_resumed_and_says_what_to_do(data, tmp_path):
    with pytest.raises(ValueError, match=r"\.cache\(path\)"):
        data.pipeline().filter(not_third).take(5).write(tmp_path / "out", resume=True)


def test_cache_is_written_once(data, workers, tmp_path):
    calls = tmp_path / "calls"
    calls.mkdir()

    def noted(td):
        (calls / str(int(td["x"][0]))).touch()
        return tenfold(td)

    for number, before in enumerate((data.pipeline().map(noted), data.pipeline().map(noted).filter(not_third))):
        cached = before.cache(tmp_path / f"cache{number}")
        wanted = before.collect(num_workers=0)["y"]
        pipeline = cached.shuffle(1).batch(8)
        rows = [row for batch in pipeline.iter(**workers) for row in batch["y"].tolist()]
        assert sorted(rows) == wanted.tolist()
        for file in calls.iterdir():
            file.unlink()
        assert torch.equal(cached.collect(**workers)["y"], wanted)
        assert not list(calls.iterdir())


def test_a_cache_of_another_pipeline_is_refused(data, tmp_path):
    data.pipeline().map(tenfold).cache(tmp_path / "cache").collect(num_workers=0)
    with pytest.raises(ResumeMismatch, match=r"stage 1"):
        data.pipeline().map(not_third).cache(tmp_path / "cache").collect(num_workers=0)
    with pytest.raises(ResumeMismatch, match="number of stages"):
        data.pipeline().map(tenfold).take(3).cache(tmp_path / "cache").collect(num_workers=0)
    other = TensorDict({"x": torch.arange(41)}, [41])
    with pytest.raises(ResumeMismatch, match="source 'x'"):
        other.pipeline().map(tenfold).cache(tmp_path / "cache").collect(num_workers=0)
    data.memmap(tmp_path / "mine")
    with pytest.raises(FileExistsError, match="not the cache of a pipeline"):
        data.pipeline().cache(tmp_path / "mine").collect(num_workers=0)


def test_a_cache_of_another_pipeline_is_replaced_when_that_is_asked_for(data, workers, tmp_path):
    path = tmp_path / "cache"
    data.pipeline().map(tenfold).cache(path).collect(num_workers=0)
    old = TensorDict.load_memmap(path)
    for other in (
        data.pipeline().map(tenfold).filter(not_third),
        data.pipeline().filter(not_third).take(7).map(tenfold),
        TensorDict({"x": torch.arange(41)}, [41]).pipeline().map(tenfold),
    ):
        wanted = other.collect(num_workers=0)["y"]
        with pytest.raises(ResumeMismatch, match=r"Pass overwrite=True to \.cache\(\)"):
            other.cache(path).collect(num_workers=0)
        assert torch.equal(other.cache(path, overwrite=True).collect(**workers)["y"], wanted)
        written = os.stat(path / "meta.json").st_ino
        assert torch.equal(other.cache(path, overwrite=True).collect(**workers)["y"], wanted)
        assert torch.equal(other.cache(path).collect(**workers)["y"], wanted)  # it is the same pipeline
        assert os.stat(path / "meta.json").st_ino == written
    assert old["y"].tolist() == [10 * x for x in range(40)]  # who had it open keeps it
    assert sorted(os.listdir(tmp_path)) == ["cache"]


def test_an_unfinished_cache_of_another_pipeline_is_replaced(data, tmp_path):
    def stops(td):
        if int(td["x"][-1]) > 30:
            raise KeyboardInterrupt
        return tenfold(td)

    path = tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        data.pipeline().map(stops).cache(path).collect(num_workers=0, chunksize=4)
    assert not (path / "meta.json").exists() and (path / ".tdmap" / "journal").exists()
    for other in (data.pipeline().map(tenfold), data.pipeline().map(tenfold).take(3)):
        if not (path / "meta.json").exists():
            with pytest.raises(ResumeMismatch, match=r"is the cache of another pipeline:\n(?s:.*)overwrite=True"):
                other.cache(path).collect(num_workers=0)
        assert other.cache(path, overwrite=True).collect(num_workers=0)["y"].tolist()[:3] == [0, 10, 20]


def test_an_unfinished_cache_in_other_chunks_is_begun_anew(data, tmp_path):
    def stops(td):
        if int(td["x"][-1]) > 30 and not (tmp_path / "go").exists():
            raise KeyboardInterrupt
        return tenfold(td)

    pipeline, path = data.pipeline().map(stops), tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        pipeline.cache(path).collect(num_workers=0, chunksize=4)
    (tmp_path / "go").touch()
    again = pipeline.cache(path).collect(num_workers=0, chunksize=5)
    assert again["y"].tolist() == [10 * x for x in range(40)]


def test_what_is_no_cache_is_never_replaced(data, tmp_path):
    data.memmap(tmp_path / "mine")
    with pytest.raises(FileExistsError, match="not the cache of a pipeline"):
        data.pipeline().take(3).cache(tmp_path / "mine", overwrite=True).collect(num_workers=0)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError):
        data.pipeline().cache(tmp_path / "files", overwrite=True).collect(num_workers=0)
    assert len(TensorDict.load_memmap(tmp_path / "mine")) == 40 and (tmp_path / "files" / "notes.txt").exists()


def test_a_failure_leaves_the_cache_that_was_to_be_replaced(data, tmp_path):
    def fails(td):
        raise ArithmeticError("no")

    path = tmp_path / "cache"
    data.pipeline().map(tenfold).cache(path).collect(num_workers=0)
    with pytest.raises(ArithmeticError):
        data.pipeline().map(fails).cache(path, overwrite=True).collect(num_workers=0)
    assert len(data.pipeline().map(tenfold).cache(path).collect(num_workers=0)) == 40
    assert sorted(os.listdir(tmp_path)) == ["cache"]


def test_reduce_has_the_bits_of_map_reduce(data, workers):
    values = TensorDict({"v": torch.rand(1000, 5)}, [1000])
    reducers = {"mean": Mean("v"), "n": Count(), "sum": Sum("v")}
    wanted = tdmap.map_reduce(values, lambda td: td * 2, reducers, num_workers=0, chunksize=37)
    got = values.pipeline().map(lambda td: td * 2).reduce(reducers, chunksize=37, **workers)
    assert torch.equal(got["mean"], wanted["mean"])
    assert torch.equal(got["sum"], wanted["sum"])
    assert int(got["n"]) == 1000


def test_count_runs_nothing_where_the_number_is_known(data):
    def never(td):
        raise AssertionError("called")

    pipeline = data.pipeline().map(never).shuffle(1).skip(5).take(30).shard(0, 3)
    assert pipeline.count() == len(pipeline) == 10
    assert pipeline.batch(4).count() == 3
    assert pipeline.batch(4, drop_last=True).repeat(5).count() == 10
    assert pipeline.repeat(5).batch(4).count() == 13
    assert pipeline.concat(data).count() == 50


def test_no_rows_at_every_ending(workers, tmp_path):
    empty = TensorDict({"x": torch.zeros(0, dtype=torch.int64), "image": torch.zeros(0, 3, 4)}, [0])
    for number, pipeline in enumerate(
        (
            empty.pipeline(),
            empty.pipeline().shuffle(1).map(tenfold),
            empty.pipeline().filter(not_third).map(tenfold),
            empty.pipeline().filter(not_third).take(3).repeat(2),
            empty.pipeline().concat(empty).batch(3),
            empty.pipeline().repeat(3).batch(4),
        )
    ):
        assert list(pipeline.iter(**workers)) == []
        assert pipeline.count(**workers) == 0
        collected = pipeline.collect(**workers)
        assert len(collected) == 0 and collected["x"].dtype == torch.int64
        written = pipeline.write(tmp_path / str(number), **workers)
        assert len(written) == 0 and set(written.keys()) == set(collected.keys())
        assert int(pipeline.reduce(Count(), **workers)) == 0


def test_no_rows_whose_schema_cannot_be_known(data):
    with pytest.raises(ValueError, match="no rows"):
        data.pipeline().filter(lambda td: td["x"] < 0).map(lambda td: td["missing"]).collect(num_workers=0)


def test_a_pipeline_without_end_can_only_be_iterated(data):
    endless = data.pipeline().repeat().batch(16)
    elements = endless.iter(num_workers=0)
    assert [next(elements)["x"][0].item() for _ in range(4)] == [0, 16, 32, 8]
    for end in (endless.collect, endless.count, lambda: len(endless), lambda: endless.reduce(Count())):
        with pytest.raises(ValueError, match="no end"):
            end()
    assert endless.take(3).count() == 3
    assert len(endless.take(3).collect(num_workers=0)) == 48
