"""Stacks of the workers' functions, sampled by py-spy from outside; drawn as a flame graph.

py-spy watches this process and all under it. Of each stack only what lies below the loop of a worker is kept: the
user's function. (Gregg, "The Flame Graph", Communications of the ACM 59(6), 2016.)
"""

from __future__ import annotations

import contextlib
import ctypes
import html
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HOW_TO_INSTALL = "prof.flame needs py-spy, which samples processes from outside: pip install py-spy"
NOT_ALLOWED = (
    "py-spy may not read other processes here. Run as root, or allow it: `echo 0 | sudo tee "
    "/proc/sys/kernel/yama/ptrace_scope`; in a container, `docker run --cap-add SYS_PTRACE`."
)
ENDINGS = (".svg", ".json", ".txt")
WAIT_SECONDS = 20.0
_SET_PTRACER, _ANY = 0x59616D61, -1


class Sampler:
    """A running py-spy.

    Args:
        path: where the stacks go.
        rate: samples a second.

    Raises:
        ModuleNotFoundError: py-spy is not installed.
        PermissionError: it may not look into this process.
        ValueError: the path ends in something else.
    """

    def __init__(self, path: Path, rate: int) -> None:
        if path.suffix not in ENDINGS:
            raise ValueError(f"flame writes {', '.join(ENDINGS)} files: got {str(path)!r}.")
        program = find_py_spy()
        if program is None:
            raise ModuleNotFoundError(HOW_TO_INSTALL, name="py_spy")
        self.path = path
        self._folder = tempfile.TemporaryDirectory(prefix="tdmap-flame-")
        self._raw = Path(self._folder.name) / "stacks"
        with contextlib.suppress(OSError, AttributeError):  # where only parents may look into processes
            ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(_ANY), 0, 0, 0)
        command = [program, "record", "--pid", str(os.getpid()), "--subprocesses", "--nonblocking", "--full-filenames"]
        command += ["--rate", str(rate), "--duration", "unlimited", "--format", "raw", "--output", str(self._raw)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._wait_for_first_look()

    def _wait_for_first_look(self) -> None:
        """py-spy says that it samples, or ends."""
        text, out = b"", self._process.stdout
        assert out is not None
        while b"Sampling process" not in text:
            line = out.readline()
            if not line:
                self._process.wait()
                self._folder.cleanup()
                told = text.decode(errors="replace").strip()
                if "ermission" in told or "EPERM" in told:
                    raise PermissionError(NOT_ALLOWED)
                raise RuntimeError(f"py-spy ended with code {self._process.returncode}: {told}")
            text += line

    def stop(self) -> None:
        """End sampling, and write the stacks."""
        self._process.send_signal(signal.SIGINT)
        try:
            told, _ = self._process.communicate(timeout=WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            told, _ = self._process.communicate()
        try:
            raw = self._raw.read_text() if self._raw.exists() else ""
        finally:
            self._folder.cleanup()
        stacks = stacks_of_functions(raw)
        if not stacks:
            sys.stderr.write(
                f"tdmap: {self.path} was not written: py-spy saw no function at work "
                f"({told.decode(errors='replace').strip().splitlines()[-1:] or 'no word from it'})\n"
            )
            return
        write_stacks(stacks, self.path)


def find_py_spy() -> str | None:
    """The program: beside this Python, or on the path."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


def stacks_of_functions(raw: str) -> dict[tuple[str, ...], int]:
    """Stacks and how often they were seen, from lines `frame;frame;frame count`: those of functions, without what
    called them."""
    stacks: dict[tuple[str, ...], int] = {}
    for line in raw.splitlines():
        text, _, number = line.rpartition(" ")
        frames = text.split(";")
        at = max((place for place, frame in enumerate(frames) if _calls_function(frame)), default=-1)
        own = tuple(_short(frame) for frame in frames[at + 1 :])
        if at >= 0 and own and number.isdigit():
            stacks[own] = stacks.get(own, 0) + int(number)
    return stacks


def _calls_function(frame: str) -> bool:
    name, _, place = frame.partition(" (")
    name = name.rpartition(".")[2]
    if "tdmap/diagnostics/meter.py" in place:
        return name in ("__call__", "sample", "call")
    return "tdmap/runtime/" in place and name in ("_results", "_invoke")


def _short(frame: str) -> str:
    """`name (file.py:12)`, the file without its folder."""
    name, _, place = frame.partition(" (")
    return f"{name} ({os.path.basename(place)}" if place else name


def write_stacks(stacks: dict[tuple[str, ...], int], path: Path) -> None:
    """Write stacks in the format that the ending of the path says."""
    if path.suffix == ".txt":
        path.write_text("".join(f"{';'.join(frames)} {count}\n" for frames, count in stacks.items()))
    elif path.suffix == ".json":
        path.write_text(json.dumps(_speedscope(stacks)))
    else:
        path.write_text(flame_svg(stacks))


def _speedscope(stacks: dict[tuple[str, ...], int]) -> dict[str, Any]:
    frames = list(dict.fromkeys(frame for stack in stacks for frame in stack))
    number = {frame: place for place, frame in enumerate(frames)}
    profile = {
        "type": "sampled",
        "name": "functions of workers",
        "unit": "none",
        "startValue": 0,
        "endValue": sum(stacks.values()),
        "samples": [[number[frame] for frame in stack] for stack in stacks],
        "weights": list(stacks.values()),
    }
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": [profile],
    }


WIDTH, ROW = 1200, 17


def flame_svg(stacks: dict[tuple[str, ...], int]) -> str:
    """A picture: a box a function, as wide as it was seen often, on top of the one that called it."""
    total = sum(stacks.values())
    boxes: dict[tuple[str, ...], int] = {}
    for stack, count in stacks.items():
        for depth in range(1, len(stack) + 1):
            boxes[stack[:depth]] = boxes.get(stack[:depth], 0) + count
    left: dict[tuple[str, ...], float] = {(): 0.0}
    used: dict[tuple[str, ...], float] = {}
    depth = max(map(len, boxes))
    height = (depth + 2) * ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace" '
        'font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="4" y="{height - 5}">{total} samples of the functions of workers</text>',
    ]
    for stack in sorted(boxes, key=lambda one: (len(one), one)):
        above = stack[:-1]
        x = left[stack] = left[above] + used.get(above, 0.0)
        wide = boxes[stack] / total * WIDTH
        used[above] = used.get(above, 0.0) + wide
        if wide < 0.5:
            continue
        y = height - (len(stack) + 1) * ROW
        name = html.escape(stack[-1])
        shown = html.escape(stack[-1][: int(wide / 6.7)]) if wide > 30 else ""
        colour = f"hsl({sum(map(ord, stack[-1].partition(' ')[0])) * 7 % 50}, 80%, 68%)"
        lines.append(
            f"<g><title>{name}: {boxes[stack]} samples, {boxes[stack] / total:.1%}</title>"
            f'<rect x="{x:.1f}" y="{y}" width="{max(wide - 0.5, 0.5):.1f}" height="{ROW - 1}" fill="{colour}"/>'
            f'<text x="{x + 3:.1f}" y="{y + 12}">{shown}</text></g>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"
