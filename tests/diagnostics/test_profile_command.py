"""`tdmap profile module:function DATA`."""

import json
import sys

import pytest
import torch
from typer.testing import CliRunner

from tdmap.cli import app
from tensordict_lite import TensorDict

FUNCTIONS = """
from tensordict_lite import TensorDict

def double(chunk):
    return TensorDict({"x": chunk["x"] * 2}, chunk.batch_size)

def negate(chunk):
    chunk["x"].neg_()

def fails(chunk):
    raise ArithmeticError("no luck")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    TensorDict({"x": torch.arange(500.0)}, [500]).memmap_(tmp_path / "data")
    TensorDict({"x": torch.zeros(0)}, [0]).memmap_(tmp_path / "empty")
    yield tmp_path
    sys.modules.pop("functions", None)


def profile(*arguments: object):
    return CliRunner().invoke(app, ["profile", *map(str, arguments)])


def test_it_prints_a_verdict_and_writes_what_is_asked_for(folder):
    answer = profile("functions.py:double", "data", "--num-workers", 2, "--trace", "t.json", "--plot", "p.png")
    assert answer.exit_code == 0, answer.output
    assert "500 rows in" in answer.stdout and "bound by" in answer.stdout
    assert json.loads((folder / "t.json").read_text())["traceEvents"] and (folder / "p.png").stat().st_size > 1000


def test_a_sample_is_as_large_as_asked_for_and_told_as_json(folder):
    answer = profile("functions.py:double", "data", "--num-workers", 2, "--rows", 100, "--json")
    (job,) = json.loads(answer.stdout)["jobs"]
    assert (job["rows"], job["rows_done"], job["name"]) == (100, 100, "double")


@pytest.mark.parametrize("options", [[], ["--chunksize", "0"], ["--num-workers", "0"]])
def test_a_function_that_changes_its_chunk_leaves_the_dataset_alone(options, folder):
    answer = profile("functions.py:negate", "data", *(options or ["--num-workers", 2]))
    assert answer.exit_code == 0, answer.output
    assert (TensorDict.load_memmap(folder / "data")["x"] == torch.arange(500.0)).all()


@pytest.mark.parametrize(
    "arguments, code, why",
    [
        (["functions.py:double", "nowhere"], 2, "does not exist"),
        (["functions.py:double", "empty"], 2, "and no rows"),
        (["functions.py:nothing", "data"], 2, "has no 'nothing'"),
        (["functions.py:double", "data", "--mp-start-method", "magic"], 2, "choose fork"),
        (["functions.py:fails", "data"], 1, "no luck"),
        (["functions.py:double", "data", "--num-workers", "2", "--trace", "no/where/t.json"], 2, "was not written"),
    ],
)
def test_what_cannot_be_done_says_why(arguments, code, why, folder):
    answer = profile(*arguments)
    assert answer.exit_code == code and why in answer.output, answer.output
