"""``tdmap map --resume``, ``tdmap status`` and ``tdmap resume``: real runs, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = """
import os
from tensordict_lite import TensorDict

def double(chunk):
    if (chunk["x"] == 50).any() and not os.path.exists("mended"):
        raise ArithmeticError("row fifty is cursed")
    return TensorDict({"x": chunk["x"] * 2}, chunk.batch_size)

def negate(chunk):
    chunk["x"].neg_()
    if (chunk["x"] == -50).any() and not os.path.exists("mended"):
        raise ArithmeticError("row fifty is cursed")
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    TensorDict({"x": torch.arange(100)}, [100]).memmap(tmp_path / "in")
    return tmp_path


def command(folder, *arguments):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "tdmap", *map(str, arguments)]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, timeout=100)


def test_an_interrupted_run_is_shown_and_gone_on_with(folder):
    options = ("--chunksize", "5", "--workers", "1", "--resume", "--quiet")
    failed = command(folder, "map", "functions:double", "in", "out", *options)
    assert failed.returncode == 1 and "tdmap resume" in failed.stderr
    shown = json.loads(command(folder, "status", "out", "--json").stdout)
    assert shown["state"] == "interrupted" and 0 < shown["rows_done"] <= 50 and shown["rows"] == 100
    assert [error["type"] for error in shown["errors"]] == ["ArithmeticError"]
    lines = command(folder, "status", "out").stdout.splitlines()
    assert lines[0] == "double (map): interrupted"
    assert "of 100 rows done" in lines[1] and "row fifty is cursed" in lines[-1]
    (folder / "mended").touch()
    done = command(folder, "resume", "out", "--quiet", "--yes")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert f"double of {folder / 'functions.py'}" in done.stderr
    assert torch.equal(TensorDict.load_memmap(folder / "out")["x"], torch.arange(100) * 2)
    assert json.loads(command(folder, "status", "out", "--json").stdout)["state"] == "complete"
    again = command(folder, "resume", "out", "--yes")
    assert again.returncode == 0 and "nothing was done" in again.stderr


def test_in_place(folder):
    failed = command(folder, "map", "functions:negate", "in", "--in-place", "--chunksize", "5", "--resume", "--quiet")
    assert failed.returncode == 1
    (folder / "mended").touch()
    assert command(folder, "resume", "in", "--quiet", "-y").returncode == 0
    assert torch.equal(TensorDict.load_memmap(folder / "in")["x"], -torch.arange(100))


def test_what_cannot_be_resumed_is_explained(folder):
    refused = command(folder, "resume", "in")
    assert refused.returncode == 2 and "holds no journal" in refused.stderr
    data = TensorDict.load_memmap(folder / "in")
    tdmap.map(data, lambda td: TensorDict({"x": td["x"]}, td.batch_size), out=folder / "out", resume=True)
    refused = command(folder, "resume", "out")
    assert refused.returncode == 2 and "begun by a program" in refused.stderr
    refused = command(folder, "map", "functions:double", "in", "out", "--resume", "--quiet")
    assert refused.returncode == 2 and "another run" in refused.stderr
