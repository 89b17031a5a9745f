"""Joining entries, and metadata inferred from entries."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.kernel import Kernel
from tensordict_lite.keys import require_path, unravel_key
from tensordict_lite.views import default_is_leaf, leaf_items


class JoinOps(Kernel):
    """``cat_tensors``, ``stack_tensors``, their whole-tree forms, ``auto_batch_size_`` and ``auto_device_``."""

    __slots__ = ()

    def cat_tensors(self, *keys: Any, out_key: Any, dim: int = 0, keep_entries: bool = False) -> Self:
        """Concatenate entries into a new one and remove them.

        Args:
            *keys: nested keys of tensors.
            out_key: nested key of the result.
            dim: dimension of the entries (not of the batch).
            keep_entries: do not remove the entries.

        Raises:
            RuntimeError: the entries or the result do not fit, or the collection is locked. Nothing has changed then.

        Returns:
            self

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> TensorDict(a=torch.zeros(1), b=torch.ones(1)).cat_tensors("a", "b", out_key="c")["c"]
            tensor([0., 1.])
        """
        return self._join(torch.cat, keys, out_key, dim, keep_entries)

    def stack_tensors(self, *keys: Any, out_key: Any, dim: int = 0, keep_entries: bool = False) -> Self:
        """Stack entries into a new one and remove them; arguments as for :meth:`cat_tensors`."""
        return self._join(torch.stack, keys, out_key, dim, keep_entries)

    def _join(self, join: Any, keys: tuple[Any, ...], out_key: Any, dim: int, keep_entries: bool) -> Self:
        if self._lock is not None:
            raise self._locked_error()
        paths = [unravel_key(key) for key in keys]
        target = unravel_key(out_key)
        entries = []
        for path in paths:
            entries.append(self.get(path, None))
            if entries[-1] is None:
                self._raise_missing(require_path(path))
        result = join(entries, dim)
        self._fit(result, str(target))  # raises before anything is removed
        if not keep_entries:
            for path in dict.fromkeys(paths):
                self.del_(path)
        return self.set(target, result)

    def cat_from_tensordict(self, dim: int = 0, *, sorted: Any = None, out: Tensor | None = None) -> Tensor:
        """All tensors of the tree, concatenated.

        Args:
            dim: dimension of the tensors.
            sorted: ``True`` for alphabetical order, ``None`` or ``False`` for the order of insertion, or the list of
                all leaf keys in the wanted order.
            out: tensor to write to.

        Raises:
            RuntimeError: the tensors do not fit each other, or a list of keys does not match the leaves.
        """
        return torch.cat(self._ordered_leaves(sorted), dim, out=out)

    def stack_from_tensordict(self, dim: int = 0, *, sorted: Any = None, out: Tensor | None = None) -> Tensor:
        """All tensors of the tree, stacked; arguments as for :meth:`cat_from_tensordict`."""
        return torch.stack(self._ordered_leaves(sorted), dim, out=out)

    def _ordered_leaves(self, order: Any) -> list[Tensor]:
        if order is None or order is False:
            return [value for _, value in leaf_items(self, (), [])]
        if order is True:
            return list(self.values(True, True, default_is_leaf, sort=True))
        keys = [unravel_key(key) for key in order]
        leaves = dict(leaf_items(self, (), []))
        if set(keys) != set(leaves) or len(keys) != len(leaves):
            raise RuntimeError(f"sorted= must list every leaf once: got {keys}, the leaves are {list(leaves)}")
        return [leaves[key] for key in keys]

    # -- metadata from the entries ---------------------------------------------------------------------------

    def auto_batch_size_(self, batch_dims: int | None = None, keep_compliant_size: bool = False) -> Self:
        """Set the batch size to the longest leading shape that all entries share, in nested collections first.

        Args:
            batch_dims: maximum number of dimensions, at every level.
            keep_compliant_size: nested collections with ``batch_dims`` dimensions or more keep theirs.

        Returns:
            self

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> td = TensorDict({"a": torch.zeros(3, 4, 5), "b": {"c": torch.zeros(3, 4)}})
            >>> td.auto_batch_size_().batch_size
            torch.Size([3, 4])
        """
        common: torch.Size | None = None
        followers = []
        for _, value in self._entries():
            if isinstance(value, Tensor):
                shape = torch.Size((value.size(0),)) if value.is_nested else value.shape
            elif type(value._source) is not dict:
                shape = value.batch_size
            elif value._follows_batch:
                followers.append(value)
                continue
            elif value._is_non_tensor or value.is_empty():
                followers.append(value)  # fits any batch size
                shape = value.batch_size
                if not shape:
                    continue
            else:
                if not (keep_compliant_size and batch_dims is not None and value.batch_dims >= batch_dims):
                    value.auto_batch_size_(batch_dims, keep_compliant_size)
                shape = value.batch_size
            common = shape if common is None else _common_prefix(common, shape)
        if common is None:
            return self
        size = torch.Size(common if batch_dims is None else common[:batch_dims])
        for value in followers:
            value._change_batch_size(size)
        if size != self._batch_size:
            self._change_batch_size(size)
        return self

    def auto_device_(self) -> Self:
        """Set the device to that of all leaves, ``None`` if they differ. Nothing is moved.

        Returns:
            self
        """
        devices = {leaf.device for leaf in self._leaves()}
        self._set_device(devices.pop() if len(devices) == 1 else None)
        return self

    def clear_device_(self) -> Self:
        """Set the device to ``None``, at every level. Nothing is moved.

        Returns:
            self
        """
        self._set_device(None)
        return self


def _common_prefix(a: torch.Size, b: torch.Size) -> torch.Size:
    n = 0
    for x, y in zip(a, b):
        if x != y:
            break
        n += 1
    return a[:n]
