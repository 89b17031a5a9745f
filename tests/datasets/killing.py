"""Runs a program that kills itself with all of its workers as soon as it has got on, until it is done."""

import signal
from pathlib import Path

from tests import interpreters

DEADLY = """
import os, random, signal, sys, threading, time
from tdmap.run.log import Log

def be_deadly():
    chance, dies = random.Random(int(sys.argv[1])), threading.Event()

    def die():
        time.sleep(chance.uniform(0, 0.01))
        os.killpg(0, signal.SIGKILL)

    def noted(has_chunks):
        if has_chunks and not dies.is_set():
            dies.set()
            threading.Thread(target=die).start()

    def write(self, *bodies, write=Log.write):
        write(self, *bodies)
        noted(any(body[:1] == b"C" for body in bodies))

    def end(complete):
        def ended(self, *arguments):
            if dies.is_set():
                threading.Event().wait()
            complete(self, *arguments)
        return ended

    Log.write, Log.finish = write, end(Log.finish)

be_deadly()
"""
"""A program that begins so dies with its workers a moment after it has noted chunks, and never comes to its end before.

Who watched its journal from outside would have to be faster than it is.
"""


def kill_until_done(script: str, most: int = 2) -> int:
    """How often it was killed: `most` times, or fewer where a run had noted all of its chunks when it died.

    Args:
        script: Python code; resumes a run.
    """
    for kills in range(most + 1):
        done = interpreters.run(["-c", DEADLY * (kills < most) + script, str(kills)])
        if done.returncode == 0:
            return kills
        assert done.returncode == -signal.SIGKILL, done.stderr
    raise AssertionError("it did not come to its end")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a dataset but those of its run."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".tdmap" not in path.parts
    }
