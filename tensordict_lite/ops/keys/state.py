"""``state_dict`` and ``load_state_dict``, in the format of :class:`torch.nn.Module`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.kernel import Kernel
from tensordict_lite.keys import require_path
from tensordict_lite.views import as_read, entry_of

_LEGACY = ("__batch_size", "__device")


class StateOps(Kernel):
    """State dicts: flat (``"a.b"``) or nested, with batch sizes and devices in ``_metadata``."""

    __slots__ = ()

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
            >>> import torch
            >>> from tensordict_lite import TensorDict
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
            strict: require the same keys as in ``self``.
            assign: use the tensors of the state dict; by default their values are copied into the existing ones.
            from_flatten: whether the keys are joined with ``"."``. Default: True if there is ``_metadata`` and the keys
                are not those of ``self``.

        Raises:
            RuntimeError: the keys do not match (``strict``), a value does not fit, or the devices differ.

        Returns:
            self
        """
        metadata = getattr(state_dict, "_metadata", None)
        if from_flatten is None:
            from_flatten = metadata is not None and set(state_dict) != set(self._key_list())
        if from_flatten:
            state_dict = self._unflatten_state(state_dict, metadata or {})
        self._load_level(state_dict, strict, assign)
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

    def _load_level(self, state: Any, strict: bool, assign: bool) -> None:
        known = getattr(state, "_metadata", {}).get("", {})
        if known.get("_non_tensor"):
            self._load_objects(known["_non_tensor"], known.get("_stacks", ()))
        size = state.get("__batch_size", known.get("batch_size"))
        device = state.get("__device", known.get("device"))
        items = {key: value for key, value in state.items() if key not in _LEGACY}
        if strict:
            extra = set(items) - set(self._key_list())
            missing = {key for key, value in self._stated() if key not in items and not _is_empty_level(value)}
            if extra or missing:
                raise RuntimeError(
                    "Cannot load state-dict because the key sets don't match: the state dict has the extra keys "
                    f"{sorted(extra)}, and lacks the keys {sorted(missing)}"
                )
        if device is not None and self._device is not None and torch.device(device) != self._device:
            raise RuntimeError(
                f"the state dict was saved on {device}, this {type(self).__name__} is on {self._device}: move one first"
            )
        if size is not None and torch.Size(size) != self.batch_size:
            self._change_batch_size(torch.Size(size))
        for key, value in items.items():
            self._load_entry(key, value, strict, assign)

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
