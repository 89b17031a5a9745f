"""Default chunks follow the size of results: the first one settles the others, whoever works, after a resume too."""

import os
import time
from itertools import product

import pytest
import torch

import tdmap
from tdmap.plan import CACHE_BYTES, LEAD_CHUNKS, LEAD_ROWS, ChunkPlan, make_plan
from tdmap.run import status
from tensordict_lite import TensorDict

ROWS = 3000
LARGE = 40_000  # bytes of a result
FITTING = CACHE_BYTES // LARGE


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


def calls_in(log) -> list[tuple[int, int]]:
    """First row and number of rows of each call."""
    return sorted(tuple(map(int, line.split())) for line in log.read_text().splitlines())


def noted(log, fn):
    """`fn`, which notes its calls in a file."""

    def run(chunk):
        with open(log, "a") as file:
            file.write(f"{int(chunk['row'][0])} {len(chunk['row'])}\n")
        return fn(chunk)

    return run


def draw(chunk):
    """A few bytes in, a picture out."""
    return TensorDict(
        {"image": torch.zeros(len(chunk), LARGE, dtype=torch.uint8), "row": chunk["row"]}, chunk.batch_size
    )


@pytest.fixture
def index():
    return TensorDict({"row": torch.arange(ROWS)}, [ROWS])


OPERATIONS = {
    "map": lambda data, fn, path, **options: tdmap.map(data, fn, **options),
    "map to a folder": lambda data, fn, path, **options: tdmap.map(data, fn, out=path, **options),
    "map, resumable": lambda data, fn, path, **options: tdmap.map(data, fn, out=path, resume=True, **options),
    "map, dropping": lambda data, fn, path, **options: tdmap.map(data, fn, out=path, on_error="drop", **options),
    "map_iter": lambda data, fn, path, **options: list(tdmap.map_iter(data, fn, **options)),
    "flat_map": lambda data, fn, path, **options: tdmap.flat_map(data, fn, out=path, **options),
    "collect": lambda data, fn, path, **options: data.pipeline().map(fn).collect(**options),
    "write": lambda data, fn, path, **options: data.pipeline().map(fn).write(path, **options),
    "write filtered": lambda data, fn, path, **options: (
        data.pipeline().map(fn).filter(lambda c: c["row"] >= 0).write(path, **options)
    ),
    "iter": lambda data, fn, path, **options: list(data.pipeline().map(fn).iter(**options)),
    "iter of late batches": lambda data, fn, path, **options: list(
        data.pipeline().map(fn).filter(lambda c: c["row"] >= 0).batch(2).iter(**options)
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_large_results_make_small_chunks(name, index, log, tmp_path):
    OPERATIONS[name](index[:400], noted(log, draw), tmp_path / "out", num_workers=2)
    sizes = [rows for _, rows in calls_in(log)]
    assert max(sizes) <= FITTING + 1 < 400 // 12


@pytest.mark.parametrize("name", ["map", "map to a folder", "map_iter", "flat_map", "collect", "write", "iter"])
def test_small_results_of_large_rows_make_larger_chunks(name, log, tmp_path):
    data = TensorDict({"row": torch.arange(2000), "image": torch.zeros(2000, 30_000, dtype=torch.uint8)}, [2000])

    def mean(chunk):
        return TensorDict({"row": chunk["row"], "mean": chunk["image"].float().mean(1)}, chunk.batch_size)

    OPERATIONS[name](data, noted(log, mean), tmp_path / "out", num_workers=2)
    sizes = [rows for _, rows in calls_in(log)]
    guess = CACHE_BYTES // (5 * 30_008)
    assert max(sizes) > 2 * guess


@pytest.mark.parametrize(
    "name, kind",
    [
        *((name, "tensors") for name in ("map", "map, dropping", "map_iter", "flat_map", "collect", "write filtered")),
        *product(["map", "collect"], ["nested", "shards"]),
    ],
)
def test_rows_of_many_entries_make_larger_chunks(name, kind, log, tmp_path):
    """Each entry costs a chunk a view and a copy, however few bytes these are."""
    entries = {f"{number}": torch.zeros(1100, 1024, dtype=torch.uint8) for number in range(63)}
    if kind == "nested":
        entries = {"half": dict(list(entries.items())[:30]), "rest": dict(list(entries.items())[30:])}
    data = TensorDict({"row": torch.arange(1100), **entries}, [1100])
    if kind == "shards":
        data = tdmap.map(data, torch.clone, out=tmp_path / "shards", rows_per_shard=300)
    OPERATIONS[name](data, noted(log, torch.clone), tmp_path / "out", num_workers=2)
    sizes = [rows for _, rows in calls_in(log)]
    row_bytes = 2 * (63 * 1024 + 8)
    assert CACHE_BYTES // row_bytes < max(sizes) == 2 * CACHE_BYTES // row_bytes


@pytest.mark.parametrize("executor, workers", [("serial", 1), ("thread", 3), ("process", 1), ("process", 3)])
def test_chunks_are_the_same_whoever_works(executor, workers, index, log):
    tdmap.map(index, noted(log, draw), executor=executor, num_workers=workers)
    expected = make_plan(ROWS, row_bytes=8, result_bytes=32, is_guess=True).settled(CACHE_BYTES // (LARGE + 16))
    assert calls_in(log) == [
        (start, stop - start) for start, stop in (expected.rows(k) for k in range(expected.num_chunks))
    ]
    assert expected.rows(0) == (0, LEAD_ROWS) and expected.rows(LEAD_CHUNKS - 1)[1] == LEAD_CHUNKS * LEAD_ROWS


@pytest.mark.parametrize("rows", [1, 3, 31, 64, 65, 66, 127, 128, 129, 131, 1009])
@pytest.mark.parametrize("executor", ["serial", "process"])
def test_any_number_of_rows(rows, executor):
    data = TensorDict({"row": torch.arange(rows)}, [rows])
    result = tdmap.map(data, lambda c: TensorDict({"y": c["row"] * 2}, c.batch_size), executor=executor, num_workers=2)
    assert torch.equal(result["y"], torch.arange(rows) * 2)
    pieces = tdmap.map_iter(data, lambda c: c["row"] * 2, executor=executor, num_workers=2)
    assert torch.equal(torch.cat(list(pieces)), torch.arange(rows) * 2)


def test_the_first_result_that_is_no_none_decides(index, log):
    def late(chunk):
        return None if int(chunk["row"][0]) < 4 * LEAD_ROWS else draw(chunk)

    with pytest.warns(RuntimeWarning, match="returned None for 16 of 400 rows"):
        result = tdmap.map(index[:400], noted(log, late), num_workers=2)
    assert result.shape == (384,) and max(rows for _, rows in calls_in(log)) <= FITTING + 1


def test_bad_rows_come_first(index, log):
    def late(chunk):
        if int(chunk["row"][0]) < 2 * LEAD_ROWS:
            raise ValueError("not yet")
        return draw(chunk)

    errors = tdmap.RowErrors()
    result = tdmap.map(index[:400], noted(log, late), num_workers=2, on_error=errors)
    assert errors.rows == list(range(2 * LEAD_ROWS)) and torch.equal(result["row"][8:], torch.arange(8, 400))
    assert max(rows for _, rows in calls_in(log)) <= FITTING + 1


def test_a_function_in_place_has_no_results_to_wait_for(log):
    data = TensorDict({"row": torch.arange(ROWS), "x": torch.zeros(ROWS)}, [ROWS])

    def increment(chunk):
        chunk["x"].add_(1)

    tdmap.map(data, noted(log, increment), num_workers=2)
    assert bool((data["x"] == 1).all())
    assert sum(rows for _, rows in calls_in(log)) == ROWS


def test_what_is_known_is_not_tried(index, log):
    out = TensorDict(
        {"image": torch.zeros(ROWS, 100, dtype=torch.uint8), "row": torch.zeros(ROWS, dtype=torch.int64)}, [ROWS]
    )
    small = lambda c: TensorDict({"image": torch.zeros(len(c), 100, dtype=torch.uint8), "row": c["row"]}, c.batch_size)  # noqa: E731
    tdmap.map(index, noted(log, small), out=out, num_workers=2)
    assert {rows for _, rows in calls_in(log)} == {47, ROWS % 47}
    log.unlink()
    tdmap.map(index, noted(log, small), chunksize=100, num_workers=2)
    assert {rows for _, rows in calls_in(log)} == {100}


def test_strings_count_as_bytes(log):
    data = TensorDict({"row": torch.arange(2000), "text": ["x" * 20_000] * 2000}, [2000])
    tdmap.map(data, noted(log, lambda c: c.select("row")), num_workers=0)
    assert max(rows for _, rows in calls_in(log)) <= CACHE_BYTES // 20_000
    log.unlink()
    short = data.select("row")
    tdmap.map(short, noted(log, lambda c: c.copy().set("text", ["y" * 20_000] * len(c))), num_workers=0)
    assert max(rows for _, rows in calls_in(log)) <= CACHE_BYTES // 20_000


# -- going on ----------------------------------------------------------------------------------------------------------


class Interrupt(Exception):
    """Ends a session in the middle."""


def failing_once(fn, row, marker):
    def run(chunk):
        if int(chunk["row"][0]) >= row and not os.path.exists(marker):
            open(marker, "w").close()
            raise Interrupt
        return fn(chunk)

    return run


@pytest.mark.parametrize("row", [0, 9, 200, 900])
@pytest.mark.parametrize("call", ["map", "flat_map"])
def test_a_resumed_run_keeps_its_chunks(row, call, index, log, tmp_path):
    fn = failing_once(noted(log, draw), row, tmp_path / "marker")
    out = tmp_path / "out"

    def run():
        if call == "map":
            return tdmap.map(index, fn, out=out, resume=True, num_workers=2)
        return tdmap.flat_map(index, fn, out=out, resume=True, num_workers=2)

    with pytest.raises(Interrupt):
        run()
    done = status.read_status(out).rows_done
    assert 0 <= done < ROWS
    before = sum(rows for _, rows in calls_in(log)) if log.exists() else 0
    result = run()
    assert torch.equal(result["row"], torch.arange(ROWS))
    calls = calls_in(log)
    assert max(rows for _, rows in calls) == CACHE_BYTES // (LARGE + 16)
    assert sum(rows for _, rows in calls) - before == ROWS - done, "what was done is not done again"
    assert status.read_status(out).rows_done == ROWS


@pytest.mark.parametrize("call, words", [("map", True), ("flat_map", False), ("write", True)])
def test_a_first_chunk_that_comes_last_settles_the_same_chunks(call, words, index, log, tmp_path):
    """Another one has shown what results look like, in an earlier run: the first goes straight to its place."""
    marker, out = tmp_path / "marker", tmp_path / "out"

    def drawn(chunk):
        rows = draw(chunk)
        return rows.set("word", [f"row {row:09d}" for row in chunk["row"].tolist()]) if words else rows

    def late(chunk):
        if int(chunk["row"][0]) == 0 and not marker.exists():
            until = time.monotonic() + 300
            while not (out.exists() and status.read_status(out).rows_done) and time.monotonic() < until:
                time.sleep(0.02)
            marker.touch()
            raise Interrupt
        return noted(log, drawn)(chunk)

    def run(data, fn, path, **options):
        if call == "write":
            return data.pipeline().map(fn).write(path, num_workers=2, **options)
        operation = {"map": tdmap.map, "flat_map": tdmap.flat_map}[call]
        return operation(data, fn, out=path, num_workers=2, **options)

    with pytest.raises(Interrupt):
        run(index, late, out, resume=True)
    assert 0 < status.read_status(out).rows_done < ROWS
    assert torch.equal(run(index, late, out, resume=True)["row"], torch.arange(ROWS))
    resumed = max(rows for _, rows in calls_in(log))
    log.unlink()
    run(index, noted(log, drawn), tmp_path / "undisturbed")
    assert resumed == max(rows for _, rows in calls_in(log))


def test_the_arithmetic_of_a_plan_with_small_first_chunks():
    for length in (0, 1, 3, 4, 5, 17, 60, 61, 203, 399):
        for size in (1, 3, 4, 50, 1000):
            for lead in (0, 1, 4):
                plan = ChunkPlan(length, size, lead=lead)
                rows = [plan.rows(k) for k in range(plan.num_chunks)]
                assert [i for start, stop in rows for i in range(start, stop)] == list(range(length))
                for start in range(0, plan.num_chunks, 5):
                    for stop in range(start, plan.num_chunks + 1, 7):
                        runs = plan.runs(start, stop, 16)
                        cut = [(i, min(i + n, b)) for a, b, n in runs for i in range(a, b, n)]
                        assert cut == rows[start:stop]
