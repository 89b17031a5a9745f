"""Commands on datasets with text and lists of different lengths: what `tdmap convert` makes of files."""

import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import tdmap
from tdmap.cli import app
from tensordict_lite import Ragged, TensorDict
from tests.products import sampled

ROWS = 40
CITIES = ["Zürich", "Bern", "Aarau", "Genf"]
MODULE = """
import torch

def same(rows):
    return rows

def some(rows):
    return rows["n"] % 2 == 0
"""


def table() -> TensorDict:
    texts = Ragged.from_list([CITIES[row % 4] for row in range(ROWS)])
    tokens = Ragged.from_list([list(range(row % 5)) for row in range(ROWS)])
    columns = {"n": torch.arange(ROWS), "meta": {"x": torch.arange(ROWS) / 4}, "city": texts, "tokens": tokens}
    return TensorDict(columns, [ROWS])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables")
    table().memmap(path / "cities")
    for number, part in enumerate(table().split(15)):
        part.memmap(path / "parts" / f"{number}")
    (path / "on_rows.py").write_text(MODULE)
    TensorDict({"n": torch.arange(0, ROWS, 2), "weight": torch.arange(0, ROWS, 2) / 2}, [ROWS // 2]).memmap(
        path / "half"
    )
    return path


@pytest.fixture
def run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def command(line: str, code: int = 0):
        done = CliRunner().invoke(app, shlex.split(line))
        assert done.exit_code == code, (line, done.stdout, done.stderr)
        return done

    yield command
    sys.modules.pop("on_rows", None)


def test_info_shows_every_column(run):
    said = run("info cities").stdout
    assert "TensorDict [40], 40 rows" in said
    assert "city  str [40]  200 B" in said  # of UTF-8
    assert "tokens  ragged int64 [40]" in said and "x  float32 [40]" in said
    facts = json.loads(run("info cities --json").stdout)
    assert facts["type"] == "TensorDict"
    assert {tuple(key["key"]): key["dtype"] for key in facts["keys"]} == {
        ("n",): "int64", ("meta", "x"): "float32", ("city",): "str", ("tokens",): "ragged int64",
    }  # fmt: skip


def test_head_shows_rows(run):
    said = run("head cities -n 2 --start 3").stdout
    assert (
        said.splitlines()[0] == "row 3" and "city  'Genf'" in said and "tokens  [0, 1, 2]  (ragged int64 [3])" in said
    )
    rows = json.loads(run("head cities -n 2 --start=-1 --json").stdout)["rows"]
    assert rows == [{"row": 39, "n": 39, "meta/x": 9.75, "city": "Genf", "tokens": [0, 1, 2, 3]}]


def test_stats_are_of_the_columns_of_numbers(run):
    facts = json.loads(run("stats cities --json --num-workers 0").stdout)
    assert facts["rows"] == ROWS
    figures = {"/".join(one["key"]): one for one in facts["keys"]}
    assert figures["n"]["mean"] == 19.5 and figures["meta/x"]["max"] == 9.75
    assert figures["city"] == {"key": ["city"], "dtype": "str"}


def test_an_archive_is_a_dataset(run, folder, tmp_path):
    TensorDict.load_memmap(folder / "half").save(folder / "half.tdz")
    run(f"map on_rows:same half.tdz {tmp_path / 'out'} --num-workers 0")
    assert TensorDict.load_memmap(tmp_path / "out")["n"].tolist() == list(range(0, ROWS, 2))


OPTIONS = ["", "--rows-per-shard 7", "--resume", "URL", "URL --rows-per-shard 7"]


@pytest.mark.parametrize("options, source", sampled(2, OPTIONS, ["cities", "parts/0 parts/1 parts/2"]))
def test_text_and_lists_are_written_with_every_option(options, source, run, tmp_path):
    if " " in source:
        parts = tdmap.open(sorted(Path("parts").iterdir()))
        tdmap.map(parts, lambda rows: rows, out=tmp_path / "in", rows_per_shard=9, num_workers=0)
        source = str(tmp_path / "in")
    out = f"file://{tmp_path}/out" if "URL" in options else str(tmp_path / "out")
    run(f"map on_rows:same {source} {out} --num-workers 0 {options.replace('URL', '')}")
    found, wanted = tdmap.open(tmp_path / "out")[:], table()
    assert found["n"].tolist() == wanted["n"].tolist() and list(found["city"]) == list(wanted["city"])
    assert found["tokens"].tolist() == wanted["tokens"].tolist()
    assert found["meta", "x"].tolist() == wanted["meta", "x"].tolist()
    assert isinstance(found.get("city"), Ragged) and isinstance(found.get("tokens"), Ragged)


@pytest.mark.parametrize("name", ["x.arrow", "x.npz", "x.h5", "x.csv.gz", "x.jsonl.gz", "x.tar", "x.parquet"])
def test_a_file_of_another_format_is_refused(run, folder, name):
    pytest.importorskip({"x.h5": "h5py"}.get(name, "pyarrow"))
    (folder / name).write_bytes(b"no such file, I am afraid")
    said = run(f"convert {name} {name}-out", 2).stderr
    assert name in said and len(said.splitlines()) == 1 and ".pyx" not in said and ".pxi" not in said


def test_dates_stay_dates_from_file_to_file(run, folder):
    """With text beside them and without."""
    days = ["2024-01-02", "2024-03-01", "2023-12-31", "2024-01-02"]
    texts = {"plain": "n,day\n", "words": "word,n,day\n"}
    for name, text in texts.items():
        lines = [f"{'a,' * (name == 'words')}{number},{day}\n" for number, day in enumerate(days)]
        (folder / f"{name}.csv").write_text(text + "".join(lines))
        run(f"convert {name}.csv {name}-days")
        run(f"map on_rows:same {name}-days {name}-same")
        run(f"convert {name}-same {name}-out.csv --columns n,day")
        found = (folder / f"{name}-out.csv").read_text().splitlines()
        assert found[0] == '"n","day"' and found[1:] == [f"{n},{day}" for n, day in enumerate(days)], name


def test_dates_are_shown_as_dates(run, folder):
    """In datasets with text beside them and without."""
    days = ["2024-01-02", "2024-03-01", "2023-12-31", "2024-01-02"]
    for name, first in (("bare", ""), ("beside", "word,")):
        rows = [f"{'a,' * bool(first)}{number},{day},{day}T12:30:00\n" for number, day in enumerate(days)]
        (folder / f"{name}.csv").write_text(f"{first}n,day,at\n" + "".join(rows))
        run(f"convert {name}.csv {name}-dates")
        shown = run(f"head {name}-dates -n 1").stdout
        assert "day  2024-01-02  (date32[day])" in shown and "at  2024-01-02T12:30:00  (timestamp[s])" in shown
        assert "int32, date32[day] [4]" in run(f"info {name}-dates").stdout


def test_figures_of_times_are_times(run, folder):
    """An hour each, in the order of time and in none: as pandas has them, and quantiles to a hundredth of the range."""
    times = pd.Series(pd.date_range("2024-01-01", periods=1000, freq="h"))
    for name, order in (("sorted", times), ("mixed", times.sample(frac=1, random_state=0))):
        frame = pd.DataFrame({"at": order.reset_index(drop=True), "g": [n % 2 for n in range(1000)]})
        frame["took"] = pd.to_timedelta(range(1000), "min")
        frame.to_parquet(folder / f"{name}.parquet")
        run(f"convert {name}.parquet {name}-times")
        lines = {
            line.split()[0]: line.split()
            for line in run(f"stats {name}-times").stdout.splitlines()
            if line[1:2] != "\u2500" and line.strip()
        }
        assert lines["at"][1:8] == ["timestamp[us]", "1,000", "0", "2024-01-01", "2024-02-11", "2024-01-21", "12.03"]
        assert lines["took"][1] == "duration[us]" and "16.65 h" in " ".join(lines["took"])
        told = json.loads(run(f"stats {name}-times at --json").stdout)["keys"][0]
        near = times.quantile([0.05, 0.5, 0.95]).astype("datetime64[us]").astype("int64")
        error = np.abs(np.array(told["quantiles"]) - near.to_numpy()) / (told["max"] - told["min"])
        assert told["time"] == "timestamp[us]" and error.max() < 0.012, error
        assert sum(told["histogram"]) == 1000 and 50 < min(told["histogram"]) <= max(told["histogram"]) < 75
