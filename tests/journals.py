"""What tests ask of the journal or log of a run, as it lies on the disk."""

from __future__ import annotations

from pathlib import Path

from tdmap.run import journal
from tdmap.run.log import History


def chunks_done(path: Path) -> int:
    """Chunks that a run has noted as done, of all its jobs; none where there is no file."""
    contents = journal.read(path)
    if contents is None:
        return sum(job.chunks_done for job in History(path).jobs)
    return sum(stop - start for start, stop in contents.ranges())
