"""``tdmap map --resume``, ``tdmap status`` and ``tdmap resume``: real runs, in processes of their own."""

import json
import os
import pty
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import tdmap
from tdmap.cli import app
from tdmap.run import log
from tensordict_lite import TensorDict
from tests import interpreters

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


def command(folder, *arguments, **options):
    return interpreters.run(["-m", "tdmap", *map(str, arguments)], cwd=folder, **options)


def ask(folder, *arguments):
    """The same in this process: exit code, output and messages."""
    before, path, modules = Path.cwd(), list(sys.path), set(sys.modules)
    os.chdir(folder)
    sys.modules.pop("functions", None)  # of another test
    try:
        ran = CliRunner().invoke(app, [str(argument) for argument in arguments])
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
    return ran.exit_code, ran.stdout, ran.stderr


def test_an_interrupted_run_is_shown_and_gone_on_with(folder):
    options = ("--chunksize", "5", "--num-workers", "1", "--resume", "--quiet")
    failed = command(folder, "map", "functions:double", "in", "out", *options)
    assert failed.returncode == 1 and "tdmap resume" in failed.stderr
    shown = json.loads(command(folder, "status", "out", "--json").stdout)
    assert shown["state"] == "interrupted" and 0 < shown["rows_done"] <= 50 and shown["rows"] == 100
    assert [error["type"] for error in shown["errors"]] == ["ArithmeticError"]
    lines = command(folder, "status", "out").stdout.splitlines()
    assert lines[0] == "double (map): interrupted"
    assert lines[3] == f"begun from the command line: functions:double on {folder / 'in'}"
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
    assert refused.returncode == 2 and "holds no log" in refused.stderr
    for name in ("status", "resume"):
        refused = command(folder, name, "nowhere")
        assert refused.returncode == 2 and "nowhere does not exist" in refused.stderr
    data = TensorDict.load_memmap(folder / "in")
    tdmap.map(data, lambda td: TensorDict({"x": td["x"]}, td.batch_size), out=folder / "out", resume=True)
    refused = command(folder, "resume", "out")
    assert refused.returncode == 2 and "a program started the run" in refused.stderr
    refused = command(folder, "map", "functions:double", "in", "out", "--resume", "--quiet")
    assert refused.returncode == 2 and "another run" in refused.stderr


# -- a journal may come from anybody -----------------------------------------------------------------------


def interrupted(folder):
    """A run that was begun by the command line, and has not come to its end."""
    line = ("map", "functions:double", "in", "out", "--chunksize", "5", "--num-workers", "0", "--resume", "--quiet")
    assert ask(folder, *line)[0] == 1
    (folder / "mended").touch()


def test_what_would_be_run_is_shown_and_not_run_without_a_yes(folder):
    interrupted(folder)
    code, out, told = ask(folder, "resume", "out")
    assert code == 2 and out == "" and "--yes" in told
    assert told.splitlines()[:4] == [
        f"function  double of {folder / 'functions.py'}",
        f"on        {folder / 'in'}",
        "options   chunksize=5, num_workers=0",
        f"from      {folder}, where its other modules are looked for first",
    ]
    assert json.loads(ask(folder, "status", "out", "--json")[1])["state"] == "interrupted"


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_terminal_is_asked(folder, answer):
    interrupted(folder)
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    ran = command(folder, "resume", "out", "--quiet", stdin=theirs)
    os.close(ours), os.close(theirs)
    assert "Run it?" in ran.stderr and f"double of {folder / 'functions.py'}" in ran.stderr
    assert ran.returncode == (0 if answer == "y" else 2)
    assert (folder / "out" / "meta.json").exists() is (answer == "y")


EVIL = "open({mark!r}, 'w').close()\ndef f(chunk): return chunk\n"


def plant(folder, place, **changes):
    """A dataset whose journal wants a function of `place` to be run; it leaves a mark."""
    data = folder / "in"
    (data / ".tdmap").mkdir(exist_ok=True)
    place.mkdir(parents=True, exist_ok=True)
    (place / "evil.py").write_text(EVIL.format(mark=str(folder / "pwned")))
    header = {
        "identity": {
            "kind": "in place",
            "name": "f",
            "function": {},
            "source": {},
            "plan": {"rows": 100, "chunk size": 10, "dim": 0, "unbind": False},
            "seed": None,
            "python": "3.11",
        },
        "began": 0,
        "argv": ["tdmap", "map"],
        "cwd": "/",
        "command": {"cwd": str(folder), "source": str(data), "options": {}, **changes},
    }
    (data / ".tdmap" / "journal").write_bytes(log.MAGIC + log.framed(b"H" + json.dumps(header).encode()))


@pytest.mark.parametrize(
    ("place", "function", "cwd"),
    [
        ("in/.tdmap", "in/.tdmap/evil.py:f", "."),
        ("in", "in/evil.py:f", "."),
        ("in", "evil:f", "in"),
        ("in/.tdmap", "evil:f", "in/.tdmap"),
        ("in/package", "package.evil:f", "in"),
        ("in", "{folder}/in/evil.py:f", "."),
        ("in", "linked.py:f", "."),
        (".", "evil:f", "linked"),
        ("in", "innocent:f", "."),  # what it imports, and what tdmap does, could lie there too
        ("in/deep/er", "innocent:f", "."),
        ("outside", "in.harmless:f", "."),  # a link within the dataset that leads out of it
        ("outside", "in.harmless:f", "/proc/self/cwd"),
        ("outside", "in.package.evil:f", "."),
        ("outside", "through.evil:f", "."),
    ],
)
@pytest.mark.parametrize("source", ["{folder}/in", "{folder}/other,{folder}/in"])
def test_nothing_is_imported_from_inside_the_dataset(folder, place, function, cwd, source):
    evil = EVIL.format(mark=str(folder / "pwned"))
    source = source.format(folder=folder)
    plant(folder, folder / place, function=function.format(folder=folder), cwd=str(folder / cwd), source=source)
    (folder / "innocent.py").write_text("def f(chunk): return None\n")
    (folder / "linked.py").symlink_to(folder / place / "evil.py")
    (folder / "linked").symlink_to(folder / "in")
    if place == "outside":
        if "harmless" in function:
            (folder / "in" / "__init__.py").write_text(evil)
            (folder / "in" / "harmless.py").symlink_to(folder / "innocent.py")
        (folder / "in" / "package").symlink_to(folder / "outside")
        (folder / "through").symlink_to(folder / "in" / "package")
    else:
        (folder / "in" / "evil.py").write_text(evil)
    for more in ([], ["--yes"]):
        code, _, told = ask(folder, "resume", "in", *more)
        assert code == 2 and "inside the dataset, and tdmap imports nothing" in told
    code, out, _ = ask(folder, "status", "in")
    assert code == 0 and out.startswith("f (in place): interrupted")
    assert not (folder / "pwned").exists()


def test_modules_of_the_dataset_are_not_found_from_within_it(folder):
    """The function itself is elsewhere; what it imports has a file of that name in the dataset, where the user is."""
    plant(folder, folder / "in", function="innocent:f")
    (folder / "innocent.py").write_text("import evil\ndef f(chunk): return None\n")
    code, _, told = ask(folder / "in", "resume", ".", "--yes")
    assert code == 2 and "in/evil.py is inside the dataset" in told and not (folder / "pwned").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cwd": "/nowhere"}, "does not exist"),
        ({"cwd": "relative"}, "does not exist"),
        ({"cwd": "/proc/self/cwd"}, "is a link"),
        ({"source": "in"}, "relative path"),
        ({"cwd": 3}, "does not record the command of its run"),
        ({"function": "no such module:f"}, "no module 'no such module'"),
        ({"function": "evil"}, "module:function"),
        ({"function": "evil.py:f\x1b[2J"}, "does not record the command of its run"),
        ({"options": {"callbacks": []}}, "does not record the command of its run"),
        ({"options": {"num_workers": "2"}}, "does not record the command of its run"),
        ({"options": None}, "does not record the command of its run"),
        ({"source": ["in"]}, "does not record the command of its run"),
        ({"function": "json.py:f"}, "another module of that name"),
    ],
)
def test_commands_that_nobody_gave_are_refused(folder, changes, message):
    (folder / "json.py").write_text("def f(chunk): raise AssertionError\n")
    plant(folder, folder / "elsewhere", **{"function": "elsewhere/evil.py:f", **changes})
    code, _, told = ask(folder, "resume", "in", "--yes")
    assert code == 2 and message in told and "\x1b" not in told and not (folder / "pwned").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_journal_of_another_user_is_not_gone_on_with(folder):
    interrupted(folder)
    os.chown(folder / "out" / ".tdmap" / "journal", 12345, 12345)
    code, _, told = ask(folder, "resume", "out", "--yes")
    assert code == 2 and "belongs to user 12345" in told and "tdmap map --resume" in told
    assert ask(folder, "status", "out")[0] == 0


def test_rows_that_were_skipped_are_listed_again(folder):
    line = ("map", "functions:double", "in", "out", "--chunksize", "5", "--num-workers", "0", "--on-error", "skip")
    code, out, told = ask(folder, *line, "--resume", "--quiet")
    assert (code, out) == (0, "") and "row 50: ArithmeticError" in told
    code, out, told = ask(folder, "resume", "out", "--yes")
    assert code == 0 and "row 50: ArithmeticError" in told and f"99 rows done in {folder / 'out'}" in out
