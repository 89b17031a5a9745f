"""Whether modules whose outputs exist are skipped: a process-wide setting."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from tensordict_lite.keys import NestedKey, unravel_key_list
from tensordict_lite.nn.modes import Mode, Setting
from tensordict_lite.settings import F

if TYPE_CHECKING:
    from tensordict_lite.base import TensorDictBase

__all__ = ["set_skip_existing", "skip_existing"]

_SKIP = Setting(False)


def skip_existing() -> bool | list[NestedKey]:
    """The mode of the innermost :class:`set_skip_existing`: False (default), True, or a list of keys.

    Example:
        >>> with set_skip_existing(["value"]):
        ...     skip_existing()
        ['value']
    """
    return _SKIP.get()


def is_skipped(mode: Any, tensordict: TensorDictBase, in_keys: Sequence[Any], out_keys: Sequence[Any]) -> bool:
    """Whether a module with these keys can be skipped on ``tensordict`` under a mode other than False."""
    if isinstance(mode, list) and not all(key in mode for key in out_keys):
        return False
    if any(key in out_keys for key in in_keys):  # it overwrites an input
        return False
    return all(tensordict.get(key, None) is not None for key in out_keys)


class set_skip_existing(Mode):
    """Skip modules whose outputs are all in the tensordict.

    As a context manager it affects every module that runs inside. As a decorator of a method
    ``forward(self, tensordict, ...)`` it affects that method only. A module that writes one of its inputs always runs.

    Args:
        mode: True; False: nothing is skipped; a list of keys: only modules whose outputs are all in it are skipped;
            None (decorator only): the method follows the block that it is called in.
        in_key_attr: for the decorator: attribute with the keys that the module reads. Default ``"in_keys"``.
        out_key_attr: for the decorator: attribute with the keys that it writes. Default ``"out_keys"``.
        thread_local: the block affects only the thread that entered it.

    Raises:
        RuntimeError: a block with the mode None.

    Example:
        >>> from tensordict_lite.nn import TensorDictModule
        >>> module = TensorDictModule(lambda x: x + 1, in_keys=["x"], out_keys=["y"])
        >>> td = TensorDict(x=torch.zeros(()), y=torch.zeros(()))
        >>> with set_skip_existing():
        ...     module(td)["y"]
        tensor(0.)
        >>> module(td)["y"]
        tensor(1.)
    """

    _setting = _SKIP

    def __init__(
        self,
        mode: bool | list[NestedKey] | None = True,
        in_key_attr: str = "in_keys",
        out_key_attr: str = "out_keys",
        *,
        thread_local: bool = False,
    ) -> None:
        super().__init__(unravel_key_list(mode) if isinstance(mode, (list, tuple)) else mode, thread_local)
        self._attrs = (in_key_attr, out_key_attr)

    def __enter__(self) -> None:
        if self._value is None:
            raise RuntimeError("set_skip_existing(None) is for methods, as a decorator: a block needs a mode")
        super().__enter__()

    def __call__(self, func: F) -> F:
        in_keys, out_keys = self._attrs
        own = self._value

        @functools.wraps(func)
        def forward(module: nn.Module, tensordict: TensorDictBase, *args: Any, **kwargs: Any) -> Any:
            mode = _SKIP.get() if own is None else own
            if mode is not False:
                reads, writes = getattr(module, in_keys), getattr(module, out_keys)
                if is_skipped(mode, tensordict, reads, writes):
                    return tensordict
            return func(module, tensordict, *args, **kwargs)

        return forward  # type: ignore[return-value]
