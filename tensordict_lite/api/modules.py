"""State dicts, and the weights of a module as a collection and back."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from tensordict_lite import registry
from tensordict_lite.api.module_swap import Swap, put_back, read, read_state_dict, restore
from tensordict_lite.kernel import Kernel
from tensordict_lite.keys import require_path
from tensordict_lite.strided import UninitializedTensorMixin
from tensordict_lite.views import as_read, entry_of


def _finish(out: Any, as_module: bool, lock: bool) -> Any:
    if as_module:
        from tensordict_lite.nn.params import TensorDictParams

        out = TensorDictParams(out, no_convert="skip")
    if lock:
        out._propagate_lock(None)
    return out


class ModuleOps(Kernel):
    """``from_module``, ``to_module``, and state dicts: flat (``"a.b"``) or nested."""

    __slots__ = ()

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        as_module: bool = False,
        lock: bool = False,
        use_state_dict: bool = False,
        filter_empty: bool = True,
    ) -> Self:
        """The parameters and buffers of a module, keyed by the names of its sub-modules; nothing is copied.

        Args:
            module: any module.
            as_module: return a :class:`TensorDictParams`, a module that holds them.
            lock: lock the result.
            use_state_dict: take the detached tensors of ``module.state_dict()``, with its hooks, instead of the
                parameters.
            filter_empty: leave out sub-modules without parameters.

        Raises:
            TypeError: ``module`` is not a module.

        Example:
            >>> params = TensorDict.from_module(torch.nn.Sequential(torch.nn.Linear(3, 4)))
            >>> params["0", "weight"].shape
            torch.Size([4, 3])
        """
        from tensordict_lite.dense.tensordict import TensorDict

        _require_module(module, "from_module()")
        if use_state_dict:
            return _finish(read_state_dict(TensorDict, module), as_module, lock)
        return _finish(read(TensorDict, module, filter_empty, {}), as_module, lock)

    @classmethod
    def from_modules(
        cls,
        *modules: nn.Module,
        as_module: bool = False,
        lock: bool = True,
        use_state_dict: bool = False,
        lazy_stack: bool = False,
        expand_identical: bool = False,
    ) -> Self:
        """The stacked parameters of several modules of the same architecture: an ensemble for :func:`torch.vmap`.

        Stacked parameters are new parameters: pass them to the optimiser. They require grad if one of the originals
        does. Those of lazy modules stay uninitialised until the first call sets the shape.

        Args:
            *modules: the modules.
            as_module: return a :class:`TensorDictParams`.
            lock: lock the result. Default True.
            use_state_dict: see :meth:`from_module`.
            lazy_stack: a lazy stack of the original parameters: nothing is copied, and they get the gradients.
            expand_identical: a parameter that all modules share is expanded instead of stacked.

        Raises:
            RuntimeError: the modules differ in keys or shapes; ``lazy_stack`` together with ``as_module`` or with lazy
                modules.

        Example:
            >>> params = TensorDict.from_modules(torch.nn.Linear(3, 4), torch.nn.Linear(3, 4))
            >>> params.batch_size, params["weight"].shape
            (torch.Size([2]), torch.Size([2, 4, 3]))
        """
        if not modules:
            raise ValueError("from_modules() needs at least one module")
        if lazy_stack and as_module:
            raise RuntimeError("Using a LazyStackedTensorDict within a TensorDictParams isn't permitted.")
        parts: list[Any] = [cls.from_module(module, use_state_dict=use_state_dict) for module in modules]
        if not lazy_stack:
            return _finish(_stacked(parts, expand_identical, ()), as_module, lock)
        if any(isinstance(leaf, UninitializedTensorMixin) for part in parts for leaf in part._leaves()):
            raise RuntimeError("lazy_stack=True is not compatible with lazy modules: call them once before")
        return _finish(type(parts[0]).lazy_stack(parts), False, lock)

    def to_module(
        self,
        module: nn.Module,
        *,
        inplace: bool | None = None,
        return_swap: bool = True,
        swap_dest: Any = None,
        use_state_dict: bool = False,
        non_blocking: bool = False,
        preserve_module_state: bool = True,
        strict: bool = False,
        memo: Any = None,
    ) -> Any:
        """Put these tensors into a module. As a context manager, restore the old ones at the end.

        Buffers that the module assigns inside the block are in this collection afterwards.

        Args:
            module: a module with parameters or buffers under the same names; a :class:`TensorDictParams` is one.
            inplace: copy into the existing tensors instead of replacing them.
            return_swap: return the replaced tensors, which :meth:`to_module` puts back; else return None.
            swap_dest: collection to write the replaced tensors into; it is returned.
            use_state_dict: load through ``module.load_state_dict`` (hooks run), copying.
            non_blocking: for copies.
            preserve_module_state: a tensor that replaces a parameter becomes a parameter with its ``requires_grad``
                (unless gradients or a transform pass through it), and buffers stay buffers. False: it becomes a plain
                attribute.
            strict: every parameter and buffer of the module must be here.
            memo: must not be passed.

        Raises:
            KeyError: the module has no such parameter, buffer or sub-module, or (``strict``) has more. The module is
                unchanged then.
            RuntimeError: a tensor has another shape; ``inplace`` together with ``use_state_dict``.
            TypeError: ``module`` is not a module.

        Example:
            >>> layer = torch.nn.Linear(2, 2)
            >>> zeros = TensorDict.from_module(layer).data.clone().zero_()
            >>> with zeros.to_module(layer):
            ...     layer(torch.ones(1, 2)).sum().item()
            0.0
        """
        if memo is not None:
            raise RuntimeError("memo cannot be passed to the public to_module anymore.")
        _require_module(module, "to_module()")
        inplace = bool(inplace)
        if use_state_dict:
            if inplace:
                raise RuntimeError("inplace argument cannot be passed when use_state_dict=True: it always copies.")
            swap, inplace = _load(self, module, strict), True
        else:
            cls = self._plain_class()
            swap = Swap(cls, inplace, non_blocking, preserve_module_state, strict).run(self, module)
        if not return_swap and swap_dest is None:
            return None
        if swap_dest is not None:
            try:
                swap_dest.update(swap)
            except BaseException:
                put_back(swap, module, inplace, non_blocking)
                raise
        out = swap if swap_dest is None else swap_dest
        # the block restores the replaced tensors, not the current content of `swap_dest`
        taken = None if swap_dest is None else swap
        out._last_op = ("undo", (restore, weakref.ref(module), taken, inplace, non_blocking, None if inplace else self))
        return out if return_swap else None

    # -- state dicts -----------------------------------------------------------------------------------------------

    def state_dict(
        self, destination: Any = None, prefix: str = "", keep_vars: bool = False, flatten: bool = True
    ) -> OrderedDict[str, Any]:
        """The tensors in an ``OrderedDict``, like :meth:`torch.nn.Module.state_dict`.

        Args:
            destination: ``OrderedDict`` to write to and return.
            prefix: prepended to every key.
            keep_vars: do not detach the tensors.
            flatten: join nested keys with ``"."``; ``False`` nests ``OrderedDict`` objects.

        Raises:
            KeyError: two entries get the same flat key.

        Example:
            >>> list(TensorDict({"a": torch.zeros(1), "b": {"c": torch.zeros(1)}}).state_dict())
            ['a', 'b.c']
        """
        out: Any = OrderedDict() if destination is None else destination
        metadata = getattr(out, "_metadata", None)
        if metadata is None:
            metadata = OrderedDict()
            out._metadata = metadata
        fresh = destination is None
        metadata[prefix[:-1]] = self._level_metadata()
        if flatten:
            self._write_flat(out, metadata, prefix, keep_vars, fresh)
            return out
        for key, value in self._stated():
            name = prefix + key
            if isinstance(value, Tensor):
                out[name] = value if keep_vars else value.detach()
            elif value._is_non_tensor:
                out[name] = OrderedDict()
                out[name]._metadata = OrderedDict({"": _non_tensor_metadata(value)})
            else:
                out[name] = value.state_dict(keep_vars=keep_vars, flatten=False)
        return out

    def _stated(self) -> Iterable[tuple[str, Any]]:
        """The entries that have their own keys in a state dict."""
        return as_read(self._entries())

    def _level_metadata(self) -> dict[str, Any]:
        """The content of ``_metadata`` for this level."""
        return {"batch_size": self.batch_size, "device": self._device}

    def _write_flat(self, out: Any, metadata: dict[str, Any], prefix: str, keep_vars: bool, fresh: bool) -> None:
        for key, value in self._stated():
            name = prefix + key
            if fresh and (name in out or name in metadata):
                raise _collision(name)
            if isinstance(value, Tensor):
                out[name] = value if keep_vars else value.detach()
            elif value._is_non_tensor:
                metadata[name] = _non_tensor_metadata(value)
            else:
                metadata[name] = value._level_metadata()
                value._write_flat(out, metadata, name + ".", keep_vars, fresh)

    def load_state_dict(
        self, state_dict: Any, strict: bool = True, assign: bool = False, from_flatten: bool | None = None
    ) -> Self:
        """Load the values and the batch sizes of a state dict.

        Args:
            state_dict: a result of :meth:`state_dict`, flat or nested.
            strict: require the same keys as in ``self``; fields that the state dict of a tensorclass lacks keep their
                value. False: fields of a tensorclass that do not exist are ignored, other keys are added.
            assign: use the tensors of the state dict; by default their values are copied into the existing ones.
            from_flatten: whether the keys are joined with ``"."``. Default: True if there is ``_metadata`` and the keys
                are not those of ``self``.

        Raises:
            RuntimeError: the keys do not match (``strict``), a value does not fit, or the devices differ.
            KeyError: a key is not a field of a tensorclass (``strict``).

        Returns:
            self
        """
        metadata = getattr(state_dict, "_metadata", None)
        if from_flatten is None:
            from_flatten = metadata is not None and set(state_dict) != set(self._key_list())
        if from_flatten:
            state_dict = self._unflatten_state(state_dict, metadata or {})
        self._load_level(state_dict, strict, assign, not hasattr(self, "_field_specs"))
        return self

    def _unflatten_state(self, flat: Any, metadata: dict[str, Any]) -> Any:
        """Nested ``OrderedDict`` objects from a flat state dict, each level with its own metadata."""
        own = {".".join((key,) if isinstance(key, str) else key): key for key in self.keys(True)}
        root: Any = OrderedDict()
        root._metadata = OrderedDict({"": metadata[""]}) if "" in metadata else OrderedDict()

        def level(path: tuple[str, ...]) -> Any:
            node = root
            for depth, part in enumerate(path):
                if part not in node:
                    node[part] = OrderedDict()
                    known = metadata.get(".".join(path[: depth + 1]))
                    node[part]._metadata = OrderedDict({"": known} if known is not None else {})
                node = node[part]
            return node

        for name in metadata:
            if name:
                level(require_path(own.get(name, tuple(name.split(".")))))
        for name, value in flat.items():
            path = require_path(own.get(name, tuple(name.split("."))))
            level(path[:-1])[path[-1]] = value
        return root

    def _load_level(self, state: Any, strict: bool, assign: bool, complete: bool = True) -> None:
        known = getattr(state, "_metadata", {}).get("", {})
        if known.get("_non_tensor"):
            self._load_objects(known["_non_tensor"], known.get("_stacks", ()))
        size = state.get("__batch_size", known.get("batch_size"))
        device = state.get("__device", known.get("device"))
        items = {key: value for key, value in state.items() if key not in _LEGACY}
        if strict:
            self._check_state_keys(items, complete)
        if device is not None and self._device is not None and torch.device(device) != self._device:
            raise RuntimeError(
                f"the state dict was saved on {device}, this {type(self).__name__} is on {self._device}: move one first"
            )
        if size is not None and torch.Size(size) != self.batch_size:
            self._change_batch_size(torch.Size(size))
        for key, value in items.items():
            self._load_entry(key, value, strict, assign)

    def _check_state_keys(self, items: Mapping[str, Any], complete: bool) -> None:
        extra = set(items).difference(self._key_list(), getattr(self, "_field_specs", ()))
        missing = {key for key, value in self._stated() if key not in items and not _is_empty_level(value)}
        missing = missing if complete else set()
        if extra or missing:
            raise RuntimeError(
                "Cannot load state-dict because the key sets don't match: the state dict has the extra keys "
                f"{sorted(extra)}, and lacks the keys {sorted(missing)}"
            )

    def _load_objects(self, objects: Mapping[str, Any], stacks: Sequence[str] = ()) -> None:
        """Load the fields of a tensorclass that are in the metadata: objects, or one per row."""
        for name, value in objects.items():
            if value is None:
                continue
            current = entry_of(self, (name,))
            if self._lock is not None and not isinstance(current, Tensor) and current is not None:
                self.set_(name, value)
            elif name in stacks:
                self.set(name, value)
            else:
                self.set_non_tensor(name, value)

    def _load_entry(self, key: str, value: Any, strict: bool, assign: bool) -> None:
        current = entry_of(self, (key,))
        if isinstance(value, dict):
            meta = getattr(value, "_metadata", {}).get("", {})
            if meta.get("_non_tensor", {}).get("_is_non_tensor"):
                payload = meta["_non_tensor"].get("data")
                if isinstance(current, registry.NonTensorStack) and isinstance(payload, list):
                    payload = registry.rows_of(payload, current._batch_size, current._device)
                if current is not None and not isinstance(current, Tensor) and current._is_non_tensor:
                    self.set_(key, payload)
                else:
                    self.set_non_tensor(key, payload)
                return
            if current is None or isinstance(current, Tensor):
                current = self._new_child()
                self.set(key, current)
                current = entry_of(self, (key,))
                strict = False
            current._load_level(value, strict, assign)
        elif current is None or assign:
            self.set(key, value)
        else:
            self.set_(key, value)


def _require_module(module: Any, what: str) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"{what} needs a torch.nn.Module, got a {type(module).__name__}")


def _load(params: Any, module: nn.Module, strict: bool) -> Any:
    """Load through the state dict; return what the module held under the same keys."""
    flat = params.flatten_keys(".")
    own = module.state_dict()
    surplus = [key for key in flat._key_list() if key not in own]
    if surplus:
        raise KeyError(f"{type(module).__name__} has no {surplus} in its state dict; it has {sorted(own)}")
    held = type(flat)({key: own[key].clone() for key in flat._key_list()}).unflatten_keys(".")
    module.load_state_dict({key: flat._get_str(key) for key in flat._key_list()}, strict=strict)
    return held


def _stacked(parts: list[Any], expand_identical: bool, path: tuple[str, ...]) -> Any:
    """One tree with the tensors of several trees stacked."""
    first = parts[0]
    keys = first._key_list()
    for place, part in enumerate(parts):
        if set(part._key_list()) != set(keys):
            differ = sorted(set(part._key_list()) ^ set(keys))
            raise RuntimeError(
                f"the modules 0 and {place} differ in {['.'.join((*path, key)) for key in differ]}: modules to stack "
                "must have the same parameters and buffers"
            )
    source: dict[str, Any] = {}
    for key in keys:
        values = [part._get_str(key) for part in parts]
        if all(isinstance(value, Tensor) for value in values):
            source[key] = _stacked_leaf(values, expand_identical, (*path, key))
        else:
            source[key] = _stacked(values, expand_identical, (*path, key))
    return first._plain_class()._trusted(source, torch.Size((len(parts),)))


def _stacked_leaf(leaves: list[Tensor], expand_identical: bool, path: tuple[str, ...]) -> Tensor:
    if expand_identical and all(leaf is leaves[0] for leaf in leaves):
        return leaves[0].expand(len(leaves), *leaves[0].shape)
    requires_grad = any(leaf.requires_grad for leaf in leaves)
    if any(isinstance(leaf, UninitializedTensorMixin) for leaf in leaves):
        from tensordict_lite.nn.uninitialized import stack_uninitialized

        return stack_uninitialized(leaves, requires_grad)
    shapes = {tuple(leaf.shape) for leaf in leaves}
    if len(shapes) > 1:
        raise RuntimeError(
            f"the modules have tensors of different shapes at {'.'.join(path)!r}, {sorted(shapes)}: "
            "from_modules(lazy_stack=True) keeps them apart"
        )
    stacked = torch.stack([leaf.detach() for leaf in leaves])
    if isinstance(leaves[0], nn.Parameter) or requires_grad:
        return nn.Parameter(stacked, requires_grad=requires_grad)
    return stacked


_LEGACY = ("__batch_size", "__device")


def _is_empty_level(value: Any) -> bool:
    return not isinstance(value, Tensor) and not value._is_non_tensor and value.is_empty()


def _non_tensor_metadata(value: Any) -> dict[str, Any]:
    return {
        "batch_size": value.batch_size,
        "device": value.device,
        "_type": type(value).__name__,
        "_non_tensor": {"data": value._as_value(), "_metadata": None, "_is_non_tensor": True},
    }


def _collision(name: str) -> KeyError:
    return KeyError(f"two entries share the flat key {name!r}: state_dict(flatten=False) keeps them apart")
