"""Data of other libraries: what goes in comes out, and a dataset that is there can be replaced. Keys of text."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tdmap.datasets import (
    from_arrow,
    from_dataset,
    from_huggingface,
    from_pandas,
    from_polars,
    read,
    to_pandas,
    write,
)
from tdmap.reducers import Count, Mean
from tensordict_lite import Ragged, TensorDict

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

SPECIAL = [1.5, float("nan"), float("inf"), -float("inf"), -0.0, 0.0]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("nulls", ["raise", "mask"])
def test_nan_of_a_data_frame_is_a_number(dtype: str, nulls: str) -> None:
    frame = pandas.DataFrame({"n": range(6), "x": np.array(SPECIAL, dtype=dtype)})
    table = from_pandas(frame, nulls=nulls)
    assert table["x"].numpy().tobytes() == frame["x"].to_numpy().tobytes()  # the sign of zero, too
    assert to_pandas(table)["x"].to_numpy().tobytes() == frame["x"].to_numpy().tobytes()


@pytest.mark.parametrize("values", [pandas.array([1.0, None], "Float64"), pandas.Series(["a", None], dtype=object),
                                    pandas.to_datetime(["2020-01-01", None])])  # fmt: skip
def test_what_pandas_lacks_is_a_null(values: Any) -> None:
    frame = pandas.DataFrame({"x": values})
    with pytest.raises(ValueError, match="'x' has nulls, the first in row 1"):
        from_pandas(frame)
    assert from_pandas(frame, nulls="mask")["x.valid"].tolist() == [True, False]


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv", "tsv", "jsonl", "json", "npz", "h5", "zarr"])
def test_special_numbers_survive_every_format(tmp_path: Path, ending: str) -> None:
    pytest.importorskip({"h5": "h5py", "zarr": "zarr"}.get(ending, "pyarrow"))
    path = tmp_path / f"x.{ending}"
    write({"x": torch.tensor(SPECIAL, dtype=torch.float64)}, path)
    table = read(path)
    found = table[next(iter(table.keys()))]
    assert np.array_equal(np.asarray(found, dtype=np.float64), np.array(SPECIAL), equal_nan=True)
    assert np.signbit(np.asarray(found, dtype=np.float64)).tolist()[2:] == [False, True, True, False]


class Squares:
    """A map-style dataset of torch's."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> dict[str, int]:
        return {"x": row}


def entry_points(tmp_path: Path) -> dict[str, Any]:
    """Each entry point, as a function of a number of rows, a folder and options."""

    def frame(rows: int) -> Any:
        return pandas.DataFrame({"x": range(rows)})

    def file(rows: int, ending: str) -> Path:
        write({"x": torch.arange(rows)}, tmp_path / f"x.{ending}")
        return tmp_path / f"x.{ending}"

    def hugging_face(rows: int, out: Path, **options: Any) -> TensorDict:
        return from_huggingface(pytest.importorskip("datasets").Dataset.from_dict({"x": range(rows)}), out, **options)

    def polars(rows: int, out: Path, **options: Any) -> TensorDict:
        return from_polars(pytest.importorskip("polars").DataFrame({"x": range(rows)}), out, **options)

    return {
        "pandas": lambda rows, out, **options: from_pandas(frame(rows), out, **options),
        "polars": polars,
        "arrow": lambda rows, out, **options: from_arrow(to_arrow_of(rows), out, **options),
        "hugging face": hugging_face,
        "torch": lambda rows, out, **options: from_dataset(Squares(rows), out, num_workers=0, **options),
        "parquet": lambda rows, out, **options: read(file(rows, "parquet"), out, num_workers=0, **options),
        "csv": lambda rows, out, **options: read(file(rows, "csv"), out, **options),
    }


def to_arrow_of(rows: int) -> Any:
    return pytest.importorskip("pyarrow").table({"x": range(rows)})


@pytest.mark.parametrize("name", ["pandas", "polars", "arrow", "hugging face", "torch", "parquet", "csv"])
def test_a_dataset_that_is_there_is_replaced_when_asked(tmp_path: Path, name: str) -> None:
    enter, out = entry_points(tmp_path)[name], tmp_path / "out"
    enter(3, out)
    with pytest.raises(FileExistsError):
        enter(5, out)
    assert len(TensorDict.load_memmap(out)) == 3
    assert enter(5, out, overwrite=True)["x"].tolist() == TensorDict.load_memmap(out)["x"].tolist() == [0, 1, 2, 3, 4]


WORDS = TensorDict(
    {"word": Ragged.from_list(["bee", "ant", "horse", "", "cow"]), "n": torch.tensor([5, 1, 2, 3, 4])}, [5]
)


def letters(rows: TensorDict) -> torch.Tensor:
    return rows.get("word").lengths


def test_statistics_of_text() -> None:
    shops, people = Ragged.from_list(["b", "a", "b", "b"]), Ragged.from_list(["x", "y", "x", "z"])
    rows = TensorDict({"shop": shops, "who": people, "n": torch.arange(4)}, [4])
    groups = tdmap.group_by(rows, "shop")
    found = groups.agg({"who": ["count"], "n": "sum"}, num_workers=0)
    assert found["shop"] == ["a", "b"] and found["n"].tolist() == [1, 5]
    assert found["who", "count"].tolist() == [1, 3]
    for ask in (lambda: groups.agg({"who": "max"}), lambda: groups.agg({"m": ("who", "median")}),
                lambda: groups.reduce({"m": Mean("who")})):  # fmt: skip
        with pytest.raises(TypeError, match="'who'"):
            ask()
    with pytest.raises(KeyError, match="'m'.*Entries: 'n', 'shop', 'who'"):
        groups.reduce({"m": Mean("m")})


@pytest.mark.parametrize("out", [None, "out"])
def test_text_that_a_function_of_groups_returns_stays_text(tmp_path: Path, out: str | None) -> None:
    by_length = tdmap.group_by(WORDS, letters)
    for number, fn in enumerate((lambda rows: {"word": rows["word"], "n": rows["n"]}, lambda rows: rows)):
        found = by_length.map_groups(fn, out=out and tmp_path / f"{number}", num_workers=2)
        assert found["word"] == ["", "bee", "ant", "cow", "horse"] and found["n"].tolist() == [3, 5, 1, 4, 2]
        assert to_pandas(found)["word"].tolist() == ["", "bee", "ant", "cow", "horse"]


def test_rows_sorted_by_a_function_of_text_or_a_formula() -> None:
    found = tdmap.sort(WORDS, letters, descending=True, num_workers=2)
    assert found["word"] == ["horse", "bee", "ant", "cow", ""]
    assert tdmap.sort(WORDS, -tdmap.col("n"), num_workers=0)["n"].tolist() == [5, 4, 3, 2, 1]


LISTS = TensorDict({"ids": Ragged.from_list([[1], [2, 3]]), "word": Ragged.from_list(["a", "b"])}, [2])


@pytest.mark.parametrize(
    "ask",
    [
        lambda: tdmap.filter(LISTS, tdmap.col("ids") == 1, num_workers=0),
        lambda: tdmap.sort(LISTS, "ids", num_workers=0),
        lambda: tdmap.group_by(LISTS, "ids").reduce({"n": Count()}, num_workers=0),
        lambda: tdmap.join(LISTS, LISTS, "ids", num_workers=0),
        lambda: tdmap.join(LISTS, LISTS, left_on="ids", right_on="word", num_workers=0),
        lambda: tdmap.unique(LISTS, "ids", num_workers=0),
        lambda: tdmap.top_k(LISTS, "ids", 1, num_workers=0),
        lambda: tdmap.drop_duplicates(LISTS, "ids", num_workers=0),
    ],
)
def test_rows_of_different_lengths_are_no_keys(ask: Any) -> None:
    with pytest.raises(TypeError, match="'ids'"):
        ask()
