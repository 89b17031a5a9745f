"""What a user has from before: `python -m tests.house.old.make FOLDER`, run with the version that it is to be of.

The folders beside this file are of version 0.1.0 as it was before its modules moved into rooms. `test_old_files.py`
opens them. Make new ones, in a folder of another name, before a change of what is stored.
"""

from __future__ import annotations

import contextlib
import operator
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tdmap
from tensordict_lite import TensorDict, lazy_stack, tensorclass

ROWS, CHUNK = 60, 10

FLIP, KEEP = operator.invert, operator.itemgetter("keep")
"""Functions of the standard library: a digest of bytecode would be that of one Python."""


@tensorclass
class Point:
    """A class with fields, of which some are stored."""

    x: torch.Tensor
    y: torch.Tensor


def data() -> TensorDict:
    """What the runs are over."""
    x, y = torch.arange(ROWS), torch.arange(ROWS * 2).view(ROWS, 2)
    return TensorDict({"x": x, "keep": x % 3 == 0, "n": {"y": y}}, [ROWS])


class Interrupt(tdmap.Callback):
    """Ends a run after its third lease."""

    def __init__(self) -> None:
        self.left = 3

    def on_lease_done(self, event: tdmap.LeaseDone) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def runs(**options: Any) -> dict[str, Callable[[Path], Any]]:
    """Resumable runs of every kind, by the name of their folder."""
    rows = data()
    options = {"chunksize": CHUNK, "num_workers": 0, **options}
    here = {"resume": True, **options}
    folding = {"n": tdmap.reducers.Count(), "mean": tdmap.reducers.Mean("x")}
    return {
        "map": lambda out: tdmap.map(rows, FLIP, out=out, **here),
        "filter": lambda out: tdmap.filter(rows, KEEP, out=out, **here),
        "flat_map": lambda out: tdmap.flat_map(rows, FLIP, out=out, **here),
        "map_reduce": lambda out: tdmap.map_reduce(rows, FLIP, folding, resume=out, **options),
        "write": lambda out: tdmap.Pipeline(rows).map(FLIP).write(out, **here),
        "write_any": lambda out: tdmap.Pipeline(rows).filter(KEEP).write(out, **here),
    }


def main(folder: Path) -> None:
    """Make them."""
    folder.mkdir(parents=True)
    values = {"dense": data(), "class": Point(x=torch.ones(3), y=torch.zeros(3), batch_size=[3])}
    values |= {"lazy": lazy_stack([data()[0], data()[1]]), "strings": TensorDict({"s": ["a", "b"]}, [2])}
    torch.save(values, folder / "values.pt")
    data().memmap(str(folder / "dataset"))
    for name in runs():
        with contextlib.suppress(KeyboardInterrupt):
            runs(callbacks=[Interrupt()])[name](folder / name)


if __name__ == "__main__":
    main(Path(os.path.abspath(sys.argv[1])))
