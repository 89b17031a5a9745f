"""Groups whose reducers read text, ragged rows and objects, beside pandas."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import tdmap
from tdmap.reducers import Count, First, Last, Mean
from tensordict_lite import NonTensorData, Ragged, TensorDict, lazy_stack

ROWS = 211  # a prime
TEXT = [None if n % 19 == 3 else f"w{n * 7 % 23}" for n in range(ROWS)]
WORDS = [f"w{n * 5 % 31}" for n in range(ROWS)]
NUMBERS = [torch.arange(n % 4) + n for n in range(ROWS)]
OBJECTS = [[n] if n % 3 else str(n) for n in range(ROWS)]
KEYS = torch.arange(ROWS) * 11 % 13


def rows_of_kind(kind: str, folder: Path) -> Any:
    names = [f"k{int(key):02}" for key in KEYS]
    entries: dict[str, Any] = {"k": KEYS, "s": names, "v": KEYS.double(), "n": {"t": TEXT, "w": WORDS}}
    if kind == "lazy stack":
        return lazy_stack(
            [
                TensorDict({"k": KEYS[n], "s": names[n], "v": KEYS[n].double(), "n": {"t": TEXT[n], "w": WORDS[n]},
                            "r": NUMBERS[n], "o": NonTensorData(OBJECTS[n])})
                for n in range(ROWS)
            ]
        )  # fmt: skip
    data = TensorDict({**entries, "r": Ragged.from_list(NUMBERS), "o": OBJECTS}, [ROWS])
    if kind == "shards":
        tdmap.map(data, lambda rows: rows, out=folder / "data", rows_per_shard=60, num_workers=0)
        return tdmap.open(folder / "data")
    return data.memmap(folder / "data") if kind == "files" else data


@pytest.mark.parametrize("kind", ["columns", "files", "shards", "lazy stack"])
@pytest.mark.parametrize("key", ["k", "s"])
@pytest.mark.parametrize(("workers", "folder"), [(0, False), (2, True)])
def test_ends_of_groups_are_those_of_pandas(kind: str, key: str, workers: int, folder: bool, tmp_path: Path) -> None:
    data = rows_of_kind(kind, tmp_path)
    numbers = pd.Series(range(ROWS)).groupby(KEYS.numpy())
    reducers = {"n": Count(), "mean": Mean("v")}
    for name in (("n", "t"), "r", "o"):
        reducers |= {("first", name[-1]): First(name), ("last", name[-1]): Last(name)}
    out = tmp_path / "out" if folder else None
    got = tdmap.group_by(data, key).reduce(reducers, num_workers=workers, chunksize=50, out=out)
    assert got["n"].tolist() == numbers.size().tolist() and got["mean"].tolist() == list(range(13))
    for end, at in (("first", numbers.first()), ("last", numbers.last())):
        assert got[end, "t"] == [TEXT[n] for n in at] and got[end, "o"] == [OBJECTS[n] for n in at]
        assert got.get((end, "r")).tolist() == [NUMBERS[n].tolist() for n in at]
    if folder:
        assert TensorDict.load_memmap(tmp_path / "out")["first", "t"] == got["first", "t"]


@pytest.mark.parametrize("key", ["k", "s"])
def test_named_statistics_of_text_are_those_of_pandas(key: str, tmp_path: Path) -> None:
    data = rows_of_kind("columns", tmp_path)
    groups = tdmap.group_by(data, key)
    got = groups.agg({("n", "w"): ["count", "first", "last", "nunique"], "v": "median"}, num_workers=0)
    wanted = pd.Series(WORDS).groupby(KEYS.numpy()).agg(["count", "first", "last", "nunique"])
    for name in wanted:
        found = got["n", "w", name]
        assert (found.tolist() if isinstance(found, torch.Tensor) else found) == wanted[name].tolist()
    assert got["v"].tolist() == list(range(13))
    best = groups.top_k(("n", "w"), 2, num_workers=0)["n", "w"]
    largest = pd.Series(WORDS).groupby(KEYS.numpy()).apply(lambda words: sorted(words)[:-3:-1])
    assert best == [word for words in largest for word in words]


def test_of_no_rows_and_of_no_number(tmp_path: Path) -> None:
    data = rows_of_kind("columns", tmp_path)
    none = tdmap.group_by(data[:0], "k").reduce({"t": First(("n", "t")), "r": Last("r")}, num_workers=0)
    assert none.batch_size == (0,) and none["t"] == [] and len(none["r"]) == 0
    with pytest.raises(TypeError, match=r"the reducer 'm' reads 'o', which holds Python objects"):
        tdmap.group_by(data, "k").reduce({"m": Mean("o")}, num_workers=0)
    with pytest.raises(TypeError, match=r"an order within groups needs one number a row, and \('n', 'w'\)"):
        tdmap.group_by(data, "k").agg({"m": (("n", "w"), "median")}, num_workers=0)
    with pytest.raises(TypeError, match=r"an order within groups needs one number a row, and \('n', 'w'\)"):
        tdmap.group_by(data, "k").agg({"m": (("n", "w"), "quantile", 0.0)}, num_workers=0)
