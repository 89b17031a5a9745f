"""Data of other libraries as datasets, and back: pandas, polars, Arrow, Hugging Face, datasets of torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tdmap.data.kinds import Dataset, concatenated, is_data
from tdmap.datasets.arrow import rows_of, to_arrow
from tdmap.ops.flat_map import flat_map
from tdmap.output.outputfolder import destination
from tdmap.process_state import on_host
from tdmap.run.operation import entry_point
from tensordict_lite import Ragged, TensorDict
from tensordict_lite.building.arrays import require_unmasked
from tensordict_lite.packages import need, pandas, pyarrow

if TYPE_CHECKING:
    from typing import Unpack

    import pyarrow as pa

    from tdmap.execution import WorkerOptions
    from tdmap.rowerrors import OnError

CHUNK_ROWS = 1024
"""Rows of a Hugging Face dataset that a worker takes at a time."""


@on_host
def from_arrow(
    table: pa.Table, out: str | os.PathLike[str] | None = None, *, nulls: str = "raise", overwrite: bool = False
) -> TensorDict:
    """Convert an Arrow table. Numbers and text share its memory, unless Arrow marks some of it as immutable.

    Args:
        table: a `pyarrow.Table` or `RecordBatch`, or another argument of `pyarrow.table`.
        out: folder for a memory-mapped copy.
        nulls: `"raise"` or `"mask"`, as `tdmap.datasets.read`.
        overwrite: replace the dataset in the folder when the new one is complete.
    """
    pa, store = pyarrow(), destination(out, overwrite)
    if not isinstance(table, (pa.Table, pa.RecordBatch)):
        table = pa.table(table)
    rows = rows_of(table, nulls)
    chunks = (chunk for column in table.columns for chunk in getattr(column, "chunks", [column]))
    if store is not None:
        rows = store.save(rows)
    # A write into the memory of a mapped file ends the process; one into a Polars frame changes it.
    elif not all(buffer is None or buffer.is_mutable for chunk in chunks for buffer in chunk.buffers()):
        rows = rows.clone()
    return rows


@on_host
def from_pandas(
    frame: Any, out: str | os.PathLike[str] | None = None, *, nulls: str = "raise", overwrite: bool = False
) -> TensorDict:
    """Convert a pandas data frame without its index; copies it. Arguments as `from_arrow`.

    NaN in a column of NumPy floats is a number, not a null. Nulls are None, `NaT`, and `NA` of pandas dtypes.

    Example:
        >>> import pandas
        >>> from_pandas(pandas.DataFrame({"x": [1.0, float("nan")]}))["x"]
        tensor([1., nan], dtype=torch.float64)
    """
    if getattr(frame, "ndim", None) != 2:
        raise TypeError(f"frame must be a DataFrame: got a {type(frame).__name__}.")
    pa = pyarrow()
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        if len(error.args) < 2:  # of the frame, not of a column
            raise
        raise TypeError(
            f"{error.args[1]}: {error.args[0]}. Cast the column, as by .astype(str), or leave it out by frame.drop()."
        ) from None
    except (OverflowError, UnicodeError) as error:
        raise _named(pa, frame, error) from None
    for number in range(frame.shape[1]):
        values = frame.iloc[:, number]
        if isinstance(values.dtype, np.dtype) and values.dtype.kind == "f" and table.column(number).null_count:
            table = table.set_column(number, table.field(number), pa.array(values.to_numpy(), from_pandas=False))
    made = from_arrow(table, out, nulls=nulls, overwrite=overwrite)
    return made if out is not None else made.clone()


def _named(pa: Any, frame: Any, error: Exception) -> ValueError:
    """An error of Arrow's about a value, with the column of the frame."""
    for number, name in enumerate(frame.columns):
        try:
            pa.array(frame.iloc[:, number], from_pandas=True)
        except OverflowError:
            return ValueError(f"the column {name!r} has an integer of more than 64 bits: cast it to float or str.")
        except UnicodeError as found:
            return ValueError(f"the column {name!r} has text that is not Unicode ({found}): replace it first.")
        except pa.ArrowException:
            continue
    return ValueError(str(error))


@on_host
def from_polars(
    frame: Any, out: str | os.PathLike[str] | None = None, *, nulls: str = "raise", overwrite: bool = False
) -> TensorDict:
    """Convert a Polars data frame or lazy frame. Arguments as `from_arrow`."""
    frame = frame.collect() if hasattr(frame, "collect") else frame
    if not hasattr(frame, "to_arrow") or not hasattr(frame, "schema"):
        raise TypeError(f"frame must be a DataFrame: got a {type(frame).__name__}.")
    odd = next((name for name, kind in frame.schema.items() if str(kind) == "Object"), None)
    if odd is not None:
        raise TypeError(f"the column {odd!r} holds Python objects: cast it, or leave it out by frame.drop({odd!r}).")
    return from_arrow(frame.to_arrow(), out, nulls=nulls, overwrite=overwrite)


@on_host
def to_pandas(data: Dataset[Any], *, nulls: str | None = None) -> Any:
    """Convert the data that `to_arrow` takes to a pandas data frame. Further dimensions become lists.

    `nulls` as `to_arrow`. Integers and bools with nulls become nullable dtypes such as `Int64`, columns that contain
    some `pandas.ArrowDtype`; floats with nulls become NaN.

    Raises:
        ValueError: a time of day has nanoseconds, which pandas truncates.
    """
    frames, table = pandas(), to_arrow(data, nulls=nulls)
    try:
        frame = table.to_pandas()
        for number, column in enumerate(table.columns):
            if any(map(_has_null_integers, column.chunks)):
                frame.isetitem(number, column.to_pandas(types_mapper=lambda kind: _nullable(frames, kind)))
        return frame
    except pyarrow().ArrowInvalid as error:
        raise ValueError(
            f"pandas cannot have a column as it is ({error}): data.arrow_types = {{}} makes plain numbers of all times."
        ) from error


def _has_null_integers(array: Any) -> bool:
    """Whether integers or bools are null, also within structs and lists. pandas makes floats or objects of them."""
    types = pyarrow().types
    if types.is_struct(array.type):
        return any(map(_has_null_integers, array.flatten()))
    if types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type):
        return _has_null_integers(array.flatten())
    return bool(array.null_count) and bool(types.is_integer(array.type) or types.is_boolean(array.type))


def _nullable(frames: Any, kind: pa.DataType) -> Any:
    """The dtype of pandas for a column that contains null integers or bools."""
    if pyarrow().types.is_nested(kind):
        return frames.ArrowDtype(kind)
    return frames.api.types.pandas_dtype("boolean" if str(kind) == "bool" else str(kind).title().replace("Ui", "UI"))


@on_host
def to_polars(data: Dataset[Any], *, nulls: str | None = None) -> Any:
    """Convert the data that `to_arrow` takes to a Polars data frame; `nulls` as `to_arrow`."""
    return need("polars", "polars", "making data frames").from_arrow(to_arrow(data, nulls=nulls))


# -- Hugging Face ------------------------------------------------------------------------------------------------------


@on_host
def to_huggingface(data: Dataset[Any], *, nulls: str | None = None) -> Any:
    """Convert the data that `to_arrow` takes to a `datasets.Dataset`, which shares memory with the data.

    `nulls` as `to_arrow`.
    """
    return need("datasets", "rlhf", "making Hugging Face datasets").Dataset(to_arrow(data, nulls=nulls))


@entry_point
def from_huggingface(
    dataset: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    columns: Sequence[str] | None = None,
    nulls: str = "raise",
    resume: bool = False,
    overwrite: bool = False,
    **options: Unpack[WorkerOptions],
) -> TensorDict:
    """Convert a Hugging Face dataset, with its shuffles, filters and selections.

    Args:
        dataset: a `datasets.Dataset` (a split of a `DatasetDict`). Images become columns of bytes and paths.
        out: folder for the result. None returns it in memory.
        columns: only these.
        nulls: `"raise"` or `"mask"`, as `tdmap.datasets.read`.
        resume: with `out`: the same call resumes after an interruption.
        overwrite: as `from_arrow`.
        **options: about workers, as `tdmap.map`.

    Raises:
        TypeError: `dataset` has another type, or a column has an unsupported type; names it.
    """
    if isinstance(dataset, Mapping) and not is_data(dataset):
        raise TypeError(f"this is a dictionary of datasets: choose one of {', '.join(map(repr, dataset))}.")
    if not hasattr(dataset, "with_format") or not hasattr(dataset, "__len__"):
        raise TypeError(f"dataset must be a datasets.Dataset: got a {type(dataset).__name__}.")
    if (getattr(dataset, "format", None) or {}).get("type") == "custom":
        raise TypeError(
            "the dataset has a transform, which from_huggingface does not apply: dataset.map(transform) applies it, "
            "from_dataset(dataset, out) writes what it gives, and dataset.with_format(None) leaves it out."
        )
    if columns is not None:
        dataset = dataset.select_columns(list(columns))
    store = destination(out, overwrite)
    arrow = dataset.with_format("arrow")
    if not len(arrow):
        return from_arrow(arrow.features.arrow_schema.empty_table(), out, nulls=nulls, overwrite=overwrite)
    if store is None:
        starts = range(0, len(arrow), CHUNK_ROWS)
        parts = [rows_of(arrow[start : start + CHUNK_ROWS], nulls, start) for start in starts]
        return concatenated(parts) if len(parts) > 1 else parts[0].clone()  # not a mapped file
    index = TensorDict({"row": torch.arange(len(arrow))}, [len(arrow)])
    fn = ReadArrow(arrow, nulls)
    made: TensorDict = flat_map(index, fn, out=out, chunksize=CHUNK_ROWS, overwrite=overwrite, resume=resume, **options)
    return made


class ReadArrow:
    """Reads rows of a Hugging Face dataset in workers, which open its files by name."""

    def __init__(self, dataset: Any, nulls: str) -> None:
        self.dataset = dataset
        self.nulls = nulls

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged."""
        return {"dataset": str(self.dataset._fingerprint), "nulls": self.nulls}

    def __call__(self, rows: TensorDict) -> TensorDict:
        first, count = int(rows["row"][0]), len(rows["row"])
        return rows_of(self.dataset[first : first + count], self.nulls, first)


# -- torch.utils.data.Dataset ----------------------------------------------------------------------------------------


@entry_point
def from_dataset(
    dataset: Any,
    out: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    ragged: Sequence[str] = (),
    chunksize: int = 16,
    resume: bool = False,
    on_error: OnError = "raise",
    overwrite: bool = False,
    **options: Unpack[WorkerOptions],
) -> TensorDict:
    """Write the rows of a map-style torch dataset into a folder.

    Args:
        dataset: has `len()` and `[i]`, which returns a row: a tensor, an array, a number, a string, bytes, a Pillow
            image; or a tuple or a dict of these.
        out: folder for the result.
        names: names of the columns, if rows are not dicts. Default: `"0"`, `"1"`...
        ragged: columns whose tensors differ in their first dimension.
        chunksize: rows per chunk.
        resume: the same call resumes after an interruption.
        on_error: as `tdmap.map`; `"skip"` leaves out rows that raise.
        overwrite: as `from_arrow`.
        **options: about workers, as `tdmap.map`.

    Raises:
        TypeError: a column has an unsupported type, or rows differ in shape or dtype; names the column and the row.
        ValueError: the dataset has no rows.
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError(f"dataset must be a map-style dataset with len() and [i]: got a {type(dataset).__name__}.")
    if not len(dataset):
        raise ValueError("the dataset has no rows, so its schema is unknown.")
    fn = ReadRows(dataset, None if names is None else list(names), list(ragged))
    first = fn.row(0)
    unknown = sorted(set(ragged) - set(first))
    if unknown:
        raise ValueError(f"ragged names {unknown[0]!r}, and rows have {', '.join(first)}.")
    index = TensorDict({"row": torch.arange(len(dataset))}, [len(dataset)])
    made: TensorDict = flat_map(
        index, fn, out=out, chunksize=chunksize, overwrite=overwrite, resume=resume, on_error=on_error, **options
    )
    return made


class ReadRows:
    """Asks a map-style dataset for rows, in workers."""

    def __init__(self, dataset: Any, names: list[str] | None, ragged: list[str]) -> None:
        self.dataset = dataset
        self.names = names
        self.ragged = ragged

    def __call__(self, rows: TensorDict) -> TensorDict:
        numbers = rows["row"].tolist()
        found = [self.row(number) for number in numbers]
        columns: dict[str, Any] = {}
        for name, first in found[0].items():
            values = self._values(name, found, numbers)
            if isinstance(first, (str, bytes)) or name in self.ragged:
                columns[name] = Ragged.from_list(values)
            else:
                columns[name] = self._stacked(name, values, numbers)
        return TensorDict(columns, [len(numbers)])

    @staticmethod
    def _values(name: str, found: list[dict[str, Any]], numbers: list[int]) -> list[Any]:
        for number, row in zip(numbers, found):
            if row.keys() != found[0].keys():
                raise TypeError(f"row {number} has the columns {list(row)}, and row {numbers[0]} {list(found[0])}.")
        return [row[name] for row in found]

    @staticmethod
    def _stacked(name: str, values: list[Any], numbers: list[int]) -> Tensor:
        first = values[0]
        for number, value in zip(numbers, values):
            if not isinstance(value, Tensor) or value.shape != first.shape or value.dtype is not first.dtype:
                what = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise TypeError(
                    f"the column {name!r} of row {number} is {what}, and {first.dtype} {list(first.shape)} in row "
                    f"{numbers[0]}: rows of different lengths are allowed with ragged=[{name!r}]."
                )
        return torch.stack(values)

    def row(self, number: int) -> dict[str, Any]:
        """One row, its columns tensors, strings or bytes."""
        row = self.dataset[number]
        if isinstance(row, TensorDict):
            row = row.to_dict()
        if isinstance(row, dict):
            named = row
        else:
            values = list(row) if isinstance(row, (tuple, list)) else [row]
            names = self.names if self.names is not None else [str(position) for position in range(len(values))]
            if len(names) != len(values):
                raise TypeError(f"row {number} has {len(values)} values, and names= has {len(names)} names.")
            named = dict(zip(names, values))
        return {str(name): self._value(str(name), value, number) for name, value in named.items()}

    @staticmethod
    def _value(name: str, value: object, number: int) -> Any:
        if isinstance(value, (str, bytes)):
            return value
        if isinstance(value, Tensor):
            return value.detach().cpu()
        require_unmasked(value, f"the column {name!r} of row {number}")
        try:
            if hasattr(value, "mode") and hasattr(value, "getbands"):  # a picture: channels first, as everywhere
                array = np.asarray(value)
                return torch.from_numpy(array.copy()).reshape(*array.shape[:2], -1).permute(2, 0, 1)
            return torch.as_tensor(np.array(value) if isinstance(value, np.ndarray) else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"the column {name!r} of row {number} must be a tensor, a number, a string or bytes: got a "
                f"{type(value).__name__} ({error})."
            ) from None
