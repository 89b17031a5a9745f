"""What a process does when it forks or ends, in the order that `tdmap.process.hooks` states."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tdmap.process import hooks

PROGRAM = """
import os, sys
{imports}
from tdmap.process import hooks

def note(what, place):
    return lambda: (sys.stdout.write(f"{{what}} {{place}}\\n"), sys.stdout.flush())

for what, places, add in (
    ("before", hooks.BEFORE, hooks.before_fork),
    ("parent", hooks.IN_PARENT, hooks.in_parent),
    ("child", hooks.IN_CHILD, hooks.in_child),
    ("exit", hooks.AT_EXIT, hooks.at_exit),
):
    for place in sorted(places):
        add(place, note(what, place))
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("imports", ["", "import tdmap", "import tdmap.diagnostics.progress, tdmap.resume.journal"])
def test_hooks_run_in_the_order_that_is_stated(imports: str) -> None:
    program = PROGRAM.format(imports=imports)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    said = [line.split() for line in done.stdout.splitlines()]
    for what, places in (
        ("before", hooks.BEFORE),
        ("parent", hooks.IN_PARENT),
        ("child", hooks.IN_CHILD),
        ("exit", hooks.AT_EXIT),
    ):
        assert [place for kind, place in said if kind == what] == list(places)


def test_a_hook_that_raises_does_not_keep_the_others_from_running() -> None:
    program = (
        "import os\nfrom tdmap.process import hooks\n"
        "hooks.in_child(hooks.FORKS, lambda: 1 / 0)\n"
        "hooks.in_child(hooks.BARS, lambda: os.write(1, b'here'))\n"
        "pid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "here" and "ZeroDivisionError" in done.stderr


def test_a_place_that_is_not_stated_is_refused() -> None:
    with pytest.raises(ValueError, match="there are streams, pools, disk"):
        hooks.at_exit(hooks.FORKS, lambda: None)
