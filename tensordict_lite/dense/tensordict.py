"""The dense :class:`TensorDict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tensordict_lite.base import TensorCollection, TensorDictBase
from tensordict_lite.dense.fitting import build_source
from tensordict_lite.dense.storage import DenseCollection
from tensordict_lite.kernel import DeviceLike, as_size, check_names, normalise_device
from tensordict_lite.registry import register

_EMPTY = torch.Size(())


class TensorDict(DenseCollection, TensorDictBase):
    """A dictionary of tensors that share their leading dimensions, the batch size.

    Args:
        source: mapping from (nested) keys to tensors, nested mappings, other collections, numbers, arrays,
            or any object (kept as non-tensor data); another TensorDict is copied, its tensors shared.
        batch_size: leading shape of every entry. Defaults to ``[]``.
        device: entries are cast to it, now and whenever they are written. ``None``: they stay where they are.
        names: a name (or ``None``) for each batch dimension.
        non_blocking: for the copies to ``device``.
        lock: lock the result, see :meth:`lock_`.
        **kwargs: entries, instead of ``source``.

    Raises:
        RuntimeError: an entry does not have the batch size in front.
        ValueError: ``source`` is not a mapping, or ``names`` do not fit the batch size.
        KeyError: a key is not a nested key.

    Example:
        >>> data = TensorDict({"obs": torch.zeros(3, 4), "meta": {"id": torch.arange(3)}}, batch_size=[3])
        >>> data["meta", "id"]
        tensor([0, 1, 2])
        >>> data[:2].batch_size
        torch.Size([2])
    """

    __slots__ = ()
    _merges_directly = True

    def __init__(
        self,
        source: TensorCollection | Mapping[Any, Any] | None = None,
        batch_size: Sequence[int] | torch.Size | int | None = None,
        device: DeviceLike | None = None,
        names: Sequence[str | None] | None = None,
        non_blocking: bool | None = None,
        lock: bool = False,
        **kwargs: Any,
    ) -> None:
        size = _EMPTY if batch_size is None else as_size(batch_size)
        self._source = {}
        self._batch_size = size
        self._device = None if device is None else normalise_device(device)
        self._names = None if names is None else check_names(names, len(size))
        self._types = None
        self._lock = None
        if kwargs:
            if source is not None:
                raise ValueError(
                    "entries come either from a source or from keyword arguments, not from both: got a "
                    f"{type(source).__name__} and the keywords {sorted(kwargs)}"
                )
            source = kwargs
        if source is not None:
            if type(source) is not dict:  # the usual case is spared two slow tests
                if isinstance(source, TensorCollection):
                    source = {key: source._get_str(key) for key in source._key_list()}
                elif not isinstance(source, Mapping):
                    raise ValueError(
                        "a TensorDict source is expected to be a TensorDictBase sub-type or a Mapping, found "
                        f"type(source)={type(source)}."
                    )
            if source:
                build_source(self, source, bool(non_blocking))
        if lock:
            self._propagate_lock(None)

    @classmethod
    def _free_class(cls) -> type[DenseCollection]:
        return cls

    @classmethod
    def _as_own(cls, made: Any) -> Any:
        if cls is TensorDict or type(made) is not TensorDict:
            return made
        return cls._trusted(made._source, made._batch_size, made._device, made._names)


register(TensorDict=TensorDict)
