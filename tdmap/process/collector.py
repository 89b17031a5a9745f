"""Imports without looking for garbage among what they define.

Torch and this package define so many objects that the collector goes through all of them while they are imported, and
finds nothing: an eighth of the time of the first `import tdmap`.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """No automatic garbage collection within; afterwards it is as it was."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
