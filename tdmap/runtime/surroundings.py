"""What a function may take for granted about its process: the caller's import path, arguments, folder, environment
and settings of torch.

A worker may have been started long before the call, by another process or in another folder. So every job brings the
caller's surroundings, and a function that opens a relative path or reads a variable finds what the caller would.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NamedTuple

import torch

OWN_VARIABLES = ("OMP_NUM_THREADS",)
"""Variables that workers are started with, and keep."""


class Surroundings(NamedTuple):
    """Of the process that called `map`."""

    path: tuple[str, ...]
    """`sys.path`, absolute."""
    argv: tuple[str, ...]
    """`sys.argv`."""
    folder: str
    """The working directory; empty when it has been removed."""
    environment: dict[str, str]
    """The environment variables."""
    dtype: torch.dtype
    """torch's default for floats."""
    grad: bool
    """Whether torch records operations."""
    deterministic: bool
    """Whether torch uses deterministic algorithms only."""

    @classmethod
    def here(cls) -> Surroundings:
        """Those of this process, now."""
        folder, path = "", tuple(sys.path)
        with contextlib.suppress(FileNotFoundError):
            folder = os.getcwd()
            path = tuple(os.path.join(folder, entry) for entry in sys.path)
        return cls(
            path,
            tuple(getattr(sys, "argv", ())),
            folder,
            dict(os.environ),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
        )

    def enter(self, own_process: bool = True) -> None:
        """Make them those of this process. One that belongs to somebody else's pool gets the import path only."""
        for entry in reversed(self.path):
            if entry not in sys.path:
                sys.path.insert(0, entry)
        if not own_process:
            return
        sys.argv = list(self.argv)
        if self.folder:
            with contextlib.suppress(OSError):  # removed since
                os.chdir(self.folder)
        torch.set_default_dtype(self.dtype)
        torch.set_grad_enabled(self.grad)
        if self.deterministic != torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(self.deterministic)
        if self.environment != os.environ:
            own = {name: os.environ[name] for name in OWN_VARIABLES if name in os.environ}
            for name in os.environ.keys() - self.environment.keys() - own.keys():
                del os.environ[name]
            os.environ.update({**self.environment, **own})
