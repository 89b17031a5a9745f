"""Tables of files of text whose types are not known before all of it was read.

The first rows tell the types, and rows are given on as they come. Where a later one does not fit, the rest is only
looked at, `TypesGrew` is raised, and the caller begins anew with types that hold all values. Most files are read once.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from tdmap.datasets.arrow import TypesGrew
from tdmap.datasets.extras import require_columns
from tdmap.datasets.textfiles.blocks import blocks_of
from tdmap.datasets.textfiles.dialects import Dialect, Misfit
from tdmap.datasets.textfiles.kinds import asked_types, joined_kind, with_given
from tdmap.tuning import current
from tensordict_lite.packages import pyarrow


class TextTypes:
    """The types of columns of text files.

    Args:
        columns: those that are wanted; None: all.
        types: of columns, as `tdmap.datasets.read`.
        skip: leave lines out that are no rows, and keep them in `torn`.

    Attributes:
        given: Arrow's types of columns that were asked for.
        torn: text of the lines that were left out, by file and number.

    Raises:
        TypeError: there is no such type; names the column.
    """

    def __init__(self, columns: Sequence[str] | None, types: Mapping[str, Any] | None, skip: bool = False) -> None:
        self._columns = columns
        self._skip = skip
        self.torn: dict[tuple[str, int], str] = {}
        self.given = asked_types(types)
        self._block_bytes = current().text_bytes
        self._known: dict[str, Any] = {}
        self._grew = False

    def tables(self, path: str, dialect: Dialect) -> Generator[Any, None, None]:
        """The tables of a file; none from the block on that does not fit."""
        is_first = True
        for block, is_whole in blocks_of(path, dialect.cut, self._block_bytes):
            if is_first:
                is_first, block = False, dialect.begin(block)
            table = self._parsed(path, block, dialect, is_whole) if block else None
            dialect.passed(block)
            if table is not None and not self._grew:
                yield table if self._columns is None else table.select(list(self._columns))

    def finish(self, path: str) -> None:
        """All files were read.

        Raises:
            ValueError: a column that is asked for is in no row, or there are no columns.
            TypesGrew: types do not hold all rows.
        """
        if self._grew:
            require_columns(path, self.lacking(self._known), list(self._known))
            if not self._known:
                raise ValueError(f"{path}: no row has a field, so there are no columns.")
            self._grew = False
            raise TypesGrew

    def lacking(self, known: Mapping[str, Any]) -> list[str]:
        """Columns that are asked for, and that are not known."""
        fields = [name for name in self.given if name.partition(".")[0] not in known]
        return [name for name in [*(self._columns or ()), *fields] if name not in known]

    def _parsed(self, path: str, block: bytes, dialect: Dialect, is_whole: bool) -> Any:
        try:
            if not is_whole:
                dialect.require_end(block)
            return self._fitted(block, dialect)
        except ValueError as error:
            try:
                rest, torn = dialect.without_torn(block)
            except pyarrow().ArrowInvalid:  # for another reason than a torn line
                raise error from None
            if not torn:
                raise
            if not self._skip:
                raise ValueError(f"{error}. on_error='skip' leaves out lines that cannot be parsed.") from None
            self.torn |= {(path, line): text for line, text in torn.items()}
            return self._fitted(rest, dialect) if rest.strip() else None

    def _fitted(self, block: bytes, dialect: Dialect) -> Any:
        try:
            if self._known:
                return dialect.parse(block, self._known, self.given)
        except Misfit:
            pass
        found = {name: with_given(kind, name, self.given) for name, kind in dialect.infer(block, self.given).items()}
        null = pyarrow().null()
        merged = {
            name: joined_kind(self._known.get(name, null), found.get(name, null), dialect.as_text)
            for name in {**self._known, **found}
        }
        if self._known:
            if merged == self._known or any(kind is None for kind in merged.values()):
                dialect.explain(block, self._known)
            self._known, self._grew = merged, True
            return None
        self._known = merged
        if not merged or self.lacking(self._known):
            self._grew = True  # other rows may have it
            return None
        try:
            return dialect.parse(block, merged, self.given)
        except Misfit:
            dialect.explain(block, merged)
