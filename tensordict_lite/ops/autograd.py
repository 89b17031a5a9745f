"""Gradients: which leaves require them, their values, and a joint backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.kernel import Kernel, Lock
from tensordict_lite.ops.values.operands import is_object, leaf_paths, pair_leaves

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection


class AutogradOps(Kernel):
    """Mixin of the autograd family."""

    __slots__ = ()

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
            >>> import torch
            >>> from tensordict_lite import TensorDict
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
            >>> import torch
            >>> from tensordict_lite import TensorDict
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
            >>> import torch
            >>> from tensordict_lite import TensorDict
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

    # -- helpers -------------------------------------------------------------------------------------------

    def _keep_lock(self, new: Any) -> Any:
        if self._lock is not None:
            new._propagate_lock(None)
        return new

    def _attribute(self, name: str) -> Any:
        """An attribute of every tensor, without those where it is ``None``; ``None`` if none is left."""
        found = _collect(self, name)
        return None if found is None else self._keep_lock(found)


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


def _collect(node: Any, name: str) -> Any:
    source = node._source
    if type(source) is not dict:
        members = [_collect(member, name) for member in node._nested()]
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
            item = _collect(value, name)
        else:
            item = value.clone(False)
        if item is not None:
            out[key] = item
    return node._rebuild(out, node._batch_size, node._names) if out else None
