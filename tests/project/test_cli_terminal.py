"""The command line in a real terminal: bars, Ctrl-C, a change of its size, and 20 columns."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

import pytest
import torch

from tensordict_lite import TensorDict
from tests import interpreters

ROOT = Path(__file__).parents[2]
WAITING = """
import os, time

def waits(chunk):
    while not os.path.exists("go"):
        time.sleep(0.01)
    return chunk.copy()
"""
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command in a pseudo-terminal."""

    def __init__(self, folder: Path, columns: int, *words: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "OMP_NUM_THREADS": "1"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self.seen = b""
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever started the tests may ignore it
            os.read(0, 1)  # until the terminal has its size
            os.execve(sys.executable, [sys.executable, "-m", "tdmap", *words], environment)
        self.resize(columns)
        os.write(self.file, b"\n")

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def read(self) -> bool:
        """Some more; False when the command has ended."""
        if select.select([self.file], [], [], 1)[0]:
            try:
                more = os.read(self.file, 65536)
            except OSError:
                more = b""
            self.seen += more
            return bool(more)
        return True

    def until(self, word: str) -> None:
        deadline = time.monotonic() + 300
        while word not in self.text and time.monotonic() < deadline:
            if not self.read():
                break
        assert word in self.text, self.text[-2000:]

    def end(self) -> int:
        """Its exit code."""
        while self.read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def text(self) -> str:
        return COLOURS.sub("", self.seen.decode(errors="replace"))

    @property
    def lines(self) -> list[str]:
        """What was written between returns."""
        return [line for line in re.split(r"[\r\n]+", self.text) if line.strip()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("terminal")
    entries = {"x": torch.arange(100.0), "image": torch.zeros(100, 3, 8, 8, dtype=torch.uint8)}
    TensorDict(entries, [100]).memmap(path / "numbers")
    (path / "work.py").write_text(WAITING)
    return path


@pytest.fixture
def terminal(folder):
    opened: list[Terminal] = []

    def start(columns: int, *words: str) -> Terminal:
        opened.append(Terminal(folder, columns, *words))
        return opened[-1]

    yield start
    for one in opened:
        try:
            os.kill(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(one.file)
    (folder / "go").unlink(missing_ok=True)


@pytest.mark.parametrize("columns", [20, 80])
def test_a_bar_fills_in_any_terminal_and_follows_its_size(columns, terminal, folder):
    run = terminal(columns, "map", "work:waits", "numbers", f"filled{columns}", "--num-workers", "2")
    run.until("0%|")
    assert max(map(len, run.lines)) <= columns
    run.resize(40)
    os.kill(run.pid, signal.SIGWINCH)
    (folder / "go").touch()
    run.until("100%|")
    assert run.end() == 0
    assert f"100 rows written to filled{columns}" in run.text
    assert torch.equal(TensorDict.load_memmap(folder / f"filled{columns}")["x"], torch.arange(100.0))


def test_ctrl_c_ends_a_run_with_one_line_and_no_output(terminal, folder):
    run = terminal(80, "map", "work:waits", "numbers", "stopped", "--num-workers", "2")
    run.until("0%|")
    os.write(run.file, b"\x03")
    assert run.end() == 130
    assert run.text.count("tdmap:") == 1  # behind the bar, where that was drawn a moment ago
    assert run.lines[-1].endswith("tdmap: stopped; nothing was written to stopped")
    assert "Traceback" not in run.text and not (folder / "stopped" / "meta.json").exists()


@pytest.mark.parametrize(
    "words, said",
    [
        (["info", "numbers"], ["[100, 3, 8, 8]", "float32", "total"]),
        (["stats", "numbers", "x", "--num-workers", "0"], ["mean 49.5", "100 values"]),
        (["reduce", "numbers", "mean:x", "--num-workers", "0"], ["mean:x 49.5"]),
        (["top", "--once"], ["no job is shown here"]),
        (["sort", "--help"], ["--descending", "tdmap sort photos"]),
        (["info", "nothing"], ["tdmap: nothing does not exist"]),
    ],
)
def test_nothing_is_lost_in_twenty_columns(words, said, folder, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment.update(XDG_RUNTIME_DIR=str(tmp_path), TERM="xterm")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 20, 0, 0))
    run = interpreters.Program(
        ["-m", "tdmap", *words], cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError):  # the terminal is closed
        while more := os.read(ours, 65536):
            written += more
    os.close(ours)
    run.wait()
    flat = " ".join(COLOURS.sub("", written.decode(errors="replace")).split())
    assert [text for text in said if text not in flat] == []
