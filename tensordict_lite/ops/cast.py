"""Device, dtype, memory and gradients of the leaves; copies."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.kernel import Kernel, Lock, normalise_device
from tensordict_lite.ops.operands import is_object, leaf_paths, pair_leaves, tracked_rows
from tensordict_lite.views import public

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection

    CastFilter = Callable[[tuple[str, ...], Tensor], bool]


_parse_to: Callable[..., Any] = torch._C._nn._parse_to
_foreach_clone = getattr(torch, "_foreach_clone", None)  # since torch 2.12


class SharedLock(Lock):
    """The lock of a collection that :meth:`CastOps.share_memory_` moved: unlocking drops the shared mark."""

    __slots__ = ()


class CastOps(Kernel):
    """Copies, casts, moves, memory and gradients. A cast keeps names and lock; a clone is unlocked."""

    __slots__ = ()

    # -- copies ------------------------------------------------------------------------------------------

    def clone(self, recurse: bool = True) -> Self:
        """A copy of the same type, unlocked.

        Args:
            recurse: copy the tensors too. ``False`` copies the tree of collections around the same tensors.

        Example:
            >>> td = TensorDict({"a": torch.zeros(3), "n": {"b": torch.ones(3)}}, [3])
            >>> td.clone()["a"] is td["a"], td.clone(recurse=False)["a"] is td["a"]
            (False, True)
        """
        source = self._source
        if not recurse or type(source) is not dict:
            return self._map_leaves(Tensor.clone if recurse else same)
        copies = iter(_clone_all([value for value in source.values() if type(value) is Tensor]))
        return self._rebuild(
            {key: next(copies) if type(value) is Tensor else value.clone() for key, value in source.items()},
            self._batch_size,
            self._names,
        )

    def copy(self) -> Self:
        """``clone(recurse=False)``: a new tree around the same tensors."""
        return self.clone(False)

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Self:
        """The same entries with contiguous tensors; contiguous ones are shared.

        Args:
            canonical: also copy tensors whose strides are not row-major (torch calls a tensor with a dimension of size
                1 contiguous whatever its stride there).
            inplace: replace the tensors in this collection and return it.

        Nested lazy stacks become dense if all members have the same entries (not with ``inplace``).
        """
        fn = _canonical if canonical else Tensor.contiguous
        if inplace:
            return self._swap_leaves([fn(leaf) for leaf in self._leaves()])
        if self._is_non_tensor:
            return self._map_leaves(fn)

        def below(value: Any) -> Any:
            if value._is_non_tensor:
                return value._map_leaves(fn)
            dense = value._dense_or_none() if type(value._source) is list else value.contiguous(canonical=canonical)
            return value._map_leaves(fn) if dense is None else dense

        return self._rebuild(
            {key: fn(value) if isinstance(value, Tensor) else below(value) for key, value in self._source.items()},
            self._batch_size,
            self._names,
        )

    def is_contiguous(self) -> bool:
        """Whether every tensor is contiguous and there is no lazy stack (whose entries are stacked when read)."""
        return all(value.is_contiguous() for _, value in self._entries())

    # -- to ------------------------------------------------------------------------------------------------

    def to(
        self,
        *args: Any,
        batch_size: Sequence[int] | None = None,
        other: TensorCollection | Tensor | None = None,
        non_blocking: bool | None = None,
        non_blocking_pin: bool = False,
        num_threads: int | None = None,
        inplace: bool = False,
        cast_filter: CastFilter | None = None,
        **kwargs: Any,
    ) -> Self:
        """Cast the leaves to a device, a dtype or both, in every form that :meth:`torch.Tensor.to` accepts.

        - ``to(device, dtype=None)``: also sets the device of the collection, nested ones included.
        - ``to(dtype)``: casts every tensor.
        - ``to(tensor)``: device and dtype of a tensor.
        - ``to(other)`` with a collection: its device, and its dtype if all its tensors share one.
        - ``to(batch_size=...)`` alone assigns the batch size and returns ``self``.

        The lock and the names are kept. As a context manager, the entries are written back when the block ends, on the
        original device and, if they existed before, in their original dtype.

        Args:
            *args: device, dtype, tensor or collection.
            batch_size: batch size of the result and of every nested collection in it (names are dropped).
            other: a collection (or tensor) to imitate.
            non_blocking: ``None`` copies asynchronously and waits once for all copies to the host; ``True`` does not
                wait; ``False`` copies one by one.
            non_blocking_pin: pin each tensor before it is sent.
            num_threads: number of threads that pin.
            inplace: put the cast tensors into this collection and return it.
            cast_filter: ``fn(path, tensor) -> bool``, called with a tuple of strings: the tensors to cast to the dtype.
                The others are only moved.
            **kwargs: ``device``, ``dtype``, ``memory_format``.

        Returns:
            ``self`` if nothing changes, a new collection otherwise.

        Raises:
            TypeError: arguments that :meth:`torch.Tensor.to` does not accept.
            RuntimeError: the device does not exist.

        Example:
            >>> td = TensorDict({"a": torch.arange(3)}, [3])
            >>> td.to(torch.float64)["a"].dtype, td.to("meta").device
            (torch.float64, device(type='meta'))
        """
        if len(args) == 1:
            kind = type(args[0])
            plain = not (kwargs or inplace or non_blocking_pin or batch_size is not None)
            plain = plain and other is None and cast_filter is None
            if kind is torch.dtype:
                if plain:
                    return self._cast(args[0])
            elif kind is torch.device or kind is str:
                if plain and non_blocking is None:
                    device: Any = torch.device(args[0])
                    if device.type in ("cpu", "meta") and device.index is None:
                        return self if device == self._device else self._relocated(device)
            elif args[0] is None:
                args = ()
            elif not isinstance(args[0], Tensor) and hasattr(args[0], "_leaves"):
                other, args = args[0], ()
        if batch_size is not None and hasattr(self, "_stack_dim"):
            raise TypeError(
                "Cannot pass batch-size to a LazyStackedTensorDict: it is that of its members. Make it dense first, "
                "to_tensordict()"
            )
        if other is not None:
            kwargs.setdefault("device", other.device)
            kwargs.setdefault("dtype", other.dtype)
        device, dtype, positional, memory_format = _parse_to(*args, **kwargs) if args or kwargs else _NOTHING
        if device is None and dtype is None and memory_format is None:
            if batch_size is not None:
                self.batch_size = batch_size
            return self._unchanged()
        if device is not None and device.type not in ("cpu", "meta"):
            device = normalise_device(device)
        if dtype is None and memory_format is None and batch_size is None and device == self._device:
            return self._unchanged()
        if non_blocking is None and len(args) > 1 and positional is False and args[-1] is False:
            non_blocking = False
        if (
            getattr(self, "_consolidated", None) is not None
            and dtype is None
            and memory_format is None
            and batch_size is None
        ):
            whole = self._move_storage(device, non_blocking, non_blocking_pin, inplace)
            if whole is not None:
                return whole
        ragged = dtype is not None
        leaves = self._leaves(ragged)
        if ragged and device is not None and device.type != "cpu" and len(leaves) != len(self._leaves()):
            # ragged columns stay on the CPU: cast first
            cast = self.to(dtype=dtype, inplace=inplace, cast_filter=cast_filter, memory_format=memory_format)
            moved_td = cast.to(
                device,
                batch_size=batch_size,
                non_blocking=non_blocking,
                non_blocking_pin=non_blocking_pin,
                num_threads=num_threads,
                inplace=inplace,
            )
            return moved_td if inplace else self._writes_back(moved_td)
        if not leaves and device is not None and device.type not in ("cpu", "meta"):
            torch.empty(0, device=device)  # raises if the device does not exist
        moved = _move(leaves, device, dtype, memory_format, non_blocking, non_blocking_pin, num_threads)
        if cast_filter is not None and dtype is not None:
            moved = self._filter_cast(cast_filter, moved, device, non_blocking)
        return self._around_moved(moved, device, batch_size, inplace, ragged)

    def _around_moved(
        self,
        moved: list[Tensor],
        device: torch.device | None,
        batch_size: Sequence[int] | None,
        inplace: bool,
        ragged: bool,
    ) -> Self:
        """This tree around cast tensors: itself, or a new one that writes back as a context manager."""
        if inplace:
            self._swap_leaves(moved, ragged)
            if device is not None:
                self._set_device(device)
            if batch_size is not None:
                self.batch_size = batch_size
            return self._unchanged()
        new = self._with_leaves(iter(moved), ragged)
        if device is not None:
            new._set_device(device)
        if batch_size is not None:
            _force_batch_size(new, torch.Size(batch_size))
        return self._writes_back(self._keep_lock(new))

    def _cast(self, dtype: torch.dtype) -> Self:
        """Every tensor in ``dtype``; those that have it are shared."""
        cast = _CASTS.get(dtype)
        if cast is None:
            new = self._map_leaves(lambda leaf: leaf.to(dtype), True)
        else:
            new = self._map_leaves(lambda leaf: leaf if leaf.dtype is dtype else cast(leaf), True)
        return self._writes_back(self._keep_lock(new))

    def _relocated(self, device: torch.device) -> Self:
        """Every tensor on the host (or the meta device); one wait for all copies."""
        if getattr(self, "_consolidated", None) is not None:
            whole = self._move_storage(device, None, False, False)
            if whole is not None:
                return whole
        away = False

        def move(leaf: Tensor) -> Tensor:
            nonlocal away
            here = leaf.device
            if here == device:
                return leaf
            away |= here.type not in ("cpu", "meta")
            return leaf.to(device, non_blocking=True)

        new = _moved(self, move, device)
        if away and device.type == "cpu":
            torch.accelerator.synchronize()
        return self._writes_back(self._keep_lock(new))

    def _move_storage(self, device: torch.device, non_blocking: bool | None, pin: bool, inplace: bool) -> Self | None:
        """A consolidated collection moved in one copy; ``None`` if that is impossible."""
        record = None if inplace else registry.record_of(self)
        if record is None:
            return None
        (flat,) = _move([record.flat], device, None, None, non_blocking, pin, None)
        return self._writes_back(registry.relocated(self, record, flat, device))

    def _writes_back(self, new: Self) -> Self:
        """``new``, which as a context manager writes itself back into this collection."""
        origin = weakref.ref(self)
        new._last_op = (origin, partial(_undo_cast, origin))
        return new

    def _filter_cast(
        self,
        cast_filter: CastFilter,
        cast: list[Tensor],
        device: torch.device | None,
        non_blocking: bool | None,
    ) -> list[Tensor]:
        """``cast``, with the leaves that the filter rejects only moved."""
        out = []
        for path, leaf, new in zip(leaf_paths(self, ragged=True), self._leaves(True), cast):
            if cast_filter(path, leaf):
                out.append(new)
            else:
                out.append(leaf if device is None else leaf.to(device, non_blocking=bool(non_blocking)))
        return out

    def _set_device(self, device: torch.device | None) -> None:
        self._changed_under_lock()
        self._device = device
        for sub in self._nested():
            sub._set_device(device)

    def _swap_leaves(self, leaves: Sequence[Tensor], ragged: bool = False) -> Self:
        """:meth:`_replace_leaves` for public methods: a lock forbids it, unless there is nothing to replace."""
        if self._lock is not None and any(new is not old for new, old in zip(leaves, self._leaves(ragged))):
            raise self._locked_error()
        return self._replace_leaves(leaves, ragged)

    def _replace_leaves(self, leaves: Sequence[Tensor], ragged: bool = False) -> Self:
        """Replace the tensors of this tree, which keeps its identity."""
        self._changed_under_lock()
        remaining = iter(leaves)
        _put_leaves(self, remaining, ragged)
        return self

    def cpu(self, **kwargs: Any) -> Self:
        """``to("cpu")``."""
        return self.to("cpu", **kwargs)

    def cuda(self, device: int | str | torch.device | None = None, **kwargs: Any) -> Self:
        """``to("cuda")``, or to the CUDA device of that index."""
        if device is None:
            return self.to(torch.device("cuda"), **kwargs)
        return self.to(torch.device("cuda", device) if isinstance(device, int) else device, **kwargs)

    def type(self, dst_type: torch.dtype | str, *, cast_filter: CastFilter | None = None) -> Self:
        """Cast every tensor with :meth:`torch.Tensor.type`: a dtype or a name such as ``"torch.IntTensor"``.

        The result is not locked.
        """
        if cast_filter is None:
            return self._map_leaves(lambda leaf: leaf.type(dst_type), True)
        leaves = [
            leaf.type(dst_type) if cast_filter(path, leaf) else leaf
            for path, leaf in zip(leaf_paths(self, ragged=True), self._leaves(True))
        ]
        return self._with_leaves(iter(leaves), True)

    # -- figures --------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype that all tensors share, ``None`` if they differ or there are none."""
        dtypes = {leaf.dtype for leaf in self._leaves()}
        return dtypes.pop() if len(dtypes) == 1 else None

    def is_floating_point(self) -> bool:
        """Whether every tensor has a floating-point dtype."""
        return all(leaf.is_floating_point() for leaf in self._leaves(True))

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

    # -- memory ----------------------------------------------------------------------------------------------------

    def share_memory_(self) -> Self:
        """Move the tensors to shared memory, lock the collection and return it.

        Processes that receive it read and write the same memory. No effect on a CUDA device, whose tensors are always
        shared.

        Raises:
            RuntimeError: the collection is memory-mapped, and thus already shared through its files.

        Example:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3]).share_memory_()
            >>> td.is_shared(), td.is_locked, td["a"].is_shared()
            (True, True, True)
        """
        if self.is_memmap():
            raise RuntimeError(
                "memory-mapped tensors cannot be moved to shared memory: their files are shared already. "
                "Clone the collection first to share a copy."
            )
        if self._device is not None and self._device.type == "cuda":
            return self
        for leaf in self._leaves():
            if leaf.device.type == "cpu":
                leaf.share_memory_()
        for column in ragged_columns(self):
            column.share_memory_()
        if self._lock is None:
            self._propagate_lock(None)
        mark_shared(self)
        return self

    def is_shared(self) -> bool:
        """Whether :meth:`share_memory_` was called since the last unlock; always on a CUDA device."""
        if self._device is not None and self._device.type == "cuda":
            return True
        return type(self._lock) is SharedLock

    def pin_memory(self, num_threads: int | None = None, inplace: bool = False) -> Self:
        """The same entries in page-locked memory, which is copied to an accelerator faster.

        Args:
            num_threads: number of threads that pin; ``None`` or 0 uses the calling thread.
            inplace: replace the tensors in this collection and return it.

        Raises:
            RuntimeError: no accelerator is available.
        """
        leaves = pinned(self._leaves(), num_threads)
        return self._swap_leaves(leaves) if inplace else self._with_leaves(iter(leaves))

    def pin_memory_(self, num_threads: int = 0) -> Self:
        """:meth:`pin_memory` in place."""
        return self.pin_memory(num_threads, inplace=True)

    def record_stream(self, stream: torch.cuda.Stream) -> Self:
        """Tell the allocator that ``stream`` uses every tensor, see :meth:`torch.Tensor.record_stream`."""
        for leaf in self._leaves():
            leaf.record_stream(stream)
        return self

    def data_ptr(self, *, storage: bool = False) -> TensorCollection:
        """Addresses of the tensors: a TensorDict of zero-dimensional int64 tensors under the same keys.

        Args:
            storage: return the address of the storage, which a view shares with its base, not that of the first
                element.

        Example:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3])
            >>> bool((td[1:].data_ptr(storage=True) == td.data_ptr(storage=True)).all())
            True
        """
        return _address_tree(self, storage)

    def bytes(self, *, count_duplicates: bool = True) -> int:
        """Size of all tensors in bytes, including gradients, and offsets (and lengths) of jagged ones.

        Args:
            count_duplicates: count a tensor under two keys twice.
        """
        total = 0
        for leaf in _distinct(self._leaves(), count_duplicates):
            total += leaf.numel() * leaf.element_size()
            if leaf.is_nested and leaf.layout is torch.jagged:
                rows = (leaf.offsets(), leaf._lengths)  # type: ignore[attr-defined]
                total += sum(part.numel() * part.element_size() for part in rows if part is not None)
            grad = leaf.grad if leaf.is_leaf and leaf.requires_grad else None
            if grad is not None:
                total += grad.numel() * grad.element_size()
        return total

    def param_count(self, *, count_duplicates: bool = True) -> int:
        """Number of elements of all tensors.

        Args:
            count_duplicates: count a tensor under two keys twice.
        """
        return sum(leaf.numel() for leaf in _distinct(self._leaves(), count_duplicates))

    @property
    def is_cpu(self) -> bool:
        """Whether the device of the collection is the CPU (not whether its tensors are there)."""
        return self._device is not None and self._device.type == "cpu"

    @property
    def is_cuda(self) -> bool:
        """Whether the device of the collection is a CUDA device."""
        return self._device is not None and self._device.type == "cuda"

    @property
    def is_meta(self) -> bool:
        """Whether the device of the collection is ``meta``."""
        return self._device is not None and self._device.type == "meta"

    # -- gradients ----------------------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether any tensor requires grad."""
        return any(leaf.requires_grad for leaf in self._leaves())

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set ``requires_grad`` of every tensor.

        Raises:
            RuntimeError: a tensor is neither floating point nor complex.

        Returns:
            self

        Example:
            >>> TensorDict({"a": torch.zeros(3)}, [3]).requires_grad_()["a"].requires_grad
            True
        """
        self._changed_under_lock()
        for leaf in self._leaves():
            leaf.requires_grad_(requires_grad)
        return self

    @property
    def grad(self) -> Self | None:
        """The gradients of the tensors that have one, by key; ``None`` if there are none."""
        return self._attribute("grad")

    @property
    def data(self) -> Self:
        """The same memory outside of the autograd graph, see :attr:`torch.Tensor.data`. Keeps the lock."""
        return self._keep_lock(self._map_leaves(_data))

    def detach(self) -> Self:
        """The same memory outside of the autograd graph, see :meth:`torch.Tensor.detach`. Keeps the lock.

        A locked TensorDict of plain or memory-mapped tensors that do not require grad returns the same object again,
        until it or the result is unlocked or changed (``requires_grad_()``, another batch size, other names). A change
        of a tensor of the result (``result["a"].requires_grad_()``) is visible in later results.

        Example:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3]).lock_()
            >>> td.detach() is td.detach()
            True
            >>> td.detach().requires_grad_() is td.detach()
            False
        """
        lock = self._lock
        if lock is None:
            return self._map_leaves(_detach)
        try:
            kept, its_lock = lock.detached  # type: ignore[attr-defined]
            if kept._lock is its_lock:
                return kept
        except AttributeError:  # nothing was cached so far
            pass
        return self._detach_locked()

    def _detach_locked(self) -> Self:
        """A new detached tree under a lock, cached in the lock of this one if that is safe."""
        new = self._map_leaves(_detach)
        new._propagate_lock(None)
        # Neither wrapped nor fake tensors.
        if _interpreter() is None and _detaches_alike(self) and _detaches_alike(new):
            if type(self._lock) is list:
                self._lock = Lock(self._lock)
            self._lock.detached = (new, new._lock)  # type: ignore[union-attr]
        return new

    def detach_(self) -> Self:
        """Detach every tensor from the autograd graph, in place. Returns ``self``."""
        for leaf in self._leaves():
            if type(leaf) is Tensor or leaf.requires_grad:  # an unbatched tensor is a view, which torch rejects
                leaf.detach_()
        return self

    def zero_grad(self, set_to_none: bool = True) -> Self:
        """Drop the gradient of every tensor.

        Args:
            set_to_none: ``False`` fills existing gradients with zeros instead.

        Returns:
            self
        """
        for leaf in self._leaves():
            if set_to_none:
                leaf.grad = None
            elif leaf.grad is not None:
                leaf.grad.zero_()
        return self

    def backward(
        self,
        gradient: TensorCollection | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: TensorCollection | Sequence[Tensor] | None = None,
    ) -> None:
        """One backward pass from all tensors that require grad.

        Args:
            gradient: a gradient for each of them, by key. By default each must have a single element, whose gradient is
                1.
            retain_graph: keep the graph for another pass; defaults to ``create_graph``.
            create_graph: record the pass itself, for higher derivatives.
            inputs: tensors (or a collection of them) that accumulate gradients; by default all of the graph.

        Raises:
            RuntimeError: no tensor requires grad, or one has several elements and there is no ``gradient``.
            KeyError: ``gradient`` lacks an entry.

        Example:
            >>> x = torch.ones(2, requires_grad=True)
            >>> TensorDict({"loss": x.sum(), "penalty": (x * x).sum()}).backward()
            >>> x.grad
            tensor([3., 3.])
        """
        active = [(path, leaf) for path, leaf in zip(leaf_paths(self), self._leaves()) if leaf.requires_grad]
        if not active:
            raise RuntimeError(
                "backward() cannot be called on a tensordict that has no leaf tensor requiring gradients."
            )
        if gradient is not None:
            if not hasattr(gradient, "_leaves"):
                raise TypeError(
                    "gradient must be a TensorDictBase instance with an entry for each tensor that requires grad, got "
                    f"a {type(gradient).__name__}"
                )
            for path, _ in active:
                if path not in gradient:
                    name = path[0] if len(path) == 1 else path
                    raise KeyError(f"Missing gradient entry for key {name!r} in the gradient passed to backward()")
            keys = [path for path, _ in active]
            gradients = pair_leaves(self.select(*keys), gradient.select(*keys))[1]
        else:
            for path, leaf in active:
                if leaf.numel() != 1:
                    name = path[0] if len(path) == 1 else path
                    raise RuntimeError(
                        "grad can be implicitly created only for scalar outputs: the leaf at key "
                        f"{name!r} has shape {tuple(leaf.shape)}. Pass a gradient tensordict with the same "
                        "keys to backward()."
                    )
            gradients = [torch.ones_like(leaf) for _, leaf in active]
        if inputs is not None and hasattr(inputs, "_leaves"):
            inputs = inputs._leaves()
        torch.autograd.backward(
            [leaf for _, leaf in active],
            gradients,
            retain_graph=retain_graph,
            create_graph=create_graph,
            inputs=inputs,
        )

    def _attribute(self, name: str) -> Any:
        """An attribute of every tensor, without those where it is ``None``; ``None`` if none is left."""
        found = _attribute_tree(self, name)
        return None if found is None else self._keep_lock(found)


# torch's shorthands need no argument parsing, which is half the time of a cast of a small tensor.
_CASTS: dict[torch.dtype, Callable[[Tensor], Tensor]] = {
    torch.float32: Tensor.float,
    torch.float64: Tensor.double,
    torch.float16: Tensor.half,
    torch.bfloat16: Tensor.bfloat16,
    torch.int64: Tensor.long,
    torch.int32: Tensor.int,
    torch.int16: Tensor.short,
    torch.int8: Tensor.char,
    torch.uint8: Tensor.byte,
    torch.bool: Tensor.bool,
}

_NOTHING: tuple[Any, ...] = (None, None, False, None)


def _clone_all(tensors: list[Tensor]) -> Sequence[Tensor]:
    if _foreach_clone is not None and tensors:
        try:
            return tracked_rows(_foreach_clone(tensors), tensors)
        except RuntimeError:  # an integer next to one that requires grad, vmap, nested tensors
            pass
    return [tensor.clone() for tensor in tensors]


def same(leaf: Tensor) -> Tensor:
    return leaf


def _canonical(leaf: Tensor) -> Tensor:
    leaf = leaf.contiguous()
    stride, expected = 1, []
    for length in reversed(leaf.shape):
        expected.append(stride)
        stride *= max(length, 1)
    return leaf if leaf.stride() == tuple(reversed(expected)) else leaf.clone(memory_format=torch.contiguous_format)


def _move(
    leaves: list[Tensor],
    device: torch.device | None,
    dtype: torch.dtype | None,
    memory_format: torch.memory_format | None,
    non_blocking: bool | None,
    pin: bool,
    num_threads: int | None,
) -> list[Tensor]:
    """Every tensor cast and moved; copies to the host are waited for once."""
    if pin:
        leaves = pinned(leaves, num_threads)
    if memory_format is not None:
        return [
            leaf.to(device, dtype, bool(non_blocking), memory_format=memory_format)
            if leaf.ndim in (4, 5)
            else leaf.to(device, dtype, bool(non_blocking))
            for leaf in leaves
        ]
    if device is None:
        return [leaf.to(dtype) for leaf in leaves]
    foreign = device.type != "cuda" and any(leaf.device.type not in (device.type, "meta", "cpu") for leaf in leaves)
    asynchronous = non_blocking is not False
    if dtype is None:
        moved = [leaf.to(device, non_blocking=asynchronous) for leaf in leaves]
    else:
        moved = [leaf.to(device, dtype, asynchronous) for leaf in leaves]
    if foreign and non_blocking is None:
        torch.accelerator.synchronize()
    return moved


def _moved(node: Any, move: Callable[[Tensor], Tensor], device: torch.device) -> Any:
    if node._is_non_tensor or type(node._source) is not dict or node._is_unbatched:
        new = node._map_leaves(move)
        new._set_device(device)
        return new
    new = node._rebuild(
        {
            key: move(value) if isinstance(value, Tensor) else _moved(value, move, device)
            for key, value in node._source.items()
        },
        node._batch_size,
        node._names,
    )
    new._device = device
    return new


def _put_leaves(node: Any, leaves: Iterator[Tensor], ragged: bool) -> None:
    if getattr(node, "_objects", None) is not None:  # a column of objects
        if ragged and node._is_ragged_numbers:
            node._hold_values(next(leaves))
        return
    source = node._source
    if isinstance(source, dict):
        for key, value in source.items():
            if isinstance(value, Tensor):
                source[key] = next(leaves)  # replacing a value does not disturb the iteration
            elif value._is_unbatched:
                value._payload = next(leaves)
            else:
                _put_leaves(value, leaves, ragged)
    else:
        for sub in node._nested():
            _put_leaves(sub, leaves, ragged)


def _force_batch_size(node: Any, size: torch.Size) -> None:
    node._names = None
    for sub in node._nested():
        _force_batch_size(sub, size)
    node._change_batch_size(size)


def _undo_cast(origin: Callable[[], Any], changed: Any) -> Any:
    """The result of a ``with td.to(...)`` block, on the original device and in the original dtypes."""
    before = origin()
    dtypes = dict(zip(leaf_paths(before, ragged=True), (leaf.dtype for leaf in before._leaves(True))))
    device = before._device
    leaves = []
    for path, leaf in zip(leaf_paths(changed, ragged=True), changed._leaves(True)):
        leaf = leaf.to(dtypes.get(path, leaf.dtype))
        leaves.append(leaf if device is None else leaf.to(device))
    back = changed._with_leaves(iter(leaves), True)
    back._set_device(device)
    return back


def ragged_columns(node: Any) -> Iterator[Any]:
    """The values and offsets of the ragged entries of a tree."""
    for sub in () if node._is_non_tensor and not hasattr(node, "column") else node._nested():
        yield from ragged_columns(sub)
    column = getattr(node, "column", None) if node._is_non_tensor else None
    if column is not None:
        yield column


def pinned(leaves: list[Tensor], num_threads: int | None) -> list[Tensor]:
    if num_threads and len(leaves) > 1:
        with ThreadPoolExecutor(min(num_threads, len(leaves))) as threads:
            return list(threads.map(Tensor.pin_memory, leaves))
    return [leaf.pin_memory() for leaf in leaves]


def mark_shared(node: Any) -> None:
    """Mark a locked tree as being in shared memory."""
    node._changed_under_lock()
    node._lock = SharedLock(node._lock)
    for sub in node._nested():
        mark_shared(sub)


def _distinct(leaves: list[Tensor], count_duplicates: bool) -> list[Tensor]:
    return leaves if count_duplicates else list({id(leaf): leaf for leaf in leaves}.values())


def _address_tree(node: Any, storage: bool) -> Any:
    source = node._source
    entries = source.items() if isinstance(source, dict) else ((str(i), sub) for i, sub in enumerate(node._nested()))
    out = {}
    for key, value in entries:
        value = public(value)
        if isinstance(value, Tensor):
            address = value.untyped_storage().data_ptr() if storage else value.data_ptr()
            out[key] = torch.tensor(address, dtype=torch.int64)
        elif value._leaves():
            out[key] = _address_tree(value, storage)
    return registry.TensorDict._trusted(out, torch.Size(()), torch.device("cpu"))


_detach = Tensor.detach
_interpreter = torch._C._functorch.peek_interpreter_stack


def _detaches_alike(node: Any) -> bool:
    """Whether a locked tree can cache the result of ``detach()``: TensorDicts of tensors that are never replaced.

    Objects and the members of lazy stacks are replaced under a lock, and ``module.to()`` changes the memory of a
    parameter.
    """
    if type(node) is not registry.TensorDict:
        return False
    for value in node._source.values():
        cls = type(value)
        if isinstance(value, Kernel):
            if not _detaches_alike(value):
                return False
        elif not ((cls is Tensor or cls is registry.MemoryMappedTensor) and not value.requires_grad):
            return False
    return True


def _data(leaf: Tensor) -> Tensor:
    return leaf.data


SHARING = frozenset((same, _canonical, _data, _detach, Tensor.contiguous))
"""Functions whose result shares the memory of its tensor, unless that is not contiguous."""


def _attribute_tree(node: Any, name: str) -> Any:
    source = node._source
    if type(source) is not dict:
        members = [_attribute_tree(member, name) for member in node._nested()]
        if any(member is None for member in members):
            return None
        return type(node)(*members, stack_dim=node.stack_dim)
    out = {}
    for key, value in source.items():
        if isinstance(value, Tensor):
            item = getattr(value, name)
        elif value._is_unbatched:
            found = getattr(value._leaves()[0], name)
            item = None if found is None else value._around(found)
        elif value._key_list() or not is_object(value):
            item = _attribute_tree(value, name)
        else:
            item = value.clone(False)
        if item is not None:
            out[key] = item
    return node._rebuild(out, node._batch_size, node._names) if out else None
