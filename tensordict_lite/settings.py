"""Process-wide settings and the context managers that change them temporarily."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

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


class _SettingContext:
    """Sets one value, as a context manager, a decorator, or permanently with :meth:`set`."""

    _field: str
    _explicit: set[str] = set()  # the settings that were set

    def __init__(self, mode: bool) -> None:
        self._mode = bool(mode)
        self._saved: list[tuple[bool, bool]] = []

    def set(self) -> None:
        """Make the value permanent for this process."""
        self._explicit.add(self._field)
        setattr(settings, self._field, self._mode)

    def __enter__(self) -> None:
        self._saved.append((getattr(settings, self._field), self._field in self._explicit))
        self.set()

    def __exit__(self, *exc: object) -> None:
        value, explicit = self._saved.pop()
        setattr(settings, self._field, value)
        if not explicit:
            self._explicit.discard(self._field)

    def __call__(self, fn: F) -> F:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return fn(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    def _again(self) -> _SettingContext:
        return type(self)(self._mode)


class set_get_defaults_to_none(_SettingContext):
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
        self._before = (settings.get_defaults_to_none, self._field in self._explicit)
        self.set()

    def __enter__(self) -> None:
        self._saved.append(self._before)
        self.set()


class set_list_to_stack(_SettingContext):
    """Whether a list assigned to a key is stacked along the batch dimensions."""

    _field = "list_to_stack"


class set_capture_non_tensor_stack(_SettingContext):
    """Whether stacking equal non-tensor values keeps a stack (False) or one shared value (True)."""

    _field = "capture_non_tensor_stack"


class set_lazy_legacy(_SettingContext):
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

    def _again(self) -> _SettingContext:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a warning was given at its creation
            return set_lazy_legacy(self._mode)


def _current(field: str, allow_none: bool) -> bool | None:
    if allow_none and field not in _SettingContext._explicit:
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
