"""Functions over the leaves of one or several trees: ``apply``, ``apply_`` and ``named_apply``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.kernel import DeviceLike, Kernel
from tensordict_lite.keys import missing_key_error
from tensordict_lite.settings import MISSING, settings
from tensordict_lite.views import as_read, entry_of, public


@dataclass(slots=True)
class _Call:
    """The options of one call of ``apply``, at every level of the tree."""

    fn: Callable[..., Any]
    """The user's function, ``fn(leaf, *others)`` or ``fn(key, leaf, *others)``."""
    named: bool = False
    nested_keys: bool = False
    """Pass whole paths instead of the last step."""
    batch_size: torch.Size | None = None
    device: Any = MISSING
    inplace: bool = False
    default: Any = MISSING
    filter_empty: bool | None = None
    call_on_nested: bool = False
    is_leaf: Callable[[type], bool] | None = None

    def takes(self, value: object) -> bool:
        """Whether the function is called on this entry (otherwise it is entered, or kept)."""
        if self.call_on_nested:
            return True
        if self.is_leaf is not None:
            return self.is_leaf(type(value))
        return isinstance(value, Tensor)

    def run(self, key: str, prefix: tuple[str, ...], value: Any, others: list[Any]) -> Any:
        if not self.named:
            return self.fn(value, *others)
        return self.fn((*prefix, key) if prefix and self.nested_keys else key, value, *others)

    def emptied(self, result: Any, had_entries: bool) -> bool:
        """Whether a level without entries is dropped from the result."""
        if self.filter_empty is False or result._key_list():
            return False
        return had_entries or self.filter_empty is True


class ApplyOps(Kernel):
    """Functions over the leaves of one or several trees."""

    __slots__ = ()

    def apply(
        self,
        fn: Callable[..., Any],
        *others: Any,
        batch_size: Sequence[int] | None = None,
        device: DeviceLike | None = MISSING,
        names: Sequence[str | None] | None | object = MISSING,
        inplace: bool = False,
        default: Any = MISSING,
        filter_empty: bool | None = None,
        propagate_lock: bool = False,
        call_on_nested: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        out: Any = None,
        **constructor_kwargs: Any,
    ) -> Self | None:
        """Call a function on every tensor of the tree and return a tree of the results.

        Args:
            fn: ``fn(leaf, *other_leaves)``, returns a tensor or a collection, or ``None`` to drop the entry.
            *others: collections with the same keys, whose leaves are the further arguments.
            batch_size: batch size of the result, at every level, for a function that changes shapes. The names
                of dimensions are dropped then.
            device: move the results to this device. ``None``: leave them.
            names: names of the batch dimensions of the result.
            inplace: copy the results into the leaves of ``self`` and return it; ``None`` leaves a leaf unchanged.
            default: argument for an entry that one of ``others`` lacks (by default: KeyError).
            filter_empty: drop nested collections without entries: all of them (``True``), none (``False``), those that
                ``fn`` emptied (``None``).
            propagate_lock: lock the result of a locked collection.
            call_on_nested: call ``fn`` on the direct entries, including collections, without entering these.
            is_leaf: function of a type: ``fn`` is called on entries of these types, and collections of other types are
                entered. Default: tensors; non-tensor data is kept.
            out: collection to write the results to.
            **constructor_kwargs: ignored, with a warning.

        Returns:
            A collection of the same type, ``out`` or ``self`` (``inplace``). ``None`` if ``fn`` returned ``None`` for
            every leaf, unless ``filter_empty=False``.

        Raises:
            RuntimeError: a result does not start with the batch size.
            KeyError: an entry is missing in one of ``others``.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> td = TensorDict({"a": torch.ones(3), "b": {"c": torch.zeros(3)}}, [3])
            >>> td.apply(lambda x, y: x + y, td)["a"]
            tensor([2., 2., 2.])
            >>> td.apply(lambda x: x[:2], batch_size=[2])["b"].batch_size
            torch.Size([2])
        """
        if (
            batch_size is None
            and not inplace
            and out is None
            and device is MISSING
            and names is MISSING
            and default is MISSING
            and filter_empty is None
            and is_leaf is None
            and not (propagate_lock or call_on_nested or constructor_kwargs)
            and type(self._source) is dict
        ):
            return self._apply_plainly(fn, others)
        call = _Call(
            fn,
            batch_size=None if batch_size is None else torch.Size(batch_size),
            device=device,
            inplace=inplace,
            default=default,
            filter_empty=filter_empty,
            call_on_nested=call_on_nested,
            is_leaf=is_leaf,
        )
        return self._run_apply(call, others, names, propagate_lock, out, constructor_kwargs)

    def _apply_plainly(self, fn: Callable[..., Any], others: Sequence[Any]) -> Any:
        """:meth:`apply` without options on dense storage, the form used in loops."""
        size, names, plain = self._batch_size, self._names, self._device is None
        dims = len(size)
        result = self._rebuild({}, size, names)
        entries = result._source
        for key, value in self._source.items():
            rest = _arguments(others, key, MISSING) if others else ()
            if type(value) is Tensor or isinstance(value, Tensor):
                new = fn(value, *rest) if rest else fn(value)
                if not (plain and type(new) is Tensor and (not dims or new.shape[:dims] == size)):
                    if new is None:
                        continue
                    new = result._fit(new, key)
            elif value._is_unbatched:
                new = value._apply_entry(lambda x, rest=rest: fn(x, *map(public, rest)), result)
                if new is None:
                    continue
            elif value._is_non_tensor:
                new = value.copy()
            else:
                new = value._apply_plainly(fn, rest) if type(value._source) is dict else value.apply(fn, *rest)
                if new is None:
                    continue
            entries[key] = new
        return result if entries or not self._source else None

    def named_apply(
        self,
        fn: Callable[..., Any],
        *others: Any,
        nested_keys: bool = False,
        batch_size: Sequence[int] | None = None,
        device: DeviceLike | None = MISSING,
        names: Sequence[str | None] | None | object = MISSING,
        inplace: bool = False,
        default: Any = MISSING,
        filter_empty: bool | None = None,
        propagate_lock: bool = False,
        call_on_nested: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        out: Any = None,
        **constructor_kwargs: Any,
    ) -> Self | None:
        """:meth:`apply` with the key as first argument: ``fn(key, leaf, *other_leaves)``.

        Args:
            fn: the function.
            *others: as for :meth:`apply`, like all other arguments.
            nested_keys: pass the path of entries below the top as a tuple, instead of its last step.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> td = TensorDict({"a": torch.ones(3), "b": {"c": torch.zeros(3)}}, [3])
            >>> list(td.named_apply(lambda key, x: x if key == "c" else None).keys(True, True))
            [('b', 'c')]
        """
        call = _Call(
            fn,
            named=True,
            nested_keys=nested_keys,
            batch_size=None if batch_size is None else torch.Size(batch_size),
            device=device,
            inplace=inplace,
            default=default,
            filter_empty=filter_empty,
            call_on_nested=call_on_nested,
            is_leaf=is_leaf,
        )
        return self._run_apply(call, others, names, propagate_lock, out, constructor_kwargs)

    def apply_(self, fn: Callable[..., Any], *others: Any, **kwargs: Any) -> Self:
        """:meth:`apply` with ``inplace=True``: results are copied into the leaves.

        Returns:
            self
        """
        result: Any = self.apply(fn, *others, inplace=True, **kwargs)
        return result

    def _run_apply(
        self, call: _Call, others: tuple[Any, ...], names: Any, propagate_lock: bool, out: Any, extra: dict[str, Any]
    ) -> Any:
        if extra:
            warnings.warn(f"apply() ignores the arguments {sorted(extra)}", FutureWarning, stacklevel=3)
        if out is not None:
            if call.batch_size is not None and call.batch_size != out.batch_size:
                raise RuntimeError(
                    f"batch_size={list(call.batch_size)} must be equal to the batch size of `out`, "
                    f"{list(out.batch_size)}"
                )
            self._apply_into(call, list(others), (), out)
            return out
        if call.inplace:
            self._apply_into(call, list(others), (), self)
            return self
        result = self._apply_level(call, list(others), ())
        if result is None:
            return None
        if names is not MISSING and names is not None:
            result.names = names
        if propagate_lock and self._lock is not None:
            result.lock_()
        return result

    def _apply_level(self, call: _Call, others: list[Any], prefix: tuple[str, ...]) -> Any:
        """The results of one level as a new collection; ``None`` if it is dropped."""
        size = self._batch_size if call.batch_size is None else call.batch_size
        result = self._rebuild({}, size, self._names if call.batch_size is None else None)
        if call.device is not MISSING:
            result._device = None if call.device is None else torch.device(call.device)
        plain = result._device is None
        dims = len(size)
        had_entries = False
        for key, value in self._entries():
            had_entries = True
            if not isinstance(value, Tensor) and value._is_unbatched:
                new = self._apply_unbatched(call, key, value, others, prefix, result)
                if new is None:
                    continue
            elif call.takes(value):
                new = call.run(key, prefix, value, _arguments(others, key, call.default))
                if new is None:
                    continue
                if not (plain and type(new) is Tensor and (not dims or new.shape[:dims] == size)):
                    new = result._fit(new, key)
            elif isinstance(value, Tensor):
                new = value
            elif value._is_non_tensor:
                new = _carried(value, call.batch_size, result._device)
            else:
                new = value._apply_level(call, _arguments(others, key, call.default), (*prefix, key))
                if new is None:
                    continue
            result._set_str(key, new)
        return None if call.emptied(result, had_entries) else result

    def _apply_unbatched(
        self, call: _Call, key: str, value: Any, others: list[Any], prefix: tuple[str, ...], result: Any
    ) -> Any:
        """Apply to an entry without batch dimensions; a function that changes those leaves it unchanged."""
        if call.batch_size is not None or not call.takes(value._as_value()):
            return value._apply_entry(lambda x: x, result)
        rest = [public(other) for other in _arguments(others, key, call.default)]
        return value._apply_entry(lambda x: call.run(key, prefix, x, rest), result)

    def _apply_into(self, call: _Call, others: list[Any], prefix: tuple[str, ...], out: Any) -> None:
        """Write the results of one level to ``out`` (which may be ``self``)."""
        for key, value in list(as_read(self._entries())):
            if call.takes(value):
                rest = _arguments(others, key, call.default)
                new = call.run(key, prefix, value, [public(other) for other in rest] if settings.unbatched else rest)
                if new is None or (new is value and out is self):
                    continue
                if call.inplace and entry_of(out, (key,)) is not None:
                    out.set_(key, new)
                else:
                    out.set(key, new)
            elif isinstance(value, Tensor) or value._is_non_tensor:
                if out is not self:
                    out.set(key, value)
            else:
                target = value if out is self else entry_of(out, (key,))
                if target is None:
                    target = out.empty()
                    out.set(key, target)
                    target = entry_of(out, (key,))
                value._apply_into(call, _arguments(others, key, call.default), (*prefix, key), target)


def _arguments(others: Sequence[Any], key: str, default: Any) -> list[Any]:
    """The entries of the other trees under a key; a default replaces everything below it."""
    if default is MISSING:
        try:
            return [other._source[key] for other in others]
        except (KeyError, TypeError, AttributeError):  # a lazy stack, or a missing key, which raises below
            pass
    found = []
    for other in others:
        if default is not MISSING and other is default:
            found.append(default)
            continue
        value = entry_of(other, (key,))
        if value is None:
            if default is MISSING:
                raise missing_key_error(key, other._key_list(), type(other).__name__)
            value = default
        found.append(value)
    return found


def _carried(value: Any, batch_size: torch.Size | None, device: torch.device | None) -> Any:
    """Non-tensor data of the result: the same object with the new batch size and device."""
    new = value.copy()
    if batch_size is not None and new.batch_size != batch_size:
        new._change_batch_size(batch_size)
    new._device = device
    return new
