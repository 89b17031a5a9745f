"""Data frames, Arrow tables and files of tables as collections, and back: ``tdmap.datasets`` converts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import torch

from tensordict_lite.kernel import DeviceLike, Kernel

if TYPE_CHECKING:
    import os

    from tensordict_lite.base import TensorCollection
    from tensordict_lite.dense.tensordict import TensorDict


class TableOptions(TypedDict, total=False):
    """Options of everything that makes a collection of a table: see :meth:`TableOps.from_pandas`."""

    nulls: str
    separator: str | None
    batch_size: Sequence[int] | None
    device: DeviceLike | None


class TableOps(Kernel):
    """Class methods ``from_*`` that read tables, and the methods ``to_*`` that write them."""

    __slots__ = ()

    @classmethod
    def from_pandas(cls, dataframe: Any, **options: Unpack[TableOptions]) -> Self:
        """An entry for each column of a data frame: see :func:`tdmap.datasets.from_pandas`.

        Numbers and bools become tensors, text and lists :class:`Ragged` entries, categories their values, and dates
        and times integers whose type :attr:`arrow_types` tells.

        Args:
            dataframe: the data frame; its index is dropped.
            nulls: ``"raise"``; or ``"mask"``: zeros and empty rows, and a bool column ``"x.valid"`` for each column.
            separator: split column names there into nested keys.
            batch_size: default: ``[rows]``.
            device: device of the result.

        Raises:
            ModuleNotFoundError: tdmap is not installed.
            ValueError: a column has nulls, or two columns have the same name.
            KeyError: two columns would have the same nested key.
            TypeError: a column has an unsupported type; names it.

        Example:
            >>> import pandas
            >>> TensorDict.from_pandas(pandas.DataFrame({"a.x": [1, 2], "b": ["u", "v"]}), separator=".")["a", "x"]
            tensor([1, 2])
        """
        from tdmap.datasets import from_pandas

        return _collection(cls, from_pandas, dataframe, **options)

    def to_pandas(self, *, separator: str | None = None, nulls: str | None = None) -> Any:
        """A data frame with the rows of the collection: see :func:`tdmap.datasets.to_pandas`.

        Args:
            separator: join nested keys with it. None: a nested collection is a column of dicts.
            nulls: ``"mask"``: nulls where the bools of ``"x.valid"`` are False.

        Example:
            >>> TensorDict({"a": torch.arange(2), "s": ["x", "y"]}, [2]).to_pandas().to_dict("list")
            {'a': [0, 1], 's': ['x', 'y']}
        """
        from tdmap.datasets import to_pandas

        return to_pandas(_flat(self, separator), nulls=nulls)

    @classmethod
    def from_parquet(
        cls, path: str | os.PathLike[str], *, columns: Sequence[str] | None = None, **options: Unpack[TableOptions]
    ) -> Self:
        """The columns of a Parquet file: see :meth:`from_pandas`, and :func:`tdmap.datasets.read` for large files."""
        return _collection(cls, _read("parquet", columns), path, **options)

    def to_parquet(
        self, path: str | os.PathLike[str], *, separator: str | None = None, nulls: str | None = None
    ) -> None:
        """Write a Parquet file: see :meth:`to_pandas` and :func:`tdmap.datasets.write`."""
        _write(self, path, "parquet", separator, nulls)

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str], **options: Unpack[TableOptions]) -> Self:
        """The columns of a CSV file: see :meth:`from_pandas`, and :func:`tdmap.datasets.read` for types of columns."""
        return _collection(cls, _read("csv"), path, **options)

    def to_csv(self, path: str | os.PathLike[str], *, separator: str | None = None, nulls: str | None = None) -> None:
        """Write a CSV file: see :meth:`to_pandas` and :func:`tdmap.datasets.write`."""
        _write(self, path, "csv", separator, nulls)

    @classmethod
    def from_json(cls, path: str | os.PathLike[str], *, lines: bool = False, **options: Unpack[TableOptions]) -> Self:
        """The objects of a JSON file: an array of them, or with ``lines`` one a line. See :meth:`from_pandas`."""
        return _collection(cls, _read("jsonl" if lines else "json"), path, **options)

    def to_json(
        self,
        path: str | os.PathLike[str],
        *,
        separator: str | None = None,
        nulls: str | None = None,
        lines: bool = False,
    ) -> None:
        """Write a JSON file, an array of objects, or with ``lines`` one a line: see :meth:`to_pandas`."""
        _write(self, path, "jsonl" if lines else "json", separator, nulls)


def from_arrow(table: Any, **options: Unpack[TableOptions]) -> TensorDict:
    """An entry for each column of a ``pyarrow.Table``, or of an object that ``pyarrow.table`` takes.

    See :func:`tdmap.datasets.from_arrow`; the options are those of :meth:`TensorDict.from_pandas`.

    Example:
        >>> import pyarrow
        >>> from tensordict_lite import from_arrow
        >>> from_arrow(pyarrow.table({"x": [1, 2], "word": ["ant", "bee"]}))["x"]
        tensor([1, 2])
    """
    from tdmap.datasets import from_arrow

    made: TensorDict = _collection(Kernel, from_arrow, table, **options)
    return made


def to_arrow(td: TensorCollection, *, nulls: str | None = None) -> Any:
    """An Arrow table with the rows of the collection: see :func:`tdmap.datasets.to_arrow`.

    Example:
        >>> from tensordict_lite import TensorDict, to_arrow
        >>> to_arrow(TensorDict({"x": torch.arange(2), "n": {"word": ["ant", "bee"]}}, [2])).to_pylist()
        [{'x': 0, 'n': {'word': 'ant'}}, {'x': 1, 'n': {'word': 'bee'}}]
    """
    from tdmap.datasets import to_arrow

    return to_arrow(td, nulls=nulls)


def _read(format: str, columns: Sequence[str] | None = None) -> Callable[..., Any]:
    from tdmap.datasets import read

    return lambda path, nulls: read(path, format=format, columns=columns, nulls=nulls)


def _write(data: Any, path: Any, format: str, separator: str | None, nulls: str | None) -> None:
    from tdmap.datasets import write

    write(_flat(data, separator), path, format=format, nulls=nulls)


def _flat(data: Any, separator: str | None) -> Any:
    return data if separator is None else data.flatten_keys(separator)


def _collection(
    cls: Any,
    read: Callable[..., Any],
    source: Any,
    *,
    nulls: str = "raise",
    separator: str | None = None,
    batch_size: Sequence[int] | None = None,
    device: DeviceLike | None = None,
) -> Any:
    """What ``read`` makes of a source, as a collection of a class."""
    from tdmap.datasets.columns import VALID

    found = read(source, nulls=nulls)
    names = set(found.keys())
    for name in list(found.keys()) if separator is not None else ():
        column = name.removesuffix(VALID)
        column = column if column in names else name  # a mask stays beside its column
        *above, last = column.split(separator)
        if above:
            found.rename_key_(name, (*above, last + name[len(column) :]), safe=True)
    types = found.arrow_types
    if batch_size is not None:
        found.batch_size = torch.Size(batch_size)
    made = cls._as_own(found if device is None else found.to(device))
    if types:
        made.arrow_types = types
    return made
