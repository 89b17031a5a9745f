"""What a map makes of a dataset without rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tdmap._data import Data, join, narrow
from tdmap.plan import ChunkPlan
from tdmap.runtime.interrupts import let_through


def result_of_no_rows(fn: Callable[[Any], Any], data: Data, plan: ChunkPlan) -> Data | None:
    """The result for a dataset without rows: what the function makes of zero rows tells what rows would look like.

    Returns:
        Zero rows; None when the function returns None.

    Raises:
        ValueError: the function does not work on zero rows, or wants single ones.
        TypeError: it returns neither a tensor nor a collection.
    """
    advice = "Pass out=, or handle this case before the call."
    if plan.unbind:
        raise ValueError(f"the data has no rows, and chunksize=0 leaves nothing to call the function with. {advice}")
    try:
        result = fn(narrow(data, plan.dim, 0, 0))
    except Exception as error:
        let_through(error)
        raise ValueError(
            f"the data has no rows, and the function does not work on zero rows, so nothing tells what the result "
            f"looks like ({type(error).__name__}: {error}). {advice}"
        ) from error
    if result is None:
        return None
    joined = join([result], plan)
    return narrow(joined, plan.dim, 0, 0) if len(joined.shape) > plan.dim else joined
