"""Commands in a pseudo-terminal, which is theirs: its size, its colours, and the keys that are signals."""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from pathlib import Path

from tests import interpreters

COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TAKES_THE_TERMINAL = """
import fcntl, runpy, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module("tdmap", run_name="__main__", alter_sys=True)
"""


class Terminal:
    """A `tdmap` command in a terminal of so many columns.

    Args:
        folder: the working folder.
        columns: of the terminal.
        words: what stands behind `tdmap`.
        environment: variables that take the place of the caller's.
    """

    def __init__(self, folder: Path, columns: int, *words: str, **environment: str) -> None:
        env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.seen = b""
        self.file, theirs = pty.openpty()
        self.resize(columns)
        self.program = interpreters.Program(
            ["-c", TAKES_THE_TERMINAL, *words], cwd=folder, env={**env, "TERM": "xterm", **environment},
            stdin=theirs, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)

    def resize(self, columns: int) -> None:
        """Change the number of columns, of which the command is told by a signal."""
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self.file, keys)

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
        """Read until the command has written a word."""
        deadline = time.monotonic() + 300
        while word not in self.text and time.monotonic() < deadline:
            if not self.read():
                break
        assert word in self.text, self.text[-2000:]

    def end(self) -> int:
        """Read to the end of the command; its exit code."""
        while self.read():
            pass
        return self.program.wait()

    def close(self) -> None:
        """End the command, if it runs, and the terminal."""
        self.program.kill()
        os.close(self.file)

    @property
    def text(self) -> str:
        """All that was written, without colours."""
        return COLOURS.sub("", self.seen.decode(errors="replace"))

    @property
    def lines(self) -> list[str]:
        """What was written between returns."""
        return [line for line in re.split(r"[\r\n]+", self.text) if line.strip()]
