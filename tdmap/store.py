"""A dataset that is being made in a folder, out of sight until it is whole.

    out/.tdmap/data/    the dataset while the run goes on
    out/.tdmap/moving   says that it is over, and that its files are on their way
    out/                where they are moved, `meta.json` last

So a folder whose run was interrupted holds no dataset, and one that holds a dataset holds a whole one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from tdmap._data import Data, TensorDict
from tdmap.runtime.owner import Owner

HIDDEN = ".tdmap"
META = "meta.json"


class OutputFolder:
    """The folder that a map writes its results to.

    Args:
        path: the folder; it need not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(os.fspath(path)))
        self.hidden = self.path / HIDDEN
        self._data = self.hidden / "data"
        self._moving = self.hidden / "moving"
        self._owner = Owner()

    @property
    def is_whole(self) -> bool:
        """Whether the folder holds a dataset."""
        return (self.path / META).exists()

    def require_free(self, source: str | None) -> None:
        """Raise FileExistsError unless a new dataset can be put here."""
        if source is not None and os.path.abspath(source) == str(self.path):
            raise FileExistsError(f"{self.path} is the folder of the data: to change it in place, pass out=data.")
        if self.is_whole:
            raise FileExistsError(
                f"{self.path} holds a dataset already: choose another folder, or remove that one. "
                "An output that is to be overwritten is loaded and passed as out=."
            )
        if (self.hidden / "journal").exists():
            raise FileExistsError(
                f"{self.path} holds an unfinished run: pass resume=True to go on with it, or remove the folder."
            )
        others = [name for name in os.listdir(self.path) if name != HIDDEN] if self.path.is_dir() else []
        if others:
            raise FileExistsError(
                f"{self.path} is not empty ({', '.join(sorted(others)[:3])}...): choose a folder of its own."
            )

    def load(self) -> Data | None:
        """The dataset, whole or begun; None when there is neither. One that was being moved to its place gets there."""
        if self._moving.exists():
            return self.publish()
        for folder in (self.path, self._data):
            if (folder / META).exists():
                return TensorDict.load_memmap(folder)
        return None

    def create(self, example: Data) -> Data:
        """Files for a dataset with the schema of `example`, zeroed and reserved."""
        self._moving.unlink(missing_ok=True)  # what was on its way is made anew
        shutil.rmtree(self._data, ignore_errors=True)
        self.hidden.mkdir(parents=True, exist_ok=True)
        return example.memmap_like(self._data)

    def publish(self) -> Data:
        """Move a finished dataset to its place, and open it there. May be repeated after an interruption."""
        if (self._data / META).exists():
            self._moving.touch()  # from now on, neither folder holds a dataset until it is done
            (self.path / META).unlink(missing_ok=True)  # of the same run, which was interrupted and has made it anew
            for name in sorted(os.listdir(self._data)):
                if name != META:
                    target = self.path / name
                    if target.is_dir():  # of the same run, too: `require_free` has found nothing of anybody else's
                        shutil.rmtree(target)
                    os.replace(self._data / name, target)
            os.replace(self._data / META, self.path / META)
        if self._moving.exists():
            shutil.rmtree(self._data, ignore_errors=True)
            self._moving.unlink()
            with contextlib.suppress(OSError):  # a journal keeps it
                self.hidden.rmdir()
        return TensorDict.load_memmap(self.path)

    def discard(self) -> None:
        """Remove what an unfinished run that cannot be resumed has left; nothing in a fork of the one that writes."""
        if not self._owner.is_here:
            return
        shutil.rmtree(self.hidden, ignore_errors=True)
        if self.path.is_dir() and not os.listdir(self.path):
            self.path.rmdir()
