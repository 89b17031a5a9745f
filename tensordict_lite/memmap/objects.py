"""Non-tensor entries of a memory-mapped collection: in-place writes reach the file, and other processes.

A mapped tensor is its file. A Python object is not, so replacing one in place (``td.set_("note", ...)`` on a
locked, mapped collection) rewrites its file. With ``share_non_tensor=True`` the object itself is in shared
memory too, where every process that has the collection sees the new one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from tensordict_lite.base import TensorCollection
from tensordict_lite.errors import DatasetNotFoundError
from tensordict_lite.kernel import Flat, Kernel
from tensordict_lite.memmap import text
from tensordict_lite.memmap.disk.cells import Cell, ObjectTable
from tensordict_lite.memmap.disk.files import replace_file
from tensordict_lite.memmap.disk.format import META, PICKLES, read_json
from tensordict_lite.memmap.plan import SaveOptions, plan_for
from tensordict_lite.objects.data import NonTensorData, NonTensorDataBase, same_payload
from tensordict_lite.registry import register


def rewrite(node: Any, folder: str) -> None:
    """Replace the content of the folder of a non-tensor entry by that of ``node``.

    Readers find the old or the new object. A folder that has been removed is not made again.

    Raises:
        RuntimeError: JSON cannot hold the object, and the one that is saved is not a pickle either; or the dataset
            around it has another batch size, because a later save has put it there.
    """
    if not os.path.isdir(folder):
        return
    _require_batch(node, folder)
    pickled = [name for name in PICKLES if os.path.exists(os.path.join(folder, name))]
    old_text = text.files_in(folder)
    plan = plan_for(node, SaveOptions(allow_pickle=not old_text, reference_format=not old_text)).folders[0]
    text.rename_files(plan)
    if plan.blobs and not pickled and plan.meta.get("_class") != text.CLASS:
        raise RuntimeError(
            f"JSON cannot represent the new object of the non-tensor entry in {folder}, and the entry is saved as JSON "
            "there. Give it strings, numbers, lists and dicts, or save the collection again with allow_pickle=True."
        )
    for name, content in plan.contents().items():  # the metadata comes last
        replace_file(os.path.join(folder, name), content)
    for name in (*pickled, *old_text):
        if name not in plan.blobs:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))


def _require_batch(node: Any, folder: str) -> None:
    """Raise if an entry has another batch size than the dataset of its folder, which then could not be opened."""
    parent = os.path.dirname(folder)
    with contextlib.suppress(DatasetNotFoundError):
        meta = read_json(os.path.join(parent, META), parent)
        size = meta.get("shape") if isinstance(meta, dict) else None
        if isinstance(size, list) and list(node._batch_size[: len(size)]) != size:
            raise RuntimeError(
                f"the new object has the batch size {list(node._batch_size)}, but a later save replaced the dataset in "
                f"{parent} by one of the batch size {size}: load the dataset again"
            )


class SharedNonTensorData(NonTensorData):
    """A :class:`NonTensorData` whose object is in shared memory, while the collection is locked."""

    __slots__ = ()

    @property
    def _payload(self) -> Any:
        return self._cell.get()

    @_payload.setter
    def _payload(self, value: Any) -> None:
        self._cell.set(value)

    def _rebuild(self, source: Any, batch_size: Any, names: Any = None) -> Any:
        new = super(NonTensorDataBase, self)._rebuild(source, batch_size, names)
        new._cell = self._cell
        return new

    def _alone(self) -> NonTensorData:
        """A :class:`NonTensorData` with the current object."""
        new = NonTensorData(self._payload, batch_size=self._batch_size, device=self._device)
        new._names = self._names
        return new

    def _replace(self, payload: Any) -> None:
        if self._lock is None:  # sharing ends with the lock, as the mapping of tensors does
            self._cell = [self._payload]
            self.__class__ = NonTensorData  # type: ignore[assignment]
        NonTensorData._replace(self, payload)

    def _assign_rows(self, index: Any, item: Any) -> TensorCollection:
        if self._lock is None:
            return self._alone()._assign_rows(index, item)
        if isinstance(item, NonTensorData) and same_payload(item._payload, self._payload):
            return self
        if self._batch_size:
            raise RuntimeError(
                "all rows of this entry share one object, so a row cannot have another one: make it a "
                "NonTensorStack (maybe_to_stack()) before memmap_(share_non_tensor=True), which then shares one per row"
            )
        return self._overwrite(item, self)

    def clone(self, recurse: bool = True, **kwargs: Any) -> Any:
        """A :class:`NonTensorData` with a copy of the object; with ``recurse=False``, the same object."""
        return self._alone().clone() if recurse else super().clone(False)

    def _with_leaves(self, leaves: Iterator[Any], ragged: Flat = False) -> Any:
        return self._alone()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "payload": self._cell}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._cell = state["payload"]
        super(NonTensorDataBase, self).__setstate__(state)


def share_objects(node: Kernel) -> None:
    """Move every object below ``node`` (which is locked) to shared memory, unless it is there already.

    Raises:
        TypeError: an object cannot be pickled; nothing has changed.
    """
    found = list({id(data): data for data in _objects(node)}.values())
    if not found:
        return
    cells = ObjectTable(len(found)).cells()
    for data, cell in zip(found, cells):
        cell.set(data._payload)
    for data, cell in zip(found, cells):
        _share(data, cell)


def _share(data: NonTensorData, cell: Cell) -> None:
    data.__class__ = SharedNonTensorData
    data._cell = cell


def _objects(node: Kernel) -> Iterator[NonTensorData]:
    if type(node) is NonTensorData:
        yield node
    for child in node._nested():
        yield from _objects(child)


register(rewrite=rewrite)
