"""Process-wide settings and the context managers that change them temporarily."""

from __future__ import annotations

import copy
import functools
import os
import warnings
from collections.abc import Callable
from typing import Any, Self, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

MISSING: Any = object()
"""The default of arguments for which None is a value. There is only one, because methods pass it on to each other."""


class Settings:
    """The current values, read as plain attributes on hot paths."""

    __slots__ = ("capture_non_tensor_stack", "get_defaults_to_none", "lazy_legacy", "list_to_stack", "unbatched")

    def __init__(self) -> None:
        self.get_defaults_to_none = _from_environment("TDLITE_GET_DEFAULTS_TO_NONE", True)
        self.list_to_stack = _from_environment("TDLITE_LIST_TO_STACK", True)
        self.capture_non_tensor_stack = _from_environment("TDLITE_CAPTURE_NON_TENSOR_STACK", False)
        self.lazy_legacy = _from_environment("TDLITE_LAZY_LEGACY", False)
        self.unbatched = False
        """Whether any tree has ever held an UnbatchedTensor: until then, reads need not look for one."""


def _from_environment(name: str, default: bool) -> bool:
    value = os.environ.get(name)
    return default if value is None else value.strip().lower() in ("1", "true", "yes", "on")


settings = Settings()


class Block:
    """A change of settings: a context manager, which may be entered many times, and a decorator."""

    def __init__(self) -> None:
        self._saved: list[Any] = []

    def _begin(self) -> Any:
        """Make the change; return what :meth:`_end` needs to take it back."""
        raise NotImplementedError

    def _end(self, before: Any) -> None:
        raise NotImplementedError

    def __enter__(self) -> None:
        self._saved.append(self._begin())

    def __exit__(self, *exc: object) -> None:
        self._end(self._saved.pop())

    def clone(self) -> Self:
        """Another block with the same value, not entered."""
        new = copy.copy(self)
        new._saved = []
        return new

    def __call__(self, fn: F) -> F:
        """Decorate a function: the change lasts while it runs."""

        @functools.wraps(fn)
        def within(*args: Any, **kwargs: Any) -> Any:
            with self.clone():  # each call, possibly in several threads, has its own block
                return fn(*args, **kwargs)

        return within  # type: ignore[return-value]


class _Setting(Block):
    """Sets one value, for a while or permanently with :meth:`set`."""

    _field: str
    _explicit: set[str] = set()  # the settings that were set

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self._mode = bool(mode)

    def set(self) -> None:
        """Make the value permanent for this process."""
        self._explicit.add(self._field)
        setattr(settings, self._field, self._mode)

    def _begin(self) -> tuple[bool, bool]:
        before = (getattr(settings, self._field), self._field in self._explicit)
        self.set()
        return before

    def _end(self, before: tuple[bool, bool]) -> None:
        value, explicit = before
        setattr(settings, self._field, value)
        if not explicit:
            self._explicit.discard(self._field)


class set_get_defaults_to_none(_Setting):
    """Whether :meth:`TensorDict.get` returns ``None`` for a missing key (default) or raises KeyError.

    A plain call takes effect at once and permanently; a ``with`` statement restores the previous value.

    Example:
        >>> with set_get_defaults_to_none(True):
        ...     TensorDict().get("missing") is None
        True
    """

    _field = "get_defaults_to_none"

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        self._before = super()._begin()

    def _begin(self) -> tuple[bool, bool]:
        self.set()
        return self._before

    def clone(self) -> Self:
        return type(self)(self._mode)


class set_list_to_stack(_Setting):
    """Whether a list assigned to a key is stacked along the batch dimensions."""

    _field = "list_to_stack"


class set_capture_non_tensor_stack(_Setting):
    """Whether stacking equal non-tensor values keeps a stack (False) or one shared value (True)."""

    _field = "capture_non_tensor_stack"


class set_lazy_legacy(_Setting):
    """Whether ``torch.stack`` and similar functions create lazy stacks, as old releases did. Deprecated.

    Views (``view``, ``permute``, ``squeeze``, ``unsqueeze``) are not affected.
    """

    _field = "lazy_legacy"

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        if mode:
            warnings.warn(
                "The legacy lazy mode, turned on with set_lazy_legacy(True), is deprecated: call lazy_stack() where a "
                "lazy stack is wanted",
                DeprecationWarning,
                stacklevel=2,
            )


def _current(field: str, allow_none: bool) -> bool | None:
    if allow_none and field not in _Setting._explicit:
        return None
    value: bool = getattr(settings, field)
    return value


def get_defaults_to_none(allow_none: bool = False) -> bool | None:
    """Current value of :class:`set_get_defaults_to_none`; ``None`` if it was not set and ``allow_none``."""
    return _current("get_defaults_to_none", allow_none)


def list_to_stack(allow_none: bool = False) -> bool | None:
    """Current value of :class:`set_list_to_stack`; ``None`` if it was not set and ``allow_none``."""
    return _current("list_to_stack", allow_none)


def capture_non_tensor_stack(allow_none: bool = False) -> bool | None:
    """Current value of :class:`set_capture_non_tensor_stack`; ``None`` if it was not set and ``allow_none``."""
    return _current("capture_non_tensor_stack", allow_none)


def lazy_legacy(allow_none: bool = False) -> bool | None:
    """Current value of :class:`set_lazy_legacy`; ``None`` if it was not set and ``allow_none``."""
    return _current("lazy_legacy", allow_none)
