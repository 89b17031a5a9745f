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
    words = iter(sys.orig_argv[1:])
    for word in words:
        if not word.startswith("-"):  # the script that pip installs
            return os.path.basename(word) == "tdmap" and not os.path.isdir(word)
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            next(words, "")
        elif not word.startswith("--"):  # options of Python's own, of which -m and -c are the last
            if word.endswith("m"):
                return next(words, "") == "tdmap"
            if word.endswith("c"):
                return False
    return False


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
