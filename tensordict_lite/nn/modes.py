"""Process-wide settings that a block of code changes, for all threads or for its own.

::

    Setting  the value: one for the process, and one for each thread inside a ``thread_local`` block
    Mode     the block: a context manager and a decorator around a :class:`Setting`
"""

from __future__ import annotations

from threading import get_ident
from typing import Any

from tensordict_lite.settings import MISSING, Block

__all__ = ["Mode", "Setting"]


class Setting:
    """A process-wide value, which a thread may override in such a block."""

    __slots__ = ("_shared", "_threads")

    def __init__(self, value: object) -> None:
        self._shared = value
        self._threads: dict[int, Any] = {}

    def get(self) -> Any:
        """The current value."""
        return self._threads.get(get_ident(), self._shared) if self._threads else self._shared

    def enter(self, value: Any, thread_local: bool) -> tuple[int | None, Any]:
        """Set the value; return what :meth:`leave` needs to restore the previous one."""
        me = get_ident() if thread_local or self._threads else None
        if me is not None and (thread_local or me in self._threads):
            before = self._threads.get(me, MISSING)
            self._threads[me] = value
            return me, before
        before = self._shared
        self._shared = value
        return None, before

    def leave(self, token: tuple[int | None, Any]) -> None:
        """Restore the value before :meth:`enter`."""
        thread, before = token
        if thread is None:
            self._shared = before
        elif before is MISSING:
            self._threads.pop(thread, None)
        else:
            self._threads[thread] = before


class Mode(Block):
    """Base of the blocks; a subclass names its setting."""

    _setting: Setting

    def __init__(self, value: object, thread_local: bool) -> None:
        super().__init__()
        self._value = value
        self._thread_local = thread_local

    def _begin(self) -> tuple[int | None, Any]:
        return self._setting.enter(self._value, self._thread_local)

    def _end(self, before: tuple[int | None, Any]) -> None:
        self._setting.leave(before)

    def set(self) -> None:
        """Set the value until :meth:`unset` is called."""
        self.__enter__()

    def unset(self) -> None:
        """Restore the value before :meth:`set`.

        Raises:
            RuntimeError: :meth:`set` was not called before.
        """
        if not self._saved:
            raise RuntimeError(f"{type(self).__name__}.unset() takes back what set() set: set() was not called")
        self.__exit__()
