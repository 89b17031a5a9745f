"""Nested keys: ``"a"``, ``("a", "b")`` and any nesting of tuples that unravels to them.

Public functions accept the loose spelling ``(("a",), ("b", ("c",)))`` and convert it to the canonical one: a plain
string for one level, a flat tuple of strings otherwise. Results are cached, because a program uses few keys very often.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, Union

NestedKey = Union[str, tuple["NestedKey", ...]]  # noqa: UP007 - a string in it

KEY_SEPARATOR = "."
"""Between the parts of a key in the names of files, state dicts and flattened trees."""

# Bounded, so that a program that generates keys does not leak; clearing costs one refill.
_CACHE_LIMIT = 8192
_tuple_cache: dict[tuple[Any, ...], tuple[str, ...]] = {}


def _flatten(key: tuple[Any, ...], out: list[str]) -> bool:
    for part in key:
        if isinstance(part, str):
            out.append(part)
        elif isinstance(part, tuple):
            if not _flatten(part, out):
                return False
        else:
            return False
    return True


def path_of(key: tuple[Any, ...]) -> tuple[str, ...]:
    """Flat path of a tuple key, or ``()`` if the tuple is not a key (but an index, for example).

    The empty tuple stands for "not a key", so that callers only test its truth.
    """
    try:
        return _tuple_cache[key]
    except KeyError:
        pass
    except TypeError:  # unhashable part (slice, list): an index, not a key
        return ()
    out: list[str] = []
    if not _flatten(key, out):
        return ()
    if len(_tuple_cache) >= _CACHE_LIMIT:
        _tuple_cache.clear()
    path = _tuple_cache[key] = tuple(out)
    return path


def unravel_key_to_tuple(key: Any) -> tuple[str, ...]:
    """Flat tuple of strings for ``key``; ``()`` when it is not a nested key.

    Example:
        >>> unravel_key_to_tuple(("a", ("b", ("c",))))
        ('a', 'b', 'c')
        >>> unravel_key_to_tuple("a")
        ('a',)
    """
    if isinstance(key, str):
        return (key,)
    if isinstance(key, tuple):
        return path_of(key)
    return ()


def unravel_key(key: NestedKey) -> NestedKey:
    """Canonical form of a nested key: a string for one level, a flat tuple otherwise.

    A tuple that is not a key (but an index, for example) gives ``()``.

    Raises:
        RuntimeError: ``key`` is neither a string nor a tuple.

    Example:
        >>> unravel_key(("a", ("b",)))
        ('a', 'b')
        >>> unravel_key((("a",),))
        'a'
    """
    if isinstance(key, str):
        return key
    if not isinstance(key, tuple):
        raise RuntimeError(_not_a_key(key))
    path = path_of(key)
    return path[0] if len(path) == 1 else path


def unravel_key_list(keys: Iterable[Any]) -> list[NestedKey]:
    """:func:`unravel_key` over a list or tuple of keys.

    Example:
        >>> unravel_key_list(["a", ("b", ("c",))])
        ['a', ('b', 'c')]
    """
    if isinstance(keys, str):
        raise TypeError("unravel_key_list() expects a sequence of keys, got the string " + repr(keys))
    return [unravel_key(key) for key in keys]


def require_path(key: NestedKey) -> tuple[str, ...]:
    """Flat path of ``key``, or a KeyError that explains valid keys."""
    path = path_of(key) if type(key) is tuple else unravel_key_to_tuple(key)
    if not path:
        raise KeyError(_not_a_key(key))
    return path


def _not_a_key(key: object) -> str:
    return (
        "Only NestedKeys are supported: a key must be a string or a non-empty, possibly nested tuple of strings; got "
        f"{key!r}"
    )


def missing_key_error(key: Any, available: Sequence[Any], owner: str = "TensorDict") -> KeyError:
    """KeyError for ``key`` that lists the existing keys and suggests the closest."""
    names = [name if isinstance(name, str) else ".".join(name) for name in available]
    wanted = key if isinstance(key, str) else ".".join(key)
    close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.6)
    hint = f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    shown = sorted(names)[:20]
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return KeyError(f'key "{wanted}" not found in {owner} with keys {shown}{more}.{hint}')
