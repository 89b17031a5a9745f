"""Which epoch an iteration has that does not say so itself."""

from __future__ import annotations

from typing import Any

import torch


class Epochs:
    """The number of the epoch, shared by a pipeline and all that were made from it.

    Once it was set, it lies in shared memory: workers of a torch DataLoader that stay from one epoch to the next see
    the new number, too.
    """

    def __init__(self) -> None:
        self._shared: torch.Tensor | None = None
        self._iterated: int | None = None

    @property
    def number(self) -> int:
        """Of the next epoch."""
        return 0 if self._shared is None else int(self._shared)

    def set(self, number: int) -> None:
        """The next epoch has this number."""
        if self._shared is None:
            self._shared = torch.zeros((), dtype=torch.int64).share_memory_()
        self._shared.fill_(number)
        self._iterated = None

    def is_repeated(self) -> bool:
        """Whether the epoch that begins now is the one that began last."""
        again, self._iterated = self._iterated == self.number, self.number
        return again

    def __getstate__(self) -> dict[str, Any]:
        return {"_shared": self._shared, "_iterated": None}
