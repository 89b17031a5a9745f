"""Keys of strings that are None, beside pandas: they count as NaN does."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import tdmap
from tdmap.reducers import Count, Sum
from tensordict_lite import Ragged, TensorDict

ROWS = 211  # a prime
TEXT = [None if n % 7 == 2 else f"w{n * 5 % 11}" for n in range(ROWS)]
LATE = ["a"] * 200 + [None] * 11  # none in the first chunks
FRAME = pd.DataFrame({"t": TEXT, "late": LATE, "x": range(ROWS), "k": [n % 3 for n in range(ROWS)]})


def rows_of_kind(kind: str, folder: Path) -> Any:
    text: dict[str, Any] = {"t": TEXT, "late": LATE}
    if kind != "lists":
        text = {name: Ragged.from_list(rows) for name, rows in text.items()}
    data = TensorDict({**text, "x": torch.arange(ROWS), "k": torch.arange(ROWS) % 3}, [ROWS])
    if kind == "shards":
        tdmap.map(data, lambda rows: rows, out=folder / "data", rows_per_shard=60, num_workers=0)
        return tdmap.open(folder / "data")
    return data.memmap(folder / "data") if kind == "files" else data


def objects(values: Any) -> list[Any]:
    return [None if value != value else value for value in values]


CASES = [(kind, {"num_workers": 0, "chunksize": 50}) for kind in ("lists", "columns", "files", "shards")]


@pytest.fixture(params=[*CASES, ("files", {"num_workers": 2})], ids=lambda case: f"{case[0]}-{case[1]['num_workers']}")
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, dict[str, Any]]:
    kind, options = request.param
    return rows_of_kind(kind, tmp_path), options


@pytest.mark.parametrize("key", ["t", "late", ["k", "t"], ["late", "k"]], ids=str)
def test_groups(case: tuple[Any, dict[str, Any]], key: Any) -> None:
    data, options = case
    first = key if isinstance(key, str) else next(name for name in key if name != "k")
    for dropna in (True, False):
        got = tdmap.group_by(data, key, dropna=dropna).reduce({"n": Count(), "s": Sum("x")}, **options)
        wanted = FRAME.groupby(key, dropna=dropna).x.agg(["size", "sum"]).reset_index()
        assert list(got[first]) == objects(wanted[first])
        assert got["n"].tolist() == wanted["size"].tolist() and got["s"].tolist() == wanted["sum"].tolist()
        groups = tdmap.group_by(data, key, dropna=dropna).map_groups(lambda rows: rows[-1:], **options)
        assert groups["x"].tolist() == FRAME.groupby(key, dropna=dropna).x.max().tolist()
    with pytest.raises(ValueError, match=r"the key is NaN or None in rows (2|200), .* Pass dropna=True"):
        tdmap.group_by(data, key).reduce(Count(), **options)


def test_order_and_duplicates(case: tuple[Any, dict[str, Any]]) -> None:
    data, options = case
    for down in (False, True):
        got = tdmap.sort(data, ["k", "t"], descending=[False, down], **options)
        wanted = FRAME.sort_values(["k", "t"], ascending=[True, not down], kind="stable", na_position="last")
        assert got["x"].tolist() == wanted.x.tolist()
        assert tdmap.sort(data, "t", descending=down, **options)["t"] == objects(
            FRAME.sort_values("t", ascending=not down, kind="stable", na_position="last").t
        )
    for name in ("t", "late"):
        distinct = FRAME.drop_duplicates(name)
        assert tdmap.drop_duplicates(data, name, **options)["x"].tolist() == distinct.x.tolist()
        assert tdmap.unique(data, name, **options)[name] == objects(distinct.sort_values(name)[name])
        counts = tdmap.value_counts(data, name, dropna=True, **options)
        found = dict(zip(counts[name], counts["count"].tolist(), strict=True))
        assert found == FRAME[name].value_counts().to_dict()


def test_statistics_of_text(case: tuple[Any, dict[str, Any]]) -> None:
    data, options = case
    groups = tdmap.group_by(data, "k")
    got = groups.agg({"t": ["nunique", "first"]}, **options)
    assert got["t", "nunique"].tolist() == FRAME.groupby("k").t.nunique().tolist() and got["t", "first"] == TEXT[:3]
    largest = FRAME.groupby("k").t.apply(lambda words: sorted(words.dropna())[-1])
    assert groups.top_k("t", 1, **options)["t"] == largest.tolist()


@pytest.mark.parametrize("mine", [["w1", "w2", None, "zz"], ["w1", "w2"]], ids=["both", "one"])
def test_none_equals_no_key_of_a_join(case: tuple[Any, dict[str, Any]], mine: list[Any]) -> None:
    data, options = case
    other = TensorDict({"t": mine, "y": torch.arange(len(mine))}, [len(mine)])
    pairs = FRAME.dropna(subset="t").merge(pd.DataFrame({"t": mine, "y": range(len(mine))}).dropna(), on="t")
    inner = tdmap.join(data, other, on="t", **options)
    found = torch.stack([inner["x"], inner["y"]], 1).tolist()
    assert sorted(found) == sorted(pairs[["x", "y"]].to_numpy().tolist())
    left = tdmap.join(data, other, on="t", how="left", **options)
    assert left["t"] == TEXT and left["x"].tolist() == list(range(ROWS))
    anti = tdmap.join(data, other, on="t", how="anti", **options)
    assert anti["t"] == [text for text in TEXT if text is None or text not in mine]


def test_key_functions_and_nothing_but_none() -> None:
    data = rows_of_kind("lists", Path())
    found = tdmap.group_by(data, lambda rows: [text and text[:2] for text in rows["t"]], dropna=False)
    got = found.reduce(Count(), num_workers=0)
    wanted = FRAME.groupby(FRAME.t.str[:2], dropna=False).size()
    assert got["key"] == objects(wanted.index) and got["result"].tolist() == wanted.tolist()
    for text in ([None] * 3, Ragged.from_list(["", None, None, None])[1:]):
        none = TensorDict({"t": text, "x": torch.arange(3)}, [3])
        assert tdmap.unique(none, "t", num_workers=0)["t"] == [None]
        assert len(tdmap.unique(none, "t", dropna=True, num_workers=0)) == 0
        assert tdmap.sort(none, "t", num_workers=0)["x"].tolist() == [0, 1, 2]
