"""The command line in a real terminal: bars, Ctrl-C, a change of its size, and 20 columns."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tensordict_lite import TensorDict
from tests.terminals import Terminal

WAITING = """
import os, time

def waits(chunk):
    while not os.path.exists("go"):
        time.sleep(0.01)
    return chunk.copy()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("terminal")
    entries = {"x": torch.arange(100.0), "image": torch.zeros(100, 3, 8, 8, dtype=torch.uint8)}
    TensorDict(entries, [100]).memmap(path / "numbers")
    (path / "work.py").write_text(WAITING)
    return path


@pytest.fixture
def terminal(folder: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(columns: int, *words: str, **environment: str) -> Terminal:
        opened.append(Terminal(folder, columns, *words, **environment))
        return opened[-1]

    yield start
    for one in opened:
        one.close()
    (folder / "go").unlink(missing_ok=True)


@pytest.mark.parametrize("columns", [20, 80])
def test_a_bar_fills_in_any_terminal_and_follows_its_size(columns, terminal, folder):
    run = terminal(columns, "map", "work:waits", "numbers", f"filled{columns}", "--num-workers", "2")
    run.until("0%|")
    assert max(map(len, run.lines)) <= columns
    run.resize(40)
    (folder / "go").touch()
    run.until("100%|")
    assert run.end() == 0
    assert f"100 rows written to filled{columns}" in run.text
    assert torch.equal(TensorDict.load_memmap(folder / f"filled{columns}")["x"], torch.arange(100.0))


def test_ctrl_c_ends_a_run_with_one_line_and_no_output(terminal, folder):
    run = terminal(80, "map", "work:waits", "numbers", "stopped", "--num-workers", "2")
    run.until("0%|")
    run.type(b"\x03")
    assert run.end() == 130
    assert run.text.count("tdmap:") == 1  # behind the bar, where that was drawn a moment ago
    assert run.lines[-1].endswith("tdmap: stopped; nothing was written to stopped")
    assert "Traceback" not in run.text and not (folder / "stopped" / "meta.json").exists()


@pytest.mark.parametrize(
    "words, said",
    [
        (["info", "numbers"], ["[100, 3, 8, 8]", "float32", "total"]),
        (["stats", "numbers", "x", "--num-workers", "0"], ["mean 49.5", "100 values"]),
        (["map", "--help"], ["--on-error", "tdmap map mymodule"]),
        (["info", "nothing"], ["tdmap: nothing does not exist"]),
    ],
)
def test_nothing_is_lost_in_twenty_columns(words, said, terminal, tmp_path):
    run = terminal(20, *words, XDG_RUNTIME_DIR=str(tmp_path))
    run.end()
    flat = " ".join(run.text.split())
    assert [text for text in said if text not in flat] == []
