"""Data frames and the files of pandas': against pandas, and against the reference."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tensordict_lite import TensorDict

pandas = pytest.importorskip("pandas")


def frame() -> Any:
    return pandas.DataFrame(
        {
            "i": [1, 2, 3],
            "f": [0.5, -1.0, 2.0],
            "b": [True, False, True],
            "o.x": [4, 5, 6],
            "s": ["u", "", "größer"],
            "c": pandas.Categorical(["q", "p", "q"]),
            "t": pandas.to_datetime(["2020-01-01", "2021-02-03", "1969-01-01"]),
        }
    )


@pytest.mark.parametrize("separator", [None, "."])
@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_columns_are_those_of_the_reference(separator: str | None, dtype: Any) -> None:
    reference = pytest.importorskip("tensordict")
    options: Any = {"separator": separator, "dtype": dtype}
    found, expected = (kind.from_pandas(frame(), **options) for kind in (TensorDict, reference.TensorDict))
    keys = ["i", "f", "b", ("o", "x") if separator else "o.x", "c", "t"]
    for key in keys:
        assert found[key].dtype is expected[key].dtype and torch.equal(found[key], expected[key]), key
    assert found.batch_size == expected.batch_size == torch.Size([3])
    assert list(found["s"]) == ["u", "", "größer"]
    again, theirs = (data.exclude("s", "c", "t").to_pandas(separator=separator) for data in (found, expected))
    assert again.equals(theirs[list(again.columns)])


@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "jsonl"])
def test_files_go_out_and_come_back(tmp_path: Path, kind: str) -> None:
    data = TensorDict(
        {"x": torch.arange(4), "deep": {"y": torch.randn(4, dtype=torch.float64)}, "s": list("abcd")}, [4]
    )
    name: Any = {"jsonl": "json"}.get(kind, kind)
    extra: Any = {"lines": True} if kind == "jsonl" else {}
    digits: Any = {"double_precision": 15} if name == "json" else {}
    getattr(data, f"to_{name}")(tmp_path / "d", separator=".", **extra, **digits)
    found = getattr(TensorDict, f"from_{name}")(tmp_path / "d", separator=".", **extra)
    assert torch.equal(found["x"], data["x"]) and torch.allclose(found["deep", "y"], data["deep", "y"])
    assert found[2]["s"] == "c" and found.batch_size == data.batch_size
    if kind == "parquet":
        assert set(TensorDict.from_parquet(tmp_path / "d", columns=["x"]).keys()) == {"x"}


def test_what_has_no_place_in_a_frame_is_told() -> None:
    with pytest.raises(ValueError, match="one value per row"):
        TensorDict({"m": torch.zeros(2, 3)}, [2]).to_pandas()
    with pytest.raises(ValueError, match="is nested: pass separator"):
        TensorDict({"a": {"b": torch.zeros(2)}}, [2]).to_pandas()
    with pytest.raises(ValueError, match="batch size"):
        TensorDict({"a": torch.zeros(2)}, []).to_pandas()
    with pytest.raises(ValueError, match="nested in another column"):
        TensorDict.from_pandas(pandas.DataFrame({"a": [1], "a.b": [2]}), separator=".")


def test_columns_that_would_be_one_entry_are_told() -> None:
    for names, separator in ((["a", "a"], None), ([1, "1"], None), (["a.b", "a"], "."), (["a.b", "a.b"], ".")):
        with pytest.raises(ValueError, match="two columns would be the entry"):
            TensorDict.from_pandas(pandas.DataFrame([[1, 2]], columns=names), separator=separator)
    with pytest.raises(ValueError, match=r"two entries would be the column 'a\.b'"):
        TensorDict({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}, [1]).to_pandas(separator=".")


def test_times_beyond_nanoseconds_are_told() -> None:
    times = pandas.DataFrame({"t": pandas.to_datetime(["2020-01-01", "3000-01-01"])})
    with pytest.raises(ValueError, match="'t' has a time that int64 nanoseconds do not reach"):
        TensorDict.from_pandas(times)
    zone = TensorDict.from_pandas(pandas.DataFrame({"t": pandas.date_range("2020-01-01", periods=1, tz="Asia/Tokyo")}))
    assert zone["t"].tolist() == [1577804400000000000]


def test_numbers_of_every_layout_go_in_and_out() -> None:
    swapped = pandas.DataFrame({"a": np.array([1, 2], ">i4")})
    assert TensorDict.from_pandas(swapped)["a"].tolist() == [1, 2]
    with pytest.raises(TypeError, match="the column 'a' is (longdouble|float128|float96), which torch does not have"):
        TensorDict.from_pandas(pandas.DataFrame({"a": np.array([1], np.longdouble)}))
    turned = torch.tensor([1 + 2j]).conj()
    assert TensorDict({"a": turned, "b": turned.imag}, [1]).to_pandas().to_dict("list") == {"a": [1 - 2j], "b": [-2.0]}
    with pytest.raises(TypeError, match="the entry 'a' is torch.bfloat16, which NumPy does not have"):
        TensorDict({"a": torch.zeros(1, dtype=torch.bfloat16)}, [1]).to_pandas()


def test_text_without_rows_is_text() -> None:
    frame = TensorDict({"s": ["a"], "x": torch.arange(1)}, [1])[:0].to_pandas()
    assert frame["s"].dtype.kind == "O" and frame["x"].dtype == "int64"
