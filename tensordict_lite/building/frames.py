"""Collections as pandas data frames, and as the files that pandas reads and writes.

For data larger than memory, see `tdmap.datasets.read` and `write`.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_lite import packages

_OWN = ("auto_batch_size", "batch_dims", "device", "batch_size", "separator", "dtype")


def split_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    own = {name: value for name, value in options.items() if name in _OWN}
    return own, {name: value for name, value in options.items() if name not in _OWN}


def read(form: str, path: Any, **options: Any) -> Any:
    read = getattr(packages.pandas(), f"read_{form}")
    named = os.fspath(path) if isinstance(path, (str, os.PathLike)) else repr(path)
    what = {"csv": "rows of CSV", "json": "JSON records", "parquet": "a Parquet file"}[form]
    try:
        frame = read(path, **options)
    except (
        ValueError,
        IsADirectoryError,
    ) as error:  # pandas and pyarrow raise ValueError for content that they cannot parse
        kind = ValueError if isinstance(error, ValueError) else IsADirectoryError
        raise kind(f"{named}: from_{form}() expects {what} there: {error}") from error
    if not len(frame.columns) and os.path.isdir(named):
        raise ValueError(f"{named}: from_{form}() expects {what} there, but found a folder without any.")
    return frame


def entry_of(name: Any, column: Any, dtype: torch.dtype | None) -> Any:
    kind = column.dtype.kind if isinstance(column.dtype, np.dtype) else ""
    if hasattr(column, "cat"):
        return _cast(name, column.cat.codes, dtype)
    if kind == "M" or hasattr(column.dtype, "tz"):
        moments = column.dt.tz_convert("UTC").dt.tz_localize(None) if hasattr(column.dtype, "tz") else column
        try:
            nanoseconds = moments.astype("datetime64[ns]")
        except ValueError as error:
            raise ValueError(f"the column {name!r} has a time that int64 nanoseconds do not reach: {error}.") from None
        return torch.from_numpy(nanoseconds.to_numpy().view(np.int64).copy())
    if kind in "biufc" and kind:
        return _cast(name, column, dtype)
    return column.tolist()


def _cast(name: Any, column: Any, dtype: torch.dtype | None) -> Tensor:
    values = column.to_numpy()
    try:
        tensor = torch.from_numpy(np.array(values, dtype=values.dtype.newbyteorder("="), copy=True))
    except TypeError:
        raise TypeError(
            f"the column {name!r} is {values.dtype}, which torch does not have: convert it first."
        ) from None
    return tensor if dtype is None else tensor.to(dtype)


def columns_of(data: Any, separator: str | None, path: tuple[str, ...]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key in data.keys():
        value, here = data.get(key), (*path, key)
        name = here[0] if len(here) == 1 else str(separator).join(here)
        if isinstance(value, Tensor):
            if value.dim() != 1:
                raise ValueError(
                    f"the entry {name!r} has the shape {list(value.shape)}, but a column has one value per row."
                )
            try:
                found.append((name, value.detach().cpu().resolve_conj().resolve_neg().numpy()))
            except TypeError:
                raise TypeError(
                    f"the entry {name!r} is {value.dtype}, which NumPy does not have: convert it first."
                ) from None
        elif getattr(value, "_is_non_tensor", False):
            values = value.tolist()
            values = values if isinstance(values, list) else [values] * len(data)
            found.append((name, values or np.empty(0, dtype=object)))
        elif separator is None:
            raise ValueError(f"the entry {name!r} is nested: pass separator='.' to join its keys.")
        else:
            found += columns_of(value, separator, here)
    return found
