"""What tests ask of the log of a call, as it lies on the disk, and what they do to it."""

from pathlib import Path
from typing import NamedTuple

from tdmap.run import disk, history, log
from tdmap.run.history import History


def chunks_done(path: Path) -> int:
    """Chunks that a call has noted as done, of all its jobs; none where there is no file."""
    return sum(job.chunks_done for job in History(path).jobs)


class Frame(NamedTuple):
    """A frame of a log."""

    position: int
    kind: bytes
    """Its letter."""
    body: bytes
    """The letter, and what follows it."""


def frames(path: Path) -> list[Frame]:
    """The whole frames of a log."""
    data, found = history.frames_of(path)
    return [Frame(start, kind, bytes(data[start + log.FRAME.size : stop])) for start, kind, stop in found]


def kinds(path: Path) -> list[bytes]:
    """The letters of its frames."""
    return [frame.kind for frame in frames(path)]


def say_durable(path: Path, upto: int | None = None, last: bool = False) -> None:
    """Append what the process that waits for the disk does: all frames before a position are on the disk."""
    with open(path, "ab") as file:
        file.write(log.framed(history.DURABLE.pack(b"D", file.tell() if upto is None else upto, last)))


def keep(path: Path, wanted: bytes, boots: int = 0) -> None:
    """Keep the frames of these letters alone; sessions as of so many boots of the machine later."""
    text = log.MAGIC
    for _, kind, body in frames(path):
        if kind == b"S":
            letter, began, boot = history.SESSION.unpack(body)
            body = history.SESSION.pack(letter, began, boot + boots)
        text += log.framed(body) if kind in wanted else b""
    path.write_bytes(text)


def next_boot(monkeypatch) -> None:
    """Have the machine been started anew, as far as logs know."""
    boot = disk.boot_number()
    monkeypatch.setattr(disk, "boot_number", lambda: boot + 1)
