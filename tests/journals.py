"""What tests ask of the log of a call, as it lies on the disk, and what they do to it."""

from __future__ import annotations

from pathlib import Path

from tdmap.run import disk, log
from tdmap.run.log import History


def chunks_done(path: Path) -> int:
    """Chunks that a call has noted as done, of all its jobs; none where there is no file."""
    return sum(job.chunks_done for job in History(path).jobs)


def kinds(path: Path) -> list[bytes]:
    """The letters of its frames."""
    return [frame.kind for frame in log._frames(path)[0]]


def say_durable(path: Path, upto: int | None = None, last: bool = False) -> None:
    """Append what the process that waits for the disk does: all frames before a position are on the disk."""
    with open(path, "ab") as file:
        file.write(log.framed(log._DURABLE.pack(b"D", file.tell() if upto is None else upto, last)))


def keep(path: Path, wanted: bytes, boots: int = 0) -> None:
    """Keep the frames of these letters alone; sessions as of so many boots of the machine later."""
    frames, _ = log._frames(path)
    text = log.MAGIC
    for _, kind, body in frames:
        if kind == b"S":
            letter, began, boot = log._SESSION.unpack(body)
            body = log._SESSION.pack(letter, began, boot + boots)
        text += log.framed(bytes(body)) if kind in wanted else b""
    path.write_bytes(text)


def next_boot(monkeypatch) -> None:
    """Have the machine been started anew, as far as logs know."""
    boot = disk.boot_number()
    monkeypatch.setattr(disk, "boot_number", lambda: boot + 1)
