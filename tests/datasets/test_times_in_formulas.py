"""Formulas that compare columns of times with dates, against pandas."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tdmap import col
from tdmap.datasets import from_pandas, to_pandas
from tdmap.times import text_of, time_type
from tensordict_lite import TensorDict

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

NOON = datetime.datetime(2024, 6, 1, 12)
UTC = datetime.UTC
ROWS = 400


def frame(unit: str = "ms") -> Any:
    start = pandas.Timestamp("2024-05-20")
    moments = start + pandas.to_timedelta(np.arange(ROWS) * 5400 * 1000 + np.arange(ROWS) % 3, unit="ms")
    return pandas.DataFrame(
        {
            "n": np.arange(ROWS),
            "word": [f"w{number % 7}" for number in range(ROWS)],
            "day": [moment.date() for moment in moments],
            "at": pandas.Series(moments).astype(f"datetime64[{unit}]"),
            "zoned": pandas.Series(moments).dt.tz_localize("UTC").dt.tz_convert("Europe/Zurich"),
            "took": pandas.Series(pandas.to_timedelta(np.arange(ROWS), unit="s")).astype("timedelta64[ms]"),
        }
    )


SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


@pytest.mark.parametrize("sign", list(SIGNS))
@pytest.mark.parametrize(
    "value",
    [
        datetime.date(2024, 6, 1),
        NOON,
        np.datetime64("2024-06-01T12:00", "ns"),
        np.datetime64("2024-06"),
        pandas.Timestamp("2024-05-20 01:30:00.001"),
        pandas.Timestamp("2024-06-01 12:00:00.000000001"),
        "2024-06-01",
        "2024-06-01 12:00:00.002",
    ],
    ids=repr,
)
def test_columns_of_dates_compare_with_dates_of_every_kind(sign: str, value: Any) -> None:
    rows = frame()
    table, compare, wanted = from_pandas(rows), SIGNS[sign], pandas.Timestamp(value)
    for name in ("day", "at"):
        found = tdmap.filter(table, compare(col(name), value), num_workers=0)
        assert found["n"].tolist() == rows.n[compare(pandas.to_datetime(rows[name]), wanted)].tolist(), name


@pytest.mark.parametrize("unit", ["Y", "400Y", "M", "W", "D", "h", "s"])
@pytest.mark.parametrize("number", [2**60, -(2**60)])
def test_times_that_no_column_reaches_compare_as_what_they_are(number: int, unit: str) -> None:
    table, far, other = from_pandas(frame()), np.datetime64(number, unit), np.datetime64(-number, unit)
    for name in ("day", "at"):
        for formula, kept in (
            (col(name) < far, number > 0),
            (col(name) >= far, number < 0),
            (col(name) != far, True),
            (col(name).between(far, other), number < 0),
            (col(name).isin([far]), False),
        ):
            assert len(tdmap.filter(table, formula, num_workers=0)) == ROWS * kept, formula


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_each_unit_of_a_column_is_heeded(unit: str) -> None:
    rows = frame(unit)
    found = tdmap.filter(from_pandas(rows), col("at") > NOON, num_workers=0)
    assert found["n"].tolist() == rows.n[rows["at"] > NOON].tolist()


def test_lists_and_ranges_of_dates() -> None:
    rows, days = frame(), [datetime.date(2024, 6, 1), np.datetime64("2024-06-03"), "2024-06-04", NOON]
    table = from_pandas(rows)
    wanted = rows.n[rows.day.isin([datetime.date(2024, 6, day) for day in (1, 3, 4)])].tolist()
    assert tdmap.filter(table, col("day").isin(days), num_workers=0)["n"].tolist() == wanted
    array = np.array(["2024-06-01", "2024-06-03", "2024-06-04"], dtype="datetime64[ns]")
    assert tdmap.filter(table, col("day").isin(array), num_workers=0)["n"].tolist() == wanted
    between = tdmap.filter(table, col("at").between("2024-06-01", NOON), num_workers=0)["n"].tolist()
    assert between == rows.n[rows["at"].between("2024-06-01", NOON)].tolist()
    short = tdmap.filter(table, col("took") < datetime.timedelta(minutes=1), num_workers=0)
    assert short["n"].tolist() == list(range(60))


@pytest.mark.parametrize("resume", [False, True])
def test_workers_and_folders_compare_with_dates(tmp_path: Path, resume: bool) -> None:
    rows, wanted = frame(), (col("day") >= datetime.date(2024, 6, 1)) & (col("word") == "w3")
    table = from_pandas(rows, tmp_path / "in")
    found = tdmap.filter(table, wanted, out=tmp_path / "out", chunksize=13, num_workers=2, resume=resume)
    kept = rows[(pandas.to_datetime(rows.day) >= "2024-06-01") & (rows.word == "w3")]
    assert to_pandas(found)["at"].tolist() == kept["at"].tolist()


def test_moments_of_a_zone_are_compared_as_moments() -> None:
    rows = frame()
    table, east = from_pandas(rows), datetime.timezone(datetime.timedelta(hours=2))
    wanted = rows.n[rows.zoned >= pandas.Timestamp("2024-06-01", tz="Europe/Zurich")].tolist()
    for value in (datetime.datetime(2024, 6, 1, tzinfo=east), "2024-06-01T00:00+02:00", "2024-05-31T22:00Z"):
        assert tdmap.filter(table, col("zoned") >= value, num_workers=0)["n"].tolist() == wanted
    with pytest.raises(TypeError, match=r"'zoned'.*has no zone: say which"):
        tdmap.filter(table, col("zoned") >= NOON, num_workers=0)
    with pytest.raises(TypeError, match=r"'at'.*without a zone.*has one: leave it out"):
        tdmap.filter(table, col("at") >= NOON.replace(tzinfo=UTC), num_workers=0)


def test_what_is_no_time_of_the_column_is_refused() -> None:
    table = from_pandas(frame())
    refused: list[tuple[Any, str]] = [
        (col("day") == "June", "is not a date, such as '2024-06-01'"),
        (col("day") == "2024-02-30", "is not a date"),
        (col("day") > datetime.timedelta(1), "is a duration, not a date"),
        (col("took") > datetime.date(2024, 6, 1), "is a date, not a duration"),
        (col("day") > np.datetime64("NaT"), "is not a date"),
        (col("day") > pandas.NaT, "is not a date"),
        (col("n") > datetime.date(2024, 6, 1), "col\\('n'\\) has no type"),
        (col("at") > col("day"), "convert both to one unit"),
    ]
    for formula, said in refused:
        with pytest.raises(TypeError, match=said):
            tdmap.filter(table, formula, num_workers=0)
    rows = TensorDict({"day": torch.arange(3)}, [3])
    with pytest.raises(TypeError, match="has no type"):
        tdmap.filter(rows, col("day") > datetime.date(2024, 6, 1), num_workers=0)


def test_arithmetic_and_comparison_with_numbers_stay_as_they_are() -> None:
    rows = frame()
    table = from_pandas(rows)
    assert (
        tdmap.filter(table, col("day") >= 19875, num_workers=0)["n"].tolist()
        == rows.n[pandas.to_datetime(rows.day) >= "2024-06-01"].tolist()
    )
    assert len(tdmap.filter(table, col("at") // 86_400_000 == col("day") * 1, num_workers=0)) == ROWS
    assert len(tdmap.filter(table, col("at") - col("took") <= col("at"), num_workers=0)) == ROWS


def test_python_objects_compare_themselves() -> None:
    days = [datetime.date(2024, 6, 1), datetime.date(2024, 6, 2)]
    rows = TensorDict({"day": days, "n": torch.arange(2)}, [2])
    assert tdmap.filter(rows, col("day") > days[0], num_workers=0)["n"].tolist() == [1]
    assert tdmap.filter(rows, col("day").isin(days[:1]), num_workers=0)["n"].tolist() == [0]
    assert tdmap.filter(rows, col("day").between(*days), num_workers=0)["n"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (19875, "date32[day]", "2024-06-01"),
        (1717200000000, "date64[ms]", "2024-06-01"),
        (-1, "timestamp[s]", "1969-12-31T23:59:59"),
        (1, "timestamp[ns, tz=Europe/Zurich]", "1970-01-01T00:00:00.000000001Z"),
        (3661, "time32[s]", "01:01:01"),
        (1500, "duration[ms]", "1500 ms"),
    ],
)
def test_numbers_are_shown_as_times(number: int, kind: str, text: str) -> None:
    found = time_type(kind)
    assert found is not None and text_of(number, found) == text
    assert time_type("int64") is None
