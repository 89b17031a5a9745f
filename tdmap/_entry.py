"""Ctrl-C while the command `tdmap` still imports torch, which takes seconds, ends it with one line.

Imported first by the package, and does nothing unless this process is that command: what a program that imports the
package does about signals is its own affair.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def is_command() -> bool:
    """Whether this process was started as `tdmap ...` or `python -m tdmap ...`."""
    words = sys.orig_argv[1:]
    if "-m" in words:
        return words[words.index("-m") + 1 :][:1] == ["tdmap"]
    # The script that pip installs; an option of Python's own may come before it.
    scripts = [word for word in words if not word.startswith("-")]
    return bool(scripts) and os.path.basename(scripts[0]) == "tdmap" and not os.path.isdir(scripts[0])


def _leave(signal_number: int, frame: FrameType | None) -> None:
    os.write(2, b"tdmap: stopped before it began\n")
    os._exit(INTERRUPTED)


def begin() -> None:
    """Leave at once on Ctrl-C, from now on."""
    if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def ready() -> None:
    """Everything is imported: Ctrl-C is an exception again."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


begin()
