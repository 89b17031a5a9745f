"""What all commands have in common."""

import json
import os
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer.main
from PIL import Image
from typer.testing import CliRunner

from tdmap.cli import app
from tdmap.cli.answers import plain
from tdmap.cli.examples import EXAMPLES
from tensordict_lite import TensorDict
from tests import interpreters

ROOT = Path(__file__).parents[2]
ROWS = 60
MODULE = """
import torch

def normalise(chunk):
    chunk = chunk.copy()
    chunk["image"] = chunk["image"].float() / 255
    return chunk

def invert(chunk):
    chunk["image"].bitwise_not_()

def tiles(chunk):
    return {"tile": torch.cat([chunk["image"][..., :8], chunk["image"][..., 8:]])}

def is_bright(chunk):
    return chunk["image"].float().mean(dim=(1, 2, 3)) > 127

def fails_on_threes(chunk):
    if (chunk["label"] == 3).any():
        raise ArithmeticError("three is\\ncursed")
    return chunk["label"] > 5

def is_choosy(chunk):
    fails_on_threes(chunk)
    return chunk
"""


def make_folder(path: Path) -> Path:
    torch.manual_seed(1)
    entries = {
        "image": torch.randint(0, 256, (ROWS, 3, 16, 16), dtype=torch.uint8),
        "label": torch.arange(ROWS) % 7,
        "time": torch.rand(ROWS, dtype=torch.float64),
        "meta": {"name": [f"n{row % 3}" for row in range(ROWS)]},
    }
    TensorDict(entries, [ROWS]).memmap(path / "photos")
    (path / "mymodule.py").write_text(MODULE)
    (path / "labels.csv").write_text("label,time\n1,0.5\n2,1.5\n")
    for name, colour in (("a", "red"), ("b", "blue")):
        (path / "folder" / name).mkdir(parents=True)
        Image.new("RGB", (40, 40), colour).save(path / "folder" / name / "one.png")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("commands"))


@pytest.fixture
def run(folder, monkeypatch):
    """Run a command line in the folder, in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))

    def command(line: str, stdin: str | None = None):
        return CliRunner().invoke(app, shlex.split(line), input=stdin)

    yield command
    sys.modules.pop("mymodule", None)


def rows_of(path: Path) -> TensorDict:
    return TensorDict.load_memmap(path)


# -------- requests


REFUSED = {
    "map mymodule:normalise photos never --shard 2": "give RANK/RANKS",
    "map mymodule:normalise photos never --shard 2/2": "0 <= rank < world_size",
    "map mymodule:normalise photos never --shard 0/2 --overwrite": "no --in-place, --overwrite",
    "map mymodule:normalise photos --in-place --shard 0/2": "no --in-place",
    "map mymodule:normalise photos never --on-error mark": "choose one of raise, skip, drop",
    "map mymodule:normalise photos never --executor cluster": "choose one of process",
    "map mymodule:normalise photos never --address auto": "use --executor ray",
    "map mymodule:normalise photos never --trust": "--in-place --resume",
    "map mymodule photos never": "not of the form module:function",
    "info": "--help)",
    "info a b": "--help)",
    "info --frobnicate": "--help)",
    "frobnicate": "--help)",
    "stats photos --num-workers x": "--help)",
}


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: line[:60].strip())
def test_what_cannot_be_done_is_refused_in_one_line(line, run, folder):
    done = run(line)
    assert done.exit_code == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1, done.stderr
    assert REFUSED[line] in done.stderr and not (folder / "never").exists()


def test_a_resumed_command_that_was_complete_says_so_in_words(run, folder):
    place = "complete"
    command = f"map mymodule:normalise photos {place} --num-workers 0 --resume"
    assert run(command).exit_code == 0
    files = {path: path.read_bytes() for path in (folder / place).rglob("*.memmap")}
    done = run(command)
    assert done.exit_code == 0, done.stderr
    for said in done.stderr.splitlines():
        assert said.startswith("tdmap: /") and "was complete before" in said and "(pass --overwrite instead" in said
    assert ".py" not in done.stderr and "warning" not in done.stderr.lower() and done.stderr
    assert {path: path.read_bytes() for path in files} == files
    told = json.loads(run(f"{command} --json").stdout)
    assert told["ok"] and all("was complete before" in said for said in told["warnings"]) and told["warnings"]
    assert run(f"{command} --overwrite").exit_code == 2


def test_a_folder_of_another_run_is_told_in_lines_of_what_differs(run):
    assert run("map mymodule:normalise photos one_run --chunksize 7 --num-workers 0 --resume").exit_code == 0
    other = "map mymodule:normalise photos one_run --chunksize 8 --num-workers 0 --resume"
    done = run(other)
    assert done.exit_code == 2
    head, differs, advice = done.stderr.splitlines()
    assert head.startswith("tdmap: /") and head.endswith("holds the result of another run:")
    assert "chunk" in differs and "7" in differs and "8" in differs
    assert advice == "Choose another folder, or pass --overwrite instead of --resume to run it again."
    told = json.loads(run(f"{other} --json").stdout)
    assert told["error"] == done.stderr.removeprefix("tdmap: ").strip() and told["exit_code"] == 2


def test_what_is_in_the_way_is_left_alone(run, folder):
    command = "map mymodule:normalise photos {}"
    for place, said in (("photos", "OUT is IN"), ("photos/inner", "is inside IN"), ("mymodule.py", "is a file")):
        done = run(command.format(place))
        assert done.exit_code == 2 and said in done.stderr
    (folder / "taken").mkdir(exist_ok=True)
    (folder / "taken" / "notes").write_text("mine")
    assert run(command.format("taken") + " --overwrite").exit_code == 2
    assert (folder / "taken" / "notes").read_text() == "mine"


def test_a_file_of_text_is_converted_and_what_is_not_is_refused(run, folder):
    (folder / "cities.csv").write_text("city,n\nZ,1\nY,2\n")
    done = run("convert cities.csv cities")
    assert done.exit_code == 0 and "2 rows of cities.csv written to cities" in done.stdout
    (folder / "torn.csv").write_text("city,n\nBern,1\nBasel\n")
    for target in ("torn", "torn.jsonl"):
        skipped = run(f"convert torn.csv {target} --on-error skip --json")
        assert json.loads(skipped.stdout)["skipped"] == [{"file": "torn.csv", "line": 3, "text": "Basel"}]
        assert json.loads(skipped.stdout)["rows"] == 1 and "1 lines cannot be parsed" in skipped.stderr
    told = run("convert cities more.csv --json")
    assert json.loads(told.stdout)["rows"] == 2
    for line, said in (
        ("convert cities out.parqet", "did you mean '.parquet'"),
        ("convert cities.csv cities", "pass --overwrite"),
        ("convert torn.csv other", "--on-error skip leaves out"),
        ("convert cities.csv other --on-error keep", "--on-error keep"),
        ("convert cities missing/out.csv", "the folder .*missing does not exist"),
    ):
        refused = run(line)
        assert refused.exit_code == 2 and re.search(said, refused.stderr.replace("\n", " ")), line
    assert not (folder / "out.parqet").exists()


def test_convert_reads_and_writes_pipes(run, folder):
    done = run("convert photos - --to csv --columns label,time")
    lines = done.stdout.splitlines()
    assert done.exit_code == 0 and len(lines) == ROWS + 1 and "label" in lines[0]
    again = run("convert - piped --from csv", stdin=done.stdout)
    assert again.exit_code == 0, again.stderr
    assert torch.equal(rows_of(folder / "piped")["label"], rows_of(folder / "photos")["label"])
    for line, said in (
        ("convert photos -", "give --to"),
        ("convert photos - --to xml", "'xml' is none"),
        ("convert photos x.csv --to csv", "has an ending"),
        ("convert photos - --to csv --json", "both be on standard output"),
    ):
        refused = run(line)
        assert refused.exit_code == 2 and said in refused.stderr


# -------- all commands


def commands(group: Any = None, path: str = "") -> dict[str, Any]:
    """All commands, by their words."""
    group = typer.main.get_command(app) if group is None else group
    context = SimpleNamespace(parent=SimpleNamespace(parent=None, info_name="tdmap") if path else None, info_name=path)
    found: dict[str, Any] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        found |= commands(command, name) if hasattr(command, "commands") else {f"{path} {name}".strip(): command}
    return found


def test_every_command_has_help_with_an_example():
    assert sorted(commands()) == sorted(EXAMPLES)
    for path in commands():
        text = CliRunner().invoke(app, [*path.split(), "--help"]).stdout
        assert f"Examples:\n    {EXAMPLES[path][0]}" in text
        assert "--json" in text and "--traceback" in text


def test_the_examples_of_the_help_run(tmp_path, monkeypatch):
    make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    lines = [line for name, example in EXAMPLES.items() if name not in ("bench", "verify") for line in example]
    for line in [*lines, *EXAMPLES["verify"]]:
        before, _, behind = line.rpartition(" | ") if " | tdmap" in line else ("", "", line)
        typed = shlex.split(behind.split(" | ")[0].split(" > ")[0])
        stdin = (tmp_path / before.removeprefix("cat ")).read_text() if before else None
        done = CliRunner().invoke(app, typed[1:], input=stdin)
        assert typed[0] == "tdmap" and done.exit_code == 0, (line, done.stderr)
    sys.modules.pop("mymodule", None)


def test_answers_are_one_object_with_the_same_head(run):
    lines = [
        "info photos", "head photos", "stats photos label --num-workers 0", "status photos", "verify photos",
        "verify --store photos", "map mymodule:normalise photos mapped --num-workers 0",
        "convert photos out.csv --columns label", "ingest images folder pictures --size 8 --num-workers 0",
        "profile mymodule:normalise photos --num-workers 0", "info nothing", "map mymodule:nothing photos x",
        "frobnicate", "info --frobnicate", "map mymodule:is_choosy photos x --num-workers 0",
        "map mymodule:normalise photos x --timeout 0", "map mymodule:normalise photos x --retries 1.5",
    ]  # fmt: skip
    for line in lines:
        done = run(line + " --json")
        told = json.loads(done.stdout)
        assert list(told)[:4] == ["schema", "command", "ok", "exit_code"], line
        assert (told["schema"], told["exit_code"], told["ok"]) == (1, done.exit_code, done.exit_code == 0), line
        assert told["command"] == line.split()[0]
        assert ("error" in told and told["error"] in done.stderr.replace("tdmap: ", "")) or told["ok"], line


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_function_prints_is_no_part_of_the_answer(workers, folder):
    body = "    print('hear')\n    os.system('echo me')\n    return chunk\n"
    (folder / "loud.py").write_text(f"import os\ndef loud(chunk):\n{body}")
    line = ["-m", "tdmap", "map", "loud:loud", "photos", f"loud{workers}", "--num-workers", str(workers), "--json"]
    done = interpreters.run(line, cwd=folder)
    assert json.loads(done.stdout)["rows"] == ROWS and "hear" in done.stderr and "me" in done.stderr


def test_numbers_that_json_does_not_know_are_texts():
    value = {"a": torch.tensor([1.0, float("nan"), -float("inf")]), ("b", "c"): {2, 1}, "d": Path("x"), "e": [None, 1]}
    assert plain(value) == {"a": [1.0, "nan", "-inf"], "b/c": [1, 2], "d": "x", "e": [None, 1]}
    assert plain(torch.tensor([1 + 2j])) == [[1.0, 2.0]]


def test_an_error_is_one_line_and_its_traceback_on_demand(run):
    line = "map mymodule:is_choosy photos x --num-workers 2"
    done = run(line)
    assert done.exit_code == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    for said in ("ArithmeticError: three is cursed", "is_choosy", "mymodule.py:20", "nothing was written to x"):
        assert said in done.stderr
    told = run("--traceback " + line)
    assert "Traceback (most recent call last)" in told.stderr and told.stderr.splitlines()[-1].startswith("tdmap: ")
    assert "in fails_on_threes" in run(line + " --traceback").stderr


def test_no_colour_where_nobody_looks(folder):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    env.pop("NO_COLOR", None)
    for arguments in (["info", "photos"], ["info", "nothing"], ["--help"]):
        done = interpreters.run(["-m", "tdmap", *arguments], cwd=folder, env=env)
        assert "\x1b" not in done.stdout + done.stderr


def test_the_shell_completes_commands_and_options(folder):
    def complete(typed: str, count: int) -> list[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "COMP_WORDS": typed, "COMP_CWORD": str(count)}
        line = ["-c", "import sys; sys.argv[0] = 'tdmap'; from tdmap.cli import main; main()"]
        env["_TDMAP_COMPLETE"] = "complete_bash"
        done = interpreters.run(line, cwd=folder, env=env)
        assert done.stderr == ""
        return done.stdout.split()

    assert complete("tdmap he", 1) == ["head"]
    assert complete("tdmap map --over", 2) == ["--overwrite"]
    assert complete("tdmap ingest im", 2) == ["images"]
    assert complete("tdmap ingest images --max", 3) == ["--max-pixels"]


def test_ranks_fill_one_folder_from_the_command_line(run, folder):
    one = run("map mymodule:normalise photos by_ranks --shard 0/2 --num-workers 0 --json")
    assert one.exit_code == 0, one.stderr
    told = json.loads(one.stdout)
    assert told["shard"] == [0, 2] and 0 < told["rows"] < ROWS and told["whole"] is False
    other = run("map mymodule:normalise photos by_ranks --shard 1/2 --num-workers 0")
    assert other.exit_code == 0 and "the dataset is complete" in other.stdout
    assert torch.equal(rows_of(folder / "by_ranks")["image"], rows_of(folder / "photos")["image"].float() / 255)


def test_each_rank_lists_the_rows_that_it_skips(run, folder, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        line = "map mymodule:is_choosy photos choosy --shard auto --on-error skip --chunksize 10 --num-workers 0"
        done = run(line)
        assert done.exit_code == 0 and f"by rank {rank} of 2" in done.stdout, done.stderr
    lists = [(folder / f"choosy.skipped.{rank}.jsonl").read_text().splitlines() for rank in (0, 1)]
    assert sorted(json.loads(line)["row"] for lines in lists for line in lines) == list(range(3, ROWS, 7))
