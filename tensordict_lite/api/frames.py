"""Collections as pandas data frames, and as the files that pandas reads and writes.

For data larger than memory, see `tdmap.datasets.read` and `write`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from tensordict_lite.kernel import DeviceLike, Kernel


class FrameOps(Kernel):
    """Conversions over pandas: ``to_pandas``, ``from_parquet`` and others."""

    __slots__ = ()

    @classmethod
    def from_pandas(
        cls,
        dataframe: Any,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: DeviceLike | None = None,
        batch_size: Sequence[int] | None = None,
        separator: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """An entry for each column of a data frame.

        Numbers and bools become tensors, categories their codes, timestamps int64 nanoseconds, and other values one
        object per row.

        Args:
            dataframe: the data frame; its index is dropped.
            auto_batch_size, batch_dims, device: as :meth:`from_dict`.
            batch_size: default: ``[rows]``.
            separator: split column names there into nested keys.
            dtype: cast numbers and bools to it.

        Raises:
            ValueError: two columns have the same key, or a timestamp does not fit int64 nanoseconds.
            TypeError: torch has no dtype for a column; names the column.

        Example:
            >>> import pandas
            >>> from tensordict_lite import TensorDict
            >>> TensorDict.from_pandas(pandas.DataFrame({"a.x": [1, 2], "b": ["u", "v"]}), separator=".")["a", "x"]
            tensor([1, 2])
        """
        entries: dict[Any, Any] = {}
        for name, column in dataframe.items():
            path = str(name).split(separator) if separator is not None else [str(name)]
            inner = entries
            for part in path[:-1]:
                inner = inner.setdefault(part, {})
                if not isinstance(inner, dict):
                    raise ValueError(f"the column {name!r} is nested in another column: {part!r} is one.")
            if path[-1] in inner:
                raise ValueError(f"two columns would be the entry {'.'.join(path)!r}: rename one of them first.")
            inner[path[-1]] = _entry_of(name, column, dtype)
        if batch_size is None and not auto_batch_size:
            batch_size = [len(dataframe)]
        made: Any = cls
        return made.from_dict(
            entries, auto_batch_size=auto_batch_size, batch_dims=batch_dims, device=device, batch_size=batch_size
        )

    def to_pandas(self, *, separator: str | None = None) -> Any:
        """A data frame with the rows of the collection and a column for each entry.

        Args:
            separator: joins nested keys.

        Raises:
            ValueError: a tensor has more than one dimension, there are nested entries and no separator, or two entries
                have the same column name.
            TypeError: NumPy has no dtype for an entry; names the entry.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> TensorDict({"a": torch.arange(2), "s": ["x", "y"]}, [2]).to_pandas().to_dict("list")
            {'a': [0, 1], 's': ['x', 'y']}
        """
        pandas = _pandas()
        data: Any = self
        if len(data.batch_size) != 1:
            raise ValueError(f"a data frame has rows: batch size [n] is needed, got {list(data.batch_size)}.")
        found = _columns_of(data, separator, ())
        columns = dict(found)
        if len(columns) < len(found):
            names = [name for name, _ in found]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two entries would be the column {twice!r}: pass another separator, or rename one first.")
        return pandas.DataFrame(columns, index=range(int(data.batch_size[0])))

    @classmethod
    def from_parquet(
        cls, path: str | os.PathLike[str], *, columns: Sequence[str] | None = None, **options: Any
    ) -> Self:
        """The columns of a Parquet file; ``options`` are those of :meth:`from_pandas` and ``pandas.read_parquet``."""
        own, others = _split(options)
        wanted = None if columns is None else list(columns)
        return cls.from_pandas(_read("parquet", path, columns=wanted, **others), **own)

    def to_parquet(self, path: str | os.PathLike[str], *, separator: str | None = None, **options: Any) -> None:
        """Write a Parquet file; see :meth:`to_pandas`, and for ``options`` ``pandas.DataFrame.to_parquet``."""
        self.to_pandas(separator=separator).to_parquet(path, **{"index": False, **options})

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """The columns of a CSV file; ``options`` are those of :meth:`from_pandas` and ``pandas.read_csv``."""
        own, others = _split(options)
        return cls.from_pandas(_read("csv", path, **others), **own)

    def to_csv(self, path: str | os.PathLike[str], *, separator: str | None = None, **options: Any) -> None:
        """Write a CSV file; see :meth:`to_pandas`, and for ``options`` ``pandas.DataFrame.to_csv``."""
        self.to_pandas(separator=separator).to_csv(path, **{"index": False, **options})

    @classmethod
    def from_json(cls, path: str | os.PathLike[str], *, lines: bool = False, **options: Any) -> Self:
        """The records of a JSON file: an array of them, or with ``lines`` one a line.

        ``options`` are those of :meth:`from_pandas` and ``pandas.read_json``.
        """
        own, others = _split(options)
        return cls.from_pandas(_read("json", path, lines=lines, **{"orient": "records", **others}), **own)

    def to_json(
        self, path: str | os.PathLike[str], *, separator: str | None = None, lines: bool = False, **options: Any
    ) -> None:
        """Write a JSON file of records; see :meth:`to_pandas`, and for ``options`` ``pandas.DataFrame.to_json``."""
        self.to_pandas(separator=separator).to_json(path, lines=lines, **{"orient": "records", **options})


_OWN = ("auto_batch_size", "batch_dims", "device", "batch_size", "separator", "dtype")


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    own = {name: value for name, value in options.items() if name in _OWN}
    return own, {name: value for name, value in options.items() if name not in _OWN}


def _read(form: str, path: Any, **options: Any) -> Any:
    read = getattr(_pandas(), f"read_{form}")
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
        raise ValueError(f"{named}: from_{form}() expects {what} there, and this is a folder without any.")
    return frame


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise ImportError(
            "data frames need the package pandas: install it with `pip install 'tdmap[arrow]'`", name="pandas"
        ) from None
    return pandas


def _entry_of(name: Any, column: Any, dtype: torch.dtype | None) -> Any:
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


def _columns_of(data: Any, separator: str | None, path: tuple[str, ...]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key in data.keys():
        value, here = data.get(key), (*path, key)
        name = here[0] if len(here) == 1 else str(separator).join(here)
        if isinstance(value, Tensor):
            if value.dim() != 1:
                raise ValueError(
                    f"the entry {name!r} has the shape {list(value.shape)}, and a column holds one value per row."
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
            found += _columns_of(value, separator, here)
    return found
