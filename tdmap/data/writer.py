"""Writing the results of chunks into the rows of an output."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tdmap.data.alike import (
    cast,
    check_fit,
    check_leaf,
    fits,
    member_pairs,
    misnamed,
    names_of,
    not_a_collection,
    same_memory,
    unlike_the_others,
)
from tdmap.data.join import joinable
from tdmap.data.kinds import Data, KeyPath, has_members, is_data, is_dense, key_name, tensors_of, with_entries
from tdmap.data.objects import (
    Forms,
    Piece,
    Pieces,
    Placer,
    check_ragged,
    entry_at,
    forms_of,
    object_paths,
    piece_for,
    piece_of,
    spill_pieces,
    spilled,
    unchanged,
    unlike_forms,
    without_gaps_over,
    without_objects,
)
from tdmap.data.reader import BLOCK, cut, narrow, plain_tensors
from tdmap.errors import OutputMismatch
from tdmap.memory.filecolumn import columns_behind
from tdmap.memory.spill import Spill
from tdmap.plan import ChunkPlan

Put: TypeAlias = Callable[[Tensor, Tensor], Any]
"""Copies the second tensor into the first."""


class RowWriter:
    """Writes the results of chunks into the rows of a preallocated output.

    Entries that are no tensors are not written: `objects_of` gives what is to travel instead.

    Args:
        out: the output, a tensor or a collection, with the plan's rows along its `dim`.
        plan: how rows are cut.
        exact: a result must have the very keys, shapes and dtypes of `out`, or it is refused (`write` returns
            False). Otherwise entries that `out` lacks are ignored, safe casts are made, and a result that does
            not fit raises.
        aliased: `out` is the source itself, so a result may lie in the rows already.
        strict: with `exact`, a result that is refused has nowhere else to go.
        objects: entries of results that are no tensors. Default: those of `out`.
        place: what brings ragged rows to their places, once the lengths of all are known.
        forms: of the entries that are no tensors, where results must not differ in them. Default: those of `out`.

    Attributes:
        base: the row of the plan that is the first of `out`: a worker may have only some of the rows.
        spill: where ragged rows wait for `place`, if workers may write there; None: they travel with reports.
    """

    def __init__(
        self,
        out: Data,
        plan: ChunkPlan,
        exact: bool,
        aliased: bool = False,
        strict: bool = False,
        objects: Sequence[KeyPath] | None = None,
        place: Placer | None = None,
        forms: Forms | None = None,
    ) -> None:
        self.objects: tuple[KeyPath, ...] = object_paths(out) if objects is None else tuple(objects)
        self._before = out if aliased and self.objects else None
        self._forms = forms_of(out) if forms is None else forms
        self.out = without_objects(out)
        self.strict = strict
        self.base = 0
        self.spill: Spill | None = place.spill if place is not None and place.shares else None
        self.plan = plan
        self.exact = exact
        self.aliased = aliased
        self._flat: tuple[str, ...] = ()
        self._files: dict[int, Any] = {}
        self._homes: frozenset[str | int] | None = None
        self._names = names_of(out)
        self._one_level = self._names is not None and not any(self._names.values())

    def own(self) -> RowWriter:
        """Another one for the same output: workers in one process have one each."""
        return copy.copy(self)

    def over(self, out: Data, base: int) -> RowWriter:
        """Another one, for some of the rows: those in `out`, of which the first is row `base`."""
        new = copy.copy(self)
        new.out, new.base, new._flat, new._files = without_objects(out), base, (), {}
        new._before = out if self.aliased and self.objects else None
        new._homes = None
        return new

    def rows(self, start: int, stop: int) -> Iterator[Data]:
        """Views of the output rows of the chunks `start..stop`: collections, or tuples of tensors when it is flat."""
        plan, base = self.plan, self.base
        for begin, end, size in plan.runs(start, stop, BLOCK):
            begin, end = begin - base, end - base
            if self._flat:
                yield from zip(*(cut(self.out._source[key], plan.dim, begin, end, size) for key in self._flat))
            elif plan.unbind:
                yield from narrow(self.out, plan.dim, begin, end).unbind(plan.dim)
            else:
                yield from cut(self.out, plan.dim, begin, end, size)

    def prepare(self) -> None:
        """Drop what slows slicing, and open the files; called once by each worker."""
        self.out = out = plain_tensors(self.out)
        if not self.aliased and self.plan.dim == 0:
            self._files = columns_behind(tensors_of(out), self.plan.size)
        if is_dense(out) and not self.plan.unbind and all(type(leaf) is Tensor for leaf in out._source.values()):
            self._flat = tuple(out._source)

    def objects_of(self, result: Data, first: int, last: int, *, spills: bool = True) -> Pieces | None:
        """The entries of a result that are no tensors; None where nothing has to travel.

        Args:
            result: of the rows `first..last`.
            spills: whether ragged rows may wait in a spill file.
        """
        if not self.objects:
            return None
        entries = [entry_at(result, path) for path in self.objects]
        if self._before is None:
            return tuple(self._piece(entry, spills) for entry in entries)
        first, last = first - self.base, last - self.base
        before = [narrow(entry_at(self._before, path), self.plan.dim, first, last) for path in self.objects]
        same = [unchanged(entry, past, self.plan) for entry, past in zip(entries, before)]
        if all(same):
            return None
        return tuple(None if kept else self._piece(entry, spills) for kept, entry in zip(same, entries))

    def kept(self, pieces: Pieces, first: int, last: int) -> Pieces:
        """The pieces of the rows `first..last`, put together from parts, as `objects_of` gives those of one result."""
        if self._before is not None and not self.plan.dim and not self.plan.unbind:
            pieces = without_gaps_over(pieces, self.objects, self._before, slice(first - self.base, last - self.base))
        return spill_pieces(pieces, self.plan, self.spill)

    def _piece(self, entry: Data, spills: bool) -> Piece:
        waiting = None if self.spill is None or not spills else spilled(entry, self.plan, self.spill)
        if waiting is not None:
            return waiting
        return piece_for(entry, self.plan) if self.exact else piece_of(entry, self.plan)

    def misfit(self, rows: Data, result: Data) -> OutputMismatch | None:
        """What is wrong with a result for these rows, found before anything is written; None when it is welcome."""
        if type(rows) is tuple:
            rows = self.out._rebuild(dict(zip(self._flat, rows)), rows[0].shape[: len(self.out._batch_size)])
        if result is None:
            return OutputMismatch("the function returned None, and results go to a folder.") if self.strict else None
        if self.exact:
            plain = without_objects(result)
            if not self._same_objects(result) or not (fits(rows, plain) or self._joins(rows, plain)):
                return unlike_the_others(rows, result, self.objects)
            wrong = unlike_forms(result, self._forms)
            return None if wrong is None else OutputMismatch(wrong)
        try:
            self._check_kind(result)
            check_fit(rows, result)
        except OutputMismatch as error:
            return error.with_traceback(None)
        return None

    def write(self, rows: Data, result: Data) -> bool:
        """Copy the tensors of `result` into `rows`.

        Returns:
            False when `exact` and it does not fit.

        Raises:
            OutputMismatch: not `exact` and it does not fit; names the key, what was wanted and what came.
        """
        if not self.exact:
            self._check_kind(result)
        elif not self._same_objects(result):
            return False
        if self.objects:
            result = without_objects(result)
        if not self.exact:  # else the output is new, and no result can lie in it
            result = self._untangled(rows, result)
        if type(rows) is tuple:
            if self.exact and getattr(result, "_types", None) != self.out._types:
                return False
            return self._write_flat(rows, result)
        if self.exact and not fits(rows, result):
            return False
        if self.aliased:
            copy_moved(rows, result)
        else:
            copy_rows(rows, result, (), self.exact, self._put if self._files else Tensor.copy_)
        return True

    def _untangled(self, rows: Data, result: Data) -> Data:
        """The result, with copies of tensors that lie in the output elsewhere than where they go.

        Such are those of `{"now": chunk["now"] + 1, "before": chunk["now"]}` for `out=data`, and of a swap of two
        entries: to write one would change the other before it is read.
        """
        if self._homes is None:
            self._homes = frozenset(_home(leaf) for leaf in tensors_of(self.out) if leaf.layout is torch.strided)
        if type(rows) is tuple:
            return untangled(dict(zip(self._flat, rows)), result, self._homes)
        return untangled(rows if isinstance(rows, Tensor) else getattr(rows, "_source", None), result, self._homes)

    def _joins(self, rows: Data, result: Data) -> bool:
        """Whether a result that does not fit, without objects, can be joined with the others in memory."""
        dim = self.plan.dim
        if self.strict or not is_data(result):
            return False
        if not self.plan.unbind:
            if len(result.shape) <= dim:
                return False
            rows, result = (narrow(part, dim, 0, min(1, part.shape[dim])) for part in (rows, result))
        return joinable([rows, result], self.plan)

    def _same_objects(self, result: Data) -> bool:
        return set(object_paths(result)) == set(self.objects)

    def _check_kind(self, result: Data) -> None:
        """Raise OutputMismatch for a result that cannot go into the output at all, or of which a part would be lost."""
        out, names = self.out, self._names
        if isinstance(out, Tensor) is not isinstance(result, Tensor) or not is_data(result):
            raise not_a_collection(out, result)
        if names is None:
            return
        if not (self._one_level and is_dense(result) and result._source.keys() <= names.keys()):
            wrong = misnamed(names, result, self.aliased)
            if wrong is not None:
                raise wrong
        for path in self.objects:
            entry = entry_at(result, path)
            if isinstance(entry, Tensor):
                raise OutputMismatch(f"{key_name(path)}: out holds Python objects and the function returned a tensor.")
            check_ragged(path, self._forms.get(path), entry)

    def _put(self, dst: Tensor, src: Tensor) -> None:
        """Copy, through the file where there is one for it."""
        file = self._files.get(dst.untyped_storage().data_ptr())
        if file is None or src.dtype is not dst.dtype or not (src.is_contiguous() and dst.is_contiguous()):
            dst.copy_(src)
        elif src.is_conj() or src.is_neg() or dst.is_conj() or dst.is_neg():  # its memory is not its values
            dst.copy_(src)
        else:
            file.write(dst, src)

    def _write_flat(self, rows: tuple[Tensor, ...], result: Data) -> bool:
        """`write` for an output without nested entries: one pass that checks and copies.

        What a refused result has overwritten does not matter: its rows are taken from the result itself.
        """
        exact, aliased, out = self.exact, self.aliased, self.out
        put = self._put if self._files else Tensor.copy_
        if not is_dense(result):
            if exact:
                return False
            entries = {key: result.get(key, None) for key in self._flat}
        elif exact and (
            type(result) is not type(out)
            or len(result._source) != len(rows)
            or len(result._batch_size) != len(out._batch_size)
        ):
            return False
        else:
            entries = result._source
        for key, dst in zip(self._flat, rows):
            src = entries.get(key)
            if src is None:
                if exact:
                    return False
                continue  # a result need not carry every key of out: the rows keep what they had
            if not isinstance(src, Tensor) or src.dtype is not dst.dtype or src.shape != dst.shape:
                if exact:
                    return False
                copy_leaf(dst, src, (key,), False, put)
            elif not (aliased and same_memory(dst, src)):
                put(dst, src.detach() if src.requires_grad else src)
        return True


def _home(tensor: Tensor) -> str | int:
    """What a tensor lies in: a file, which may be mapped several times, or memory."""
    storage = tensor.untyped_storage()
    return storage.filename or storage.data_ptr()


def untangled(places: Tensor | dict[str, Any] | None, result: Data, homes: frozenset[str | int]) -> Data:
    """A result with copies of the tensors that lie in an output, but not in their own places.

    Args:
        places: the rows that the result goes into: a tensor, entries by their names, or None where it is not known
            which is which.
        result: of the function.
        homes: what the tensors of the output lie in.
    """
    if isinstance(result, Tensor):
        own = isinstance(places, Tensor) and same_memory(places, result)
        return result if own or result.layout is not torch.strided or _home(result) not in homes else result.clone()
    if not is_dense(result) or not isinstance(places, dict):
        lies_in = any(leaf.layout is torch.strided and _home(leaf) in homes for leaf in tensors_of(result))
        return result.clone() if lies_in else result
    copies = {}
    for key, value in result._source.items():
        place = places.get(key)
        free = untangled(place if isinstance(value, Tensor) else getattr(place, "_source", None), value, homes)
        if free is not value:
            copies[key] = free
    return with_entries(result, {**result._source, **copies}) if copies else result


def copy_rows(rows: Data, result: Data, path: KeyPath, checked: bool, put: Put = Tensor.copy_) -> None:
    """Copy tensor leaves of `result` into the same leaves of `rows`."""
    if isinstance(rows, Tensor):
        copy_leaf(rows, result, path, checked, put)
        return
    if not is_dense(rows):
        if not checked and has_members(rows):
            for member, part in member_pairs(rows, result, path):
                copy_rows(member, part, path, False)
        elif not checked:
            rows.update_(result)
        return
    dense = is_dense(result)
    theirs = result._source if dense else None
    for key, dst in rows._source.items():
        src = theirs.get(key) if theirs is not None else result.get(key, None)
        if src is None:
            continue  # a result need not carry every key of out: the rows keep what they had
        if isinstance(dst, Tensor):
            copy_leaf(dst, src, (*path, key), checked, put)
        else:
            copy_rows(dst, src, (*path, key), checked, put)


def copy_moved(rows: Data, result: Data, path: KeyPath = ()) -> None:
    """`copy_rows` for rows that the result may share: only what lies elsewhere is copied."""
    if isinstance(rows, Tensor):
        if not (isinstance(result, Tensor) and same_memory(rows, result)):
            copy_leaf(rows, result, path, False)
        return
    if not (is_dense(rows) and is_dense(result)):
        copy_rows(rows, result, path, False)
        return
    for key, dst in rows._source.items():
        src = result._source.get(key)
        if src is not None:
            copy_moved(dst, src, (*path, key))


def copy_leaf(dst: Tensor, src: Any, path: KeyPath, checked: bool, put: Put = Tensor.copy_) -> None:
    """Copy one tensor, with a safe cast where it has another dtype."""
    if not checked and (not isinstance(src, Tensor) or src.dtype is not dst.dtype or src.shape != dst.shape):
        src = check_leaf(dst, src, path)
        if src.dtype is not dst.dtype:
            src = cast(src.detach(), dst.dtype, path)
    put(dst, src.detach() if src.requires_grad else src)
