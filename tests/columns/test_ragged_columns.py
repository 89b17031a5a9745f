"""Ragged entries in every operation: the rows that plain Python gives, in memory, in folders, after kills."""

import functools
import json
import os
import pickle
import re
import signal
import subprocess
import textwrap
import tracemalloc
from collections.abc import Callable
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.data.objectlog import ObjectLog
from tdmap.data.objects import Each, RaggedPiece
from tdmap.output import ragged
from tdmap.plan import ChunkPlan
from tensordict_lite import NonTensorStack, Ragged, TensorDict
from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap import tuning as files
from tensordict_lite.ragged import RaggedColumn
from tests import interpreters
from tests.products import sampled

ROWS = 200

KINDS: dict[str, list[Any]] = {
    "numbers": [torch.arange(n % 7) + n for n in range(ROWS)],
    "pairs": [torch.full((n % 3, 2), float(n)) for n in range(ROWS)],
    "bytes": [bytes([n % 256]) * (n % 5) for n in range(ROWS)],
    "text": [f"{n * 71 % 97} \u00e9" * (n % 3) for n in range(ROWS)],
    "json": [[{"role": "user", "n": n}] * (n % 4) for n in range(ROWS)],
}
KEYS = ("bytes", "text")


def made() -> TensorDict:
    columns = {kind: Ragged.from_list(rows) for kind, rows in KINDS.items() if kind not in ("text", "json")}
    columns["json"] = Ragged.from_objects(KINDS["json"])
    return TensorDict({"x": torch.arange(ROWS), **columns, "in": {"text": Ragged.from_list(KINDS["text"])}}, [ROWS])


def entry(kind: str) -> Any:
    return ("in", "text") if kind == "text" else kind


def rows_of(data: TensorDict) -> dict[str, list[Any]]:
    found = {}
    for kind in KINDS:
        column = data.get(entry(kind))
        assert type(column) is Ragged and column.column is not None, (kind, type(column))
        found[kind] = column.tolist()
    return {"x": data["x"].tolist(), **found}


@functools.cache
def plain(kind: str) -> list[Any]:
    return [row.tolist() if isinstance(row, torch.Tensor) else row for row in KINDS[kind]]


def expected(numbers: list[int]) -> dict[str, list[Any]]:
    return {"x": numbers, **{kind: [plain(kind)[n] for n in numbers] for kind in KINDS}}


@pytest.fixture(autouse=True)
def small() -> Any:
    with files.use(text_rows=1), tuning.use(gather_bytes=1024, copy_bytes=1024, light_bytes=0):
        yield


LAYOUTS = ("memory", "mapped", "part", "sharded")
INTO = ("memory", "folder", "resume")


@pytest.fixture(params=LAYOUTS)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        return made()
    if request.param == "sharded":
        for number in range(2):
            made()[number * 70 : 70 + number * 130].memmap(tmp_path / f"part{number}")
        return tdmap.open([tmp_path / f"part{number}" for number in range(2)])
    made().memmap(tmp_path / "source")
    mapped = TensorDict.load_memmap(tmp_path / "source")
    return mapped if request.param == "mapped" else torch.cat([mapped, mapped])[ROWS:]


def same(rows: TensorDict) -> TensorDict:
    return rows


def is_third(rows: TensorDict) -> torch.Tensor:
    return rows["x"] % 3 == 0


def thirds(rows: TensorDict) -> TensorDict:
    return rows[is_third(rows)]


def no_thirds(rows: TensorDict) -> TensorDict:
    return rows[rows["x"] < 0]


def none_of_seven(rows: TensorDict) -> TensorDict:
    if (rows["x"] % 7 == 5).any():
        raise ValueError("a bad row")
    return rows


def _ordered(kind: str, descending: bool = False) -> list[int]:
    return sorted(range(ROWS), key=lambda n: KINDS[kind][n], reverse=descending)


ALL = list(range(ROWS))

OPERATIONS: dict[str, tuple[Callable[..., Any], list[int]]] = {
    "map": (lambda data, **how: tdmap.map(data, same, chunksize=37, **how), ALL),
    "map in one chunk": (lambda data, **how: tdmap.map(data, same, chunksize=ROWS, **how), ALL),
    "filter": (lambda data, **how: tdmap.filter(data, is_third, **how), ALL[::3]),
    "filter nothing": (lambda data, **how: tdmap.filter(data, lambda rows: rows["x"] < 0, **how), []),
    "flat_map": (lambda data, **how: tdmap.flat_map(data, thirds, chunksize=37, **how), ALL[::3]),
    "flat_map nothing": (lambda data, **how: tdmap.flat_map(data, no_thirds, chunksize=37, **how), []),
    "sort by text": (lambda data, **how: tdmap.sort(data, ("in", "text"), **how), _ordered("text")),
    "sort by bytes": (lambda data, **how: tdmap.sort(data, "bytes", **how), _ordered("bytes")),
    "sort": (lambda data, **how: tdmap.sort(data, "x", descending=True, **how), ALL[::-1]),
    "shuffle": (
        lambda data, **how: tdmap.shuffle(data, seed=2, **how),
        torch.randperm(ROWS, generator=torch.Generator().manual_seed(2)).tolist(),
    ),
    "top_k": (lambda data, **how: tdmap.top_k(data, "x", 5, **how), ALL[:-6:-1]),
    "join": (
        lambda data, **how: tdmap.join(data, TensorDict({"x": torch.arange(0, ROWS, 3)}, [67]), "x", **how),
        ALL[::3],
    ),
    "join to ragged": (
        lambda data, **how: tdmap.join(TensorDict({"x": torch.arange(0, ROWS, 3)}, [67]), data, "x", **how),
        ALL[::3],
    ),
    "map_groups": (lambda data, **how: tdmap.group_by(data, "x").map_groups(same, **how), ALL),
    "map, drop": (
        lambda data, **how: tdmap.map(data, none_of_seven, chunksize=7, on_error=tdmap.RowErrors("drop"), **how),
        [n for n in ALL if n % 7 != 5],
    ),
    "pipeline": (
        lambda data, out=None, resume=False, **how: (
            data.pipeline().filter(is_third).map(same).write(out, resume=resume, **how)
            if out is not None
            else data.pipeline().filter(is_third).map(same).collect(**how)
        ),
        ALL[::3],
    ),
}


@pytest.mark.parametrize("data, name, into, workers", sampled(5, LAYOUTS, OPERATIONS, INTO, [0, 2]), indirect=["data"])
def test_every_operation_gives_the_rows(data: Any, name: str, into: str, workers: int, tmp_path: Path) -> None:
    run, numbers = OPERATIONS[name]
    how: dict[str, Any] = {"memory": {}, "folder": {"out": tmp_path / "out"}}.get(into, {})
    if into == "resume":
        how = {"out": tmp_path / "out", "resume": True}
    result = run(data, num_workers=workers, **how)
    assert rows_of(result) == expected(numbers)
    if into != "memory":
        assert rows_of(TensorDict.load_memmap(tmp_path / "out")) == expected(numbers)
    if into == "resume":
        assert not [name for name in os.listdir(tmp_path / "out/.tdmap") if name.startswith("spill")]
    source = data.get(("in", "text"))._objects
    if isinstance(source, RaggedColumn):
        assert source._cells == {}  # no row of the source became an object


@pytest.mark.parametrize("data, kind, workers", sampled(2, LAYOUTS, KEYS, [0, 2]), indirect=["data"])
def test_text_and_bytes_are_keys(data: Any, kind: str, workers: int) -> None:
    distinct = sorted(set(KINDS[kind]))
    unique = tdmap.unique(data, entry(kind), num_workers=workers)
    assert unique.get(entry(kind)).tolist() == distinct
    counts = tdmap.value_counts(data, entry(kind), num_workers=workers)
    assert {key: KINDS[kind].count(key) for key in distinct} == dict(
        zip(counts.get(entry(kind)).tolist(), counts["count"].tolist(), strict=True)
    )
    groups = tdmap.group_by(data, entry(kind)).agg({"x": ["max"]}, num_workers=workers)
    assert groups.get(entry(kind)).tolist() == distinct
    joined = tdmap.join(data, unique, entry(kind), num_workers=workers)
    assert sorted(joined["x"].tolist()) == ALL


def test_text_is_not_joined_with_bytes() -> None:
    with pytest.raises(TypeError, match="strings.*bytes|bytes.*strings"):
        tdmap.join(
            TensorDict({"k": Ragged.from_list(["a"])}, [1]), TensorDict({"k": Ragged.from_list([b"a"])}, [1]), "k"
        )


def bad_rows(rows: TensorDict) -> TensorDict:
    if (rows["x"] == 5).any():
        raise ValueError("a bad row")
    return rows


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_are_skipped_are_empty_or_none(workers: int, tmp_path: Path) -> None:
    result = tdmap.map(made(), bad_rows, out=tmp_path / "out", chunksize=3, on_error="skip", num_workers=workers)
    rows = rows_of(result)
    for kind, missing in (("numbers", []), ("pairs", []), ("bytes", b""), ("text", None), ("json", None)):
        assert rows[kind] == [missing if n == 5 else row for n, row in enumerate(expected(ALL)[kind])]


def mixed(rows: TensorDict) -> TensorDict:
    """Lists, one object for all rows, a ragged column: the text of a chunk as functions return it."""
    first = int(rows["x"][0])
    if first == 0:
        words: Any = rows.get(("in", "text"))
    elif first < 50:
        words = list(rows["in", "text"])
    else:
        words = NonTensorStack(*["same"] * len(rows)) if first < 100 else "one"
    return TensorDict({"x": rows["x"], "w": words}, rows.batch_size)


@pytest.mark.parametrize("chunksize", [10, 25])
def test_text_of_any_form_is_one_column(chunksize: int, tmp_path: Path) -> None:
    result = tdmap.map(made(), mixed, out=tmp_path / "out", chunksize=chunksize, num_workers=2)
    wanted = [
        KINDS["text"][n] if n // chunksize * chunksize < 50 else "same" if n // chunksize * chunksize < 100 else "one"
        for n in ALL
    ]
    assert type(result.get("w")) is Ragged and result["w"] == wanted


def other_kind(rows: TensorDict) -> TensorDict:
    values = [[1]] * len(rows) if int(rows["x"][0]) < 100 else [[1.5]] * len(rows)
    return TensorDict({"x": rows["x"], "v": Ragged.from_list(values)}, rows.batch_size)


@pytest.mark.parametrize("name", ["map", "flat_map"])
@pytest.mark.parametrize("out", [False, True])
def test_rows_of_another_dtype_are_refused(name: str, out: bool, tmp_path: Path) -> None:
    with pytest.raises(
        tdmap.errors.OutputMismatch, match=r"rows 100:150: 'v' is float32 \[\*\], and int64 \[\*\] elsewhere"
    ):
        getattr(tdmap, name)(made(), other_kind, out=tmp_path / "out" if out else None, chunksize=50, num_workers=0)
    assert not (tmp_path / "out").exists()


def one_of_another_dtype(rows: TensorDict) -> TensorDict:
    is_bad = bool((rows["x"] == 107).any())
    return TensorDict({"x": rows["x"], "v": Ragged.from_list([[1.5 if is_bad else 1]] * len(rows))}, rows.batch_size)


@pytest.mark.parametrize("name", ["map", "flat_map"])
@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_another_dtype_are_errors_of_these_rows(name: str, out: bool, workers: int, tmp_path: Path) -> None:
    errors = tdmap.RowErrors("drop" if name == "map" else "skip")
    how: dict[str, Any] = {"out": tmp_path / "out"} if out else {}
    result = getattr(tdmap, name)(
        made(), one_of_another_dtype, chunksize=50, num_workers=workers, on_error=errors, **how
    )
    assert errors.rows == [107] and result["x"].tolist() == [n for n in ALL if n != 107]
    assert result.get("v").flat()[0].dtype is torch.int64


def test_few_strings_stay_what_the_reference_opens(tmp_path: Path) -> None:
    for name in ("map", "filter", "shuffle"):
        run, numbers = OPERATIONS[name]
        with files.use(text_rows=ROWS + 1):
            result = run(made(), out=tmp_path / name, num_workers=0)
        assert result["in", "text"] == [KINDS["text"][n] for n in numbers]
        assert isinstance(result.get(("in", "text")), Ragged)
        assert "data" in json.loads((tmp_path / name / "in/text/meta.json").read_text())


def loud(row: TensorDict) -> TensorDict:
    return TensorDict({"x": row["x"], "w": row["in", "text"].upper()}, [])


@pytest.mark.parametrize("workers", [0, 2])
def test_text_is_made_row_by_row(data: Any, workers: int, tmp_path: Path) -> None:
    result = tdmap.map(data, loud, out=tmp_path / "out", chunksize=0, num_workers=workers)
    assert type(result.get("w")) is Ragged and result["w"] == [word.upper() for word in KINDS["text"]]


def test_strings_travel_as_their_bytes() -> None:
    words = KINDS["text"]
    piece = pickle.loads(pickle.dumps(Each(words)))
    assert isinstance(piece, RaggedPiece) and piece.values == words and len(piece) == ROWS
    assert pickle.loads(pickle.dumps(piece)).values == words
    for others in ([*words, None], [*words, 3], words[:3], [(word,) for word in words]):
        assert pickle.loads(pickle.dumps(Each(others))).values == others


SCRIPT = """
    import os, signal, sys
    sys.path.insert(0, {root!r})
    import tdmap
    from tests.columns.test_ragged_columns import OPERATIONS, TensorDict, files, tuning
    from tdmap.output import ragged, spill
    kill = sys.argv[1]
    def dying(step):
        call = step.__call__
        def dies(self, chunk, start=0):
            if start:
                os.killpg(0, signal.SIGKILL)
            return call(self, chunk, start)
        step.__call__ = dies
    if kill == "gather":
        dying(ragged.GatherRagged)
    elif kill == "copy":
        dying(spill.CopyTasks)
    with files.use(text_rows=1), tuning.use(gather_bytes=1024, copy_bytes=1024, light_bytes=0):
        OPERATIONS[{name!r}][0](TensorDict.load_memmap({source!r}), out={out!r}, resume=True, num_workers=0)
"""


@pytest.mark.parametrize(
    ("name", "kill"), [("map", "copy"), ("filter", "gather"), ("shuffle", "gather"), ("sort by text", "gather")]
)
def test_a_call_that_was_killed_while_it_placed_rows_is_resumed(name: str, kill: str, tmp_path: Path) -> None:
    made().memmap(tmp_path / "source")
    script = textwrap.dedent(SCRIPT).format(
        root=str(Path(__file__).parents[2]), name=name, source=str(tmp_path / "source"), out=str(tmp_path / "out")
    )

    def run(how: str) -> subprocess.CompletedProcess[str]:
        return interpreters.run(["-c", script, how])

    assert run(kill).returncode == -signal.SIGKILL
    with pytest.raises(Exception, match="saved dataset|unfinished|no meta"):
        TensorDict.load_memmap(tmp_path / "out")
    done = run("no")
    assert done.returncode == 0, done.stderr
    assert rows_of(TensorDict.load_memmap(tmp_path / "out")) == expected(OPERATIONS[name][1])


@pytest.mark.parametrize(
    "note", [["spilled", "str", "torch.uint8", [], 3, 4, "../x", 0, 0], ["spilled", "str"]], ids=["a path", "no fields"]
)
def test_a_planted_note_of_spilled_rows_is_refused(note: list[Any], tmp_path: Path) -> None:
    log = ObjectLog(tmp_path)
    log.begin([("w",)])
    with log.path.open("a") as file:
        file.write(json.dumps({"chunk": 0, "pieces": [note]}) + "\n")
    with pytest.raises(tdmap.errors.UntrustedFile, match="objects of rows"):
        log.load([("w",)], ChunkPlan(3, 3))


def changed(rows: TensorDict) -> TensorDict:
    """Every row twice as long; a row whose number is 5 raises."""
    if (rows["x"] == 5).any():
        raise ValueError("a bad row")
    twice = {kind: Ragged.from_list([torch.cat([v, v]) for v in rows[kind]]) for kind in ("numbers", "pairs")}
    twice["bytes"] = Ragged.from_list([row * 2 for row in rows["bytes"]])
    twice["json"] = Ragged.from_objects([row * 2 for row in rows["json"]])
    words = [word * 2 for word in rows["in", "text"]]
    return TensorDict({"x": rows["x"], **twice, "in": {"text": words}}, rows.batch_size)


def twice_but_row_5() -> dict[str, list[Any]]:
    found = expected(ALL)
    return {kind: [row if kind == "x" or n == 5 else row + row for n, row in enumerate(found[kind])] for kind in found}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("target", ["memory", "files", "in place"])
def test_an_output_that_there_is_stays_ragged(target: str, resume: bool, workers: int, tmp_path: Path) -> None:
    if resume and target == "memory":
        pytest.skip("a journal needs a folder")
    for name in ("source", "out"):
        made().memmap(tmp_path / name)
    data, out = (TensorDict.load_memmap(tmp_path / name) for name in ("source", "out"))
    if target != "files":
        out = made() if target == "memory" else data
    how: dict[str, Any] = {"resume": True} if resume else {}
    errors = tdmap.RowErrors()
    tdmap.map(data, changed, out=out, chunksize=10, num_workers=workers, on_error=errors, **how)
    assert rows_of(out) == twice_but_row_5() and len(errors) == 1
    if target != "memory":
        folder = tmp_path / ("out" if target == "files" else "source")
        assert rows_of(TensorDict.load_memmap(folder)) == twice_but_row_5()
        assert not list(folder.glob(".tdmap/spill*"))


@pytest.mark.parametrize("kind", ["text", "bytes"])
@pytest.mark.parametrize("target", ["memory", "in place", "files"])
@pytest.mark.parametrize("workers", [0, 2])
def test_objects_of_an_output_that_there_is_are_those_of_the_results(
    kind: str, target: str, workers: int, tmp_path: Path
) -> None:
    rows = KINDS[kind]
    data = TensorDict({"x": torch.arange(ROWS), "w": NonTensorStack(*rows)}, [ROWS])
    out = (
        data
        if target == "in place"
        else TensorDict({"x": torch.arange(ROWS), "w": NonTensorStack(*rows[::-1])}, [ROWS])
    )
    if target == "files":
        if kind == "bytes":
            pytest.skip("a folder holds bytes in ragged entries only")
        out.memmap(tmp_path / "out")
        out = TensorDict.load_memmap(tmp_path / "out")
    tdmap.map(data, lambda chunk: chunk.clone(), out=out, chunksize=50, num_workers=workers)
    assert list(out["w"]) == rows


def other_numbers(rows: TensorDict) -> TensorDict:
    return TensorDict({"numbers": Ragged.from_list([[0.5]] * len(rows))}, rows.batch_size)


@pytest.mark.parametrize("name", ["map", "flat_map"])
def test_rows_of_another_dtype_do_not_go_into_an_output(name: str) -> None:
    out = made()
    with pytest.raises(tdmap.errors.OutputMismatch, match=r"'numbers'.*int64 \[\*\].*float32 \[\*\]"):
        getattr(tdmap, name)(made(), other_numbers, out=out, num_workers=0)
    assert rows_of(out) == expected(ALL)


def test_ranks_write_ragged_rows(tmp_path: Path) -> None:
    for rank in range(3):
        tdmap.map(made(), same, out=tmp_path / "out", chunksize=10, num_workers=rank, shard=(rank, 3))
    assert rows_of(TensorDict.load_memmap(tmp_path / "out")) == expected(ALL)
    assert not list((tmp_path / "out").glob(".tdmap/spill*"))


def test_workers_of_another_library_send_ragged_rows(spawned: Pool, tmp_path: Path) -> None:
    assert rows_of(tdmap.map(made(), same, chunksize=50, pool=spawned)) == expected(ALL)
    for name, resume in (("once", False), ("resumable", True)):
        tdmap.map(made(), same, out=tmp_path / name, chunksize=50, pool=spawned, resume=resume)
        assert rows_of(TensorDict.load_memmap(tmp_path / name)) == expected(ALL)


DAMAGE: dict[str, tuple[str, int, bytes, str]] = {
    "text that is not UTF-8": ("in/text/values.memmap", 1, b"\xc3\x28", r"values.memmap: string \d+ is not UTF-8"),
    "offsets of text that fall": ("in/text/offsets.memmap", 40, b"\0" * 8, "text/offsets.memmap: row 4 has"),
    "offsets past the text": ("in/text/offsets.memmap", 40, b"\xff" * 6, "text/offsets.memmap: row [45] has"),
    "offsets of numbers that fall": ("numbers.offsets.memmap", 40, b"\0" * 8, "numbers.offsets.memmap: row 4 has"),
}


@pytest.mark.parametrize(
    "damage, name, workers", sampled(4, DAMAGE, [name for name in OPERATIONS if name != "map, drop"], [0, 2])
)
def test_damaged_rows_are_named_by_file_and_row(damage: str, name: str, workers: int, tmp_path: Path) -> None:
    file, at, content, message = DAMAGE[damage]
    made().memmap(tmp_path / "source")
    with (tmp_path / "source" / file).open("r+b") as opened:
        opened.seek(at)
        opened.write(content)
    data = TensorDict.load_memmap(tmp_path / "source")
    run, numbers = OPERATIONS[name]
    try:
        rows = rows_of(run(data, out=tmp_path / "out", num_workers=workers))
    except DatasetError as error:
        assert re.search(message, str(error)), error
    else:
        assert not {1, 4, 5} & {*numbers} and rows == expected(numbers)


def longer(rows: TensorDict) -> TensorDict:
    column = rows.get("w")
    return TensorDict({"k": rows["k"], "w": torch.cat([column, column])[: len(rows)]}, rows.batch_size)


GROWING: dict[str, Callable[..., Any]] = {
    "map": lambda data, **how: tdmap.map(data, longer, **how),
    "flat_map": lambda data, **how: tdmap.flat_map(data, longer, **how),
    "filter": lambda data, **how: tdmap.filter(data, lambda rows: rows["k"] >= 0, **how),
    "join": lambda data, **how: tdmap.join(data, data.select("k"), "k", **how),
    "join to ragged": lambda data, **how: tdmap.join(data.select("k"), data, "k", **how),
    "pipeline": lambda data, out=None, **how: (
        data.pipeline().map(longer).collect(**how) if out is None else data.pipeline().map(longer).write(out, **how)
    ),
}


@pytest.mark.parametrize("name, kind, into", sampled(2, GROWING, ["text", "numbers"], ["memory", "folder"]))
def test_ragged_rows_take_no_memory_in_the_caller(
    name: str, kind: str, into: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the caller allocates does not grow with the 120 bytes of a row, but with its number at most."""
    monkeypatch.setattr(ragged, "BLOCK_ROWS", 4096)
    peaks = []
    for rows in (20_000, 80_000):
        length, dtype, what = (120, torch.uint8, "str") if kind == "text" else (15, torch.int64, "tensor")
        column = Ragged(torch.full((rows * length,), 97, dtype=dtype), torch.arange(rows + 1) * length, what)
        TensorDict({"k": torch.arange(rows), "w": column}, [rows]).memmap(tmp_path / f"source{rows}")
        data = TensorDict.load_memmap(tmp_path / f"source{rows}")
        how = {"out": tmp_path / f"out{rows}"} if into == "folder" else {}
        tracemalloc.start()
        with tuning.use(copy_bytes=1 << 20, gather_bytes=1 << 20):
            result = GROWING[name](data, num_workers=1, **how)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(result) == rows and result.get("w").dtype is dtype
    assert peaks[1] < peaks[0] + 60_000 * 40


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_whose_elements_are_empty_are_kept(workers: int) -> None:
    column = Ragged.from_list([torch.zeros(n, 0) for n in (2, 0, 3)])
    data = TensorDict({"x": torch.arange(3), "v": column}, [3])
    for result in (
        tdmap.map(data, lambda rows: rows, num_workers=workers),
        tdmap.filter(data, lambda rows: rows["x"] > -1, num_workers=workers),
        tdmap.sort(data, "x", num_workers=workers),
    ):
        assert [tuple(row.shape) for row in result.get("v").unbind(0)] == [(2, 0), (0, 0), (3, 0)]
