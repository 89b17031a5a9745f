"""Every operation that writes a folder, as a function of the data, of `out` and of options.

They are those of `tests/cells/operations.py`, and ways to call some of them that write other files.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tdmap
from tdmap import tuning
from tdmap.ops.permute import permute
from tdmap.reducers import Count, Mean, Reducer
from tensordict_lite import Ragged, TensorDict
from tests.cells.operations import OPERATIONS, resumable

ROWS = 60


def make(rows: int = ROWS) -> TensorDict:
    """A dataset in memory."""
    x = torch.arange(rows)
    return TensorDict({"x": x, "k": x % 4, "f": x.double(), "nested": {"y": x.float()}}, [rows])


def same(chunk: TensorDict) -> TensorDict:
    return chunk.clone()


def increment(chunk: TensorDict) -> None:
    chunk["x"].add_(1)


def some(chunk: TensorDict) -> torch.Tensor:
    return chunk["x"] % 3 == 0


def kept(chunk: TensorDict) -> TensorDict:
    return chunk[some(chunk)]


class Total(Reducer[int]):
    """A sum."""

    def init(self) -> int:
        return 0

    def update(self, state: int, chunk: Any, start: int = 0) -> int:
        return state + int(chunk["x"].sum())

    def merge(self, a: int, b: int) -> int:
        return a + b


def words(data: TensorDict) -> TensorDict:
    """The same with a key of strings."""
    return TensorDict({"x": data["x"], "k": [f"k{number}" for number in data["k"].tolist()]}, data.batch_size)


def _permute(data: TensorDict, out: Path, **options: Any) -> Any:
    return permute(data, torch.arange(len(data)).flip(0), out=out, **options, method="scatter")


def _cache(data: TensorDict, out: Path, stages: str = "map", **options: Any) -> Any:
    pipeline = tdmap.Pipeline(data).map(same)
    pipeline = pipeline.filter(some).shuffle(0, buffer=8) if stages == "here" else pipeline
    return pipeline.cache(out).collect(chunksize=10, **options)


Operation = Callable[..., Any]


def _texts(data: TensorDict) -> TensorDict:
    """The same with rows of text and of numbers, of several lengths."""
    texts, lists = [f"w{number}" for number in data["x"].tolist()], [range(n % 5) for n in data["x"].tolist()]
    return data.clone().update({"w": Ragged.from_list(texts), "ids": Ragged.from_list([[*part] for part in lists])})


def _over_the_disk(call: Operation) -> Operation:
    """As for rows that do not fit into memory."""
    return tuning.use(available_memory=0, bucket_bytes=1500)(call)


def _second() -> TensorDict:
    keys = torch.arange(0, 200, 2)
    return TensorDict({"x": keys.repeat(2), "y": torch.arange(200)}, [200])


VARIANTS: dict[str, Operation] = {
    "sort by several": lambda data, **o: tdmap.sort(data, ["k", "x"], descending=[True, False], **o),
    "sort by strings": lambda data, **o: tdmap.sort(words(data), ["k", "x"], **o),
    "sort of text": lambda data, **o: tdmap.sort(_texts(data), "w", **o),
    "sort over the disk": _over_the_disk(lambda data, **o: tdmap.sort(data, "x", **o)),
    "flat_map of text": lambda data, **o: tdmap.flat_map(_texts(data), kept, **o),
    "shuffle of text": lambda data, **o: tdmap.shuffle(_texts(data), 5, **o),
    "shuffle over the disk": _over_the_disk(lambda data, **o: tdmap.shuffle(data, 5, **o)),
    "agg with medians": lambda data, **o: tdmap.group_by(data, "k").agg({"f": ["mean", "median"]}, **o),
    "reduce by many": lambda data, **o: tdmap.group_by(data, "x").reduce({"m": Mean("f"), "n": Count()}, **o),
    "map_groups by strings": lambda data, **o: tdmap.group_by(words(data), "k").map_groups(lambda g: g[:2], **o),
    "outer join": lambda data, **o: tdmap.join(data, _second(), "x", "outer", **o),
    "semi join": lambda data, **o: tdmap.join(data, _second(), "x", "semi", **o),
    "join by strings": lambda data, **o: tdmap.join(words(data), words(data[:5]).select("k"), "k", "left", **o),
    "join of several folders": lambda data, **o: tdmap.join(
        tdmap.concat([data[:50], data[50:]]), tdmap.concat([_second()[:11], _second()[11:]]), "x", **o
    ),
    "filtered write": lambda data, out=None, **o: (
        tdmap.Pipeline(data, seed=5).shuffle(2).map(same).filter(some).write(out, **o)
        if out is not None
        else tdmap.Pipeline(data, seed=5).shuffle(2).map(same).filter(some).collect(**o)
    ),
    "pack": lambda data, **o: tdmap.datasets.pack(_texts(data), "ids", 7, **o),
}
"""Calls that take other ways than those of the cells."""


def _into_folder(name: str) -> Operation:
    return lambda data, out, **o: OPERATIONS[name].call(data, out=out, **o)


OUT_OF_PLACE: dict[str, Operation] = {
    **{name: _into_folder(name) for name in resumable() if name != "train_test_split"},  # which writes two
    "map": lambda data, out, **o: tdmap.map(data, same, out=out, chunksize=10, **o),
    "map without rows": lambda data, out, **o: tdmap.map(data[:0], same, out=out, **o),
    "filter": lambda data, out, **o: tdmap.filter(data, some, out=out, chunksize=10, **o),
    "flat_map": lambda data, out, **o: tdmap.flat_map(data, kept, out=out, chunksize=10, **o),
    "permute": _permute,
    "reduce by words": lambda data, out, **o: tdmap.group_by(words(data), "k").reduce({"n": Count()}, out=out, **o),
    "write": lambda data, out, **o: tdmap.Pipeline(data).map(same).write(out, chunksize=10, **o),
    "write fewer": lambda data, out, **o: tdmap.Pipeline(data).filter(some).write(out, chunksize=10, **o),
    "write here": lambda data, out, **o: tdmap.Pipeline(data).filter(some).shuffle(0, buffer=8).write(out, **o),
    "cache": _cache,
    "cache here": lambda data, out, **o: _cache(data, out, "here", **o),
}
"""Those that make a new dataset."""

RESUMABLE: dict[str, Operation] = {
    "map": lambda data, out, **o: tdmap.map(data, same, out=out, chunksize=10, resume=True, **o),
    "filter": lambda data, out, **o: tdmap.filter(data, some, out=out, chunksize=10, resume=True, **o),
    "flat_map": lambda data, out, **o: tdmap.flat_map(data, kept, out=out, chunksize=10, resume=True, **o),
    "write": lambda data, out, **o: tdmap.Pipeline(data).map(same).write(out, chunksize=10, resume=True, **o),
    "write fewer": lambda data, out, **o: tdmap.Pipeline(data).filter(some).write(out, chunksize=10, resume=True, **o),
    "cache": _cache,
    "reduce": lambda data, out, **o: tdmap.reduce(data, Total(), chunksize=10, resume=out, **o),
    "reduce several": lambda data, out, **o: tdmap.reduce(
        data, {"mean": Mean("x"), "n": Count()}, chunksize=10, resume=out, **o
    ),
}
"""Those that keep a journal in a new folder."""


def _into(data: TensorDict, out: Path, **options: Any) -> Any:
    return tdmap.map(data, same, out=TensorDict.load_memmap(out), chunksize=10, resume=True, **options)


def _in_place(data: TensorDict, out: Path, **options: Any) -> Any:
    target = TensorDict.load_memmap(out)
    return tdmap.map(target, increment, out=target, chunksize=10, resume=True, **options)


IN_DATASET: dict[str, Operation] = {"map into": _into, "map in place": _in_place}
"""Those that keep a journal in a dataset that is there."""


def prepare(name: str, folder: Path) -> Path:
    """The folder that an operation writes."""
    if name in IN_DATASET:
        make().memmap(folder / "out")
    return folder / "out"


def quietly(run: Callable[[], Any]) -> Any:
    """Run it, without the warning that it has been run before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tdmap.errors.AlreadyComplete)
        return run()
