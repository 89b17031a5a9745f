"""`describe`: figures of the columns of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from tdmap.data.kinds import Data, Dataset, stored_entry, tensors_of
from tdmap.data.objects import objects_of
from tdmap.data.reader import rows_of, select
from tdmap.data.stacks import ragged_columns
from tdmap.diagnostics.columns import (
    QUANTILES,
    ColumnReducer,
    Columns,
    LengthReducer,
    few_rows,
    is_number,
)
from tdmap.memory.mapped import check_mapped_files
from tdmap.ops.reduce import fold
from tdmap.run.context import Context
from tdmap.run.operation import operation
from tdmap.run.options import RunOptions
from tdmap.times import time_type
from tensordict_lite import Ragged, is_non_tensor
from tensordict_lite.ragged import is_ragged
from tensordict_lite.views import is_leaf_nontensor

if TYPE_CHECKING:
    from typing import Unpack


class Summary(dict[str, Any]):
    """Figures of each column by its name: `count`, `nan`, `infinite`, `min`, `max`, `mean`, `std`, `quantiles`,
    `histogram`, and `time`, the type of times. Printed as a table.

    Attributes:
        rows: number of rows.
        others: the types of columns that are not real numbers.
    """

    def __init__(self, found: dict[str, Any], rows: int, others: dict[str, str]) -> None:
        super().__init__(found)
        self.rows = rows
        self.others = others

    def __repr__(self) -> str:
        head = ("column", "count", "NaN", "min", "max", "mean", "std", *(f"{q:.0%}" for q in QUANTILES), "")
        last = len(head) - 1
        lines: list[tuple[str, ...]] = [head]
        for name, one in self.items():
            lines.append((name, f"{one.count:,}", f"{one.nan:,}", *one.texts, one.sparkline))
        lines += [(name, *[""] * (last - 1), kind) for name, kind in self.others.items()]
        widths = [max(len(line[column]) for line in lines) for column in range(last)]
        text = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:last], widths[1:]), line[last]]).rstrip()
            for line in lines
        ]
        return "\n".join([f"{self.rows:,} rows", *text])


@operation
def describe(ctx: Context, data: Dataset[Any], **options: Unpack[RunOptions]) -> Summary:
    """Count, range, mean, deviation, quantiles and a small histogram of each column, in one pass.

    Figures cover all finite elements of a column. Quantiles and the histogram are approximate: each value counts as one
    within one percent of it; if values lie far from zero and close together, within one percent of their distance from
    each other. `GroupBy.agg` computes exact quantiles. Dates and times (`arrow_types`) are printed as text.

    Args:
        data: a collection with rows in dimension 0. For strings, bytes and lists, figures are of the lengths of rows
            (of strings in bytes of UTF-8), and None counts as NaN; for lists of numbers, of their elements too.
        **options: see `tdmap.RunOptions`.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> found = describe(TensorDict({"x": torch.tensor([1.0, 3.0])}, [2]), num_workers=0)
        >>> found.rows, found["x"].mean, found["x"].max
        (2, 2.0, 3.0)
    """
    rows = ragged_columns(data)
    like = rows_of(rows).like  # of several folders, no column is read for its name and kind
    times = {_joined(key): name for key, name in getattr(data, "arrow_types", {}).items()}
    reducers: dict[str, Any] = {}
    others: dict[str, str] = {}
    keys = list(like.keys(True, True, is_leaf_nontensor))
    columns = {key: _ragged(stored_entry(like, key)) for key in keys}
    lengths = [key for key in keys if columns[key] is not None]
    numbers = [key for key in keys if is_number(stored_entry(like, key) if columns[key] is None else columns[key])]
    if len(rows) and (numbers or lengths):
        check_mapped_files(tensors_of(rows))  # a few rows of them are read here
        rows = select(rows, list(dict.fromkeys([*numbers, *lengths])))
        if rows_of(rows).is_view:  # strings in memory, as a column: a chunk of None alone could not be one
            rows.update({key: columns[key] for key in lengths})
        few = few_rows(rows)
        for key in numbers:
            name = _joined(key)
            time = times[name] if time_type(times.get(name, "")) is not None else None
            reducers[name] = ColumnReducer.of(key, stored_entry(few, key), time)
        reducers |= {f"{_joined(key)} (length)": LengthReducer.of(key, stored_entry(few, key)) for key in lengths}
    for key in keys:
        if key not in numbers and key not in lengths:
            leaf = stored_entry(like, key)
            others[_joined(key)] = str(leaf.dtype) if isinstance(leaf, Tensor) else "no numbers"
    found = dict(fold(ctx, rows, Columns(reducers))) if reducers else {}
    return Summary(found, len(rows), others)


def _joined(key: str | tuple[str, ...]) -> str:
    return key if isinstance(key, str) else ".".join(key)


def _ragged(entry: Data) -> Ragged | None:
    """Strings, bytes and lists of numbers as rows that have lengths; None for other entries."""
    if is_ragged(entry):
        return None if entry.kind == "json" else entry
    if not is_non_tensor(entry) or entry.batch_dims != 1 or not len(entry):
        return None
    try:
        found: Ragged = Ragged.from_list(objects_of(entry))
    except (TypeError, ValueError):
        return None
    return found
