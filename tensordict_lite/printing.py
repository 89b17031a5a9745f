"""``repr`` of collections: a compact form of a few lines, and a detailed one.

The compact form gives every entry as its dtype and the dimensions after the batch size::

    TensorDict(batch_size=[3], fields={a: f32[4], b: {c: f32[1]}})

:class:`set_printoptions` switches to the detailed form and chooses what it shows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from tensordict_lite.strided import shape_of

__all__ = ["SHORT_DTYPES", "get_printoptions", "render", "set_printoptions"]

F = TypeVar("F", bound=Callable[..., Any])

_WIDTH = 80
_DEFAULTS: dict[str, Any] = {
    "show_batch_size": True,
    "show_device": True,
    "show_is_shared": True,
    "show_shape": True,
    "show_field_device": True,
    "show_dtype": True,
    "show_field_is_shared": True,
    "show_grad": False,
    "show_is_contiguous": False,
    "show_is_view": False,
    "show_storage_size": False,
    "plain": False,
    "sort_keys": "alphabetical",
    "compact": True,
    "html": True,
}
# Options that only the detailed form knows: asking for one switches to it.
_DETAILED = frozenset(
    "show_is_shared show_shape show_field_device show_field_is_shared show_grad show_is_contiguous show_is_view "
    "show_storage_size plain".split()
)
_QUIET = ("show_device", "show_is_shared", "show_field_device", "show_dtype", "show_field_is_shared")
_options = dict(_DEFAULTS)

SHORT_DTYPES: dict[torch.dtype, str] = {
    torch.bool: "bool",
    torch.bfloat16: "bf16",
    **{getattr(torch, f"float{n}"): f"f{n}" for n in (16, 32, 64)},
    **{getattr(torch, f"complex{n}"): f"c{n}" for n in (32, 64, 128)},
    **{getattr(torch, f"int{n}"): f"i{n}" for n in (8, 16, 32, 64)},
    **{getattr(torch, f"uint{n}"): f"u{n}" for n in (8, 16, 32, 64)},
}


class set_printoptions:
    """What ``repr`` of a collection shows: for a ``with`` block, a decorated function, or for good (:meth:`set`).

    Args:
        verbose: ``False`` hides devices, dtypes and whether memory is shared.
        **kwargs: ``show_batch_size``, ``show_device``, ``show_dtype``, ``sort_keys`` (``"alphabetical"`` or
            ``False``), ``compact``, ``html``; and for the detailed form, which each of these selects:
            ``show_is_shared``, ``show_shape``, ``show_field_device``, ``show_field_is_shared``, ``show_grad``,
            ``show_is_contiguous``, ``show_is_view``, ``show_storage_size`` and ``plain`` (statistics).

    Raises:
        TypeError: an unknown option.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> with set_printoptions(compact=False, verbose=False):
        ...     print(TensorDict(a=torch.zeros(3), batch_size=[3]))
        TensorDict(
            fields={
                a: Tensor(shape=torch.Size([3]))},
            batch_size=torch.Size([3]))
    """

    def __init__(self, *, verbose: bool = True, **kwargs: Any) -> None:
        unknown = sorted(set(kwargs) - set(_DEFAULTS))
        if unknown:
            raise TypeError(f"unknown print options {unknown}: expected any of {sorted(_DEFAULTS)}")
        self._changes = {} if verbose else dict.fromkeys(_QUIET, False)
        self._changes.update(kwargs)
        if "compact" not in kwargs and _DETAILED & set(kwargs):
            self._changes["compact"] = False
        self._saved: list[dict[str, Any]] = []

    def set(self) -> None:
        """Applies the options for the rest of the program."""
        _options.update(self._changes)

    def __enter__(self) -> None:
        self._saved.append(dict(_options))
        self.set()

    def __exit__(self, *exc: object) -> None:
        _options.update(self._saved.pop())

    def __call__(self, fn: F) -> F:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self:
                return fn(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


def get_printoptions() -> dict[str, Any]:
    """The current print options.

    Example:
        >>> get_printoptions()["show_dtype"]
        True
    """
    return dict(_options)


def render(td: Any) -> str:
    """The text of ``repr(td)``, in the form that :class:`set_printoptions` chose."""
    return _compact(td) if _options["compact"] else _detailed(td)


# -- what both forms read -----------------------------------------------------------------------------------


def _fields(td: Any) -> Iterator[tuple[str, Any]]:
    """Entries in the order to print; the fields of a tensorclass that hold nothing follow as ``None``."""
    entries: Any = _shared_entries(td)
    if _options["sort_keys"]:
        # The colon counts: "a1" comes before "a", as in every printed form of the interface.
        entries = sorted(entries, key=lambda item: item[0] + ":")
    if _is_tensorclass(td):
        entries = [*entries, *((name, None) for name in td._none_fields())]
    return iter(entries)


def _is_tensorclass(td: Any) -> bool:
    return hasattr(type(td), "_field_specs")


def _shared_entries(td: Any) -> list[tuple[str, Any]]:
    """Entries; for a lazy stack those of all members, with a shape instead of a value where shapes differ."""
    if type(td._source) is dict:
        return list(td._source.items())
    out = []
    for key in td._key_list():
        try:
            out.append((key, td._get_str(key)))
        except RuntimeError:  # members that do not stack
            try:
                shape = td.get_item_shape(key)
            except RuntimeError:  # of different numbers of dimensions, even
                shape = torch.Size((*td._batch_size, -1))
            out.append((key, _Ragged(td._source[0]._get_str(key), shape)))
    return out


@dataclass
class _Ragged:
    """An entry of a lazy stack whose members have different shapes: -1 where they differ."""

    first: Any
    shape: torch.Size


def _exclusive(td: Any) -> list[tuple[int, dict[str, Any]]]:
    """For a lazy stack, the entries of each member that the others do not all have."""
    if type(td._source) is dict or not td._source or _is_tensorclass(td):
        return []
    common = set(td._key_list())
    out = []
    for i, member in enumerate(td._source):
        own = {key: member._get_str(key) for key in sorted(member._key_list()) if key not in common}
        if own:
            out.append((i, own))
    return out


# -- compact --------------------------------------------------------------------------------------------------


@dataclass
class _Block:
    """``head{key: value, ...}``, on one line or one line an item."""

    head: str
    items: list[tuple[str, str | _Block]]

    def flat(self) -> str:
        inner = ", ".join(f"{key}: {value if isinstance(value, str) else value.flat()}" for key, value in self.items)
        return f"{self.head}{{{inner}}}"

    def lay_out(self, indent: int, column: int, trailing: int) -> str:
        """Text for a start at ``column``, when ``trailing`` more characters must fit behind it."""
        flat = self.flat()
        if not self.items or column + len(flat) + trailing <= _WIDTH:
            return flat
        pad = " " * (indent + 4)
        lines = []
        for i, (key, value) in enumerate(self.items):
            text = f"{pad}{key}: "
            if isinstance(value, str):
                text += value
            else:
                behind = 1 if i < len(self.items) - 1 else 1 + trailing
                text += value.lay_out(indent + 4, len(text), behind)
            lines.append(text)
        return f"{self.head}{{\n" + ",\n".join(lines) + "}"


def _compact(td: Any) -> str:
    head = []
    if _options["show_batch_size"]:
        head.append(f"batch_size={_dimensions(td._batch_size)}")
    if _options["show_device"] and td.device is not None:
        head.append(f"device={td.device}")
    if type(td._source) is not dict and not _is_tensorclass(td):
        head.append(f"stack_dim={td._stack_dim}")
    start = f"{type(td).__name__}({', '.join([*head, 'fields='])}"
    fields = _block(td, "", td.batch_dims, td.device)
    exclusive = _exclusive(td)
    if not exclusive:
        return start + fields.lay_out(0, len(start), 1) + ")"
    more = _Block("", [(str(i), _member_block(own, td.batch_dims - 1)) for i, own in exclusive])
    text = start + fields.lay_out(0, len(start), len(", exclusive_fields=") + len(more.flat()) + 1)
    text += ", exclusive_fields="
    return text + more.lay_out(0, len(text) - text.rfind("\n") - 1, 1) + ")"


def _block(td: Any, head: str, dims: int, device: Any) -> _Block:
    return _Block(head, [(key, _field(value, dims, device, td)) for key, value in _fields(td)])


def _member_block(own: dict[str, Any], dims: int) -> _Block:
    return _Block("", [(key, _field(value, dims, None)) for key, value in own.items()])


def _field(value: Any, dims: int, device: Any, parent: Any = None) -> str | _Block:
    if isinstance(value, _Ragged):
        if not isinstance(value.first, Tensor):
            return type(value.first).__name__
        return _tensor_field(value.first, value.shape[dims:], device)
    if isinstance(value, Tensor):
        return _tensor_field(value, shape_of(value)[dims:], device)
    if value is None:
        return "None"
    if not hasattr(value, "_entries"):
        return type(value).__name__
    in_stack = parent is not None and isinstance(parent._source, list)
    if value._is_unbatched:
        return _tensor_field(value._plain(), value._payload.shape, device)
    if value._is_non_tensor:
        if not in_stack and hasattr(value, "_payloads"):
            return type(value).__name__
        while in_stack and isinstance(value._source, list) and value._source:
            value = value._source[0]  # the stack is the parent: what counts is what a member holds
        shown = value._payload if type(value._source) is dict and not hasattr(value, "_parameter") else value
        return type(shown).__name__
    bare = in_stack and isinstance(value._source, list) and not _is_tensorclass(value)
    plain = type(value) is value._plain_class() or bare
    extra = value.batch_size[dims:]
    head = ("" if plain else type(value).__name__) + (_dimensions(extra) if extra else "")
    return _block(value, head, value.batch_dims, value.device if value.device is not None else device)


def _dimensions(shape: Any) -> str:
    return f"[{','.join(str(n) for n in shape)}]"


def _tensor_field(value: Tensor, shape: Any, device: Any) -> str:
    text = _dimensions(shape)
    if _options["show_dtype"]:
        text = SHORT_DTYPES.get(value.dtype, str(value.dtype).removeprefix("torch.").replace("float", "f")) + text
    if _options["show_device"] and value.device.type != "cpu" and value.device != device:
        text += f"@{value.device}"
    return text


# -- detailed ---------------------------------------------------------------------------------------------------


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")


def _detailed(td: Any) -> str:
    parts = []
    if _is_tensorclass(td):
        parts.extend(f"{key}={_detailed_field(value)}" for key, value in _fields(td))
    else:
        fields = [f"\n    {key}: {_indented(_detailed_field(value))}" for key, value in _fields(td)]
        parts.append("fields={" + (",".join(fields) if fields else "\n") + "}")
    lazy = type(td._source) is not dict
    if lazy:
        members = []
        for i, own in _exclusive(td):
            lines = [f"\n        {key}: {_indented(_indented(_detailed_field(value)))}" for key, value in own.items()]
            members.append(f"\n    {i} ->" + ",".join(lines))
        parts.append("exclusive_fields={" + (",".join(members) if members else "\n") + "}")
    if _options["show_batch_size"]:
        parts.append(f"batch_size={td.batch_size}")
    if _options["show_device"]:
        parts.append(f"device={td.device}")
    if _options["show_is_shared"]:
        parts.append(f"is_shared={td.is_shared()}")
    if lazy:
        parts.append(f"stack_dim={td._stack_dim}")
    return f"{type(td).__name__}(\n    " + ",\n    ".join(_indented(part) for part in parts) + ")"


def _detailed_field(value: Any) -> str:
    if isinstance(value, _Ragged):
        return _detailed_tensor(value.first, value.shape) if isinstance(value.first, Tensor) else repr(value.first)
    if isinstance(value, Tensor):
        return _detailed_tensor(value, value.shape)
    return repr(value)


def _detailed_tensor(value: Tensor, shape: Any) -> str:
    shown = [
        ("show_shape", "shape", lambda: torch.Size(shape)),
        ("show_field_device", "device", lambda: value.device),
        ("show_dtype", "dtype", lambda: value.dtype),
        ("show_field_is_shared", "is_shared", value.is_shared),
        ("show_grad", "requires_grad", lambda: value.requires_grad),
        ("show_is_contiguous", "is_contiguous", value.is_contiguous),
        ("show_is_view", "is_view", lambda: value._is_view()),
        ("show_storage_size", "storage_size", lambda: value.untyped_storage().nbytes()),
    ]
    parts = [f"{name}={read()}" for option, name, read in shown if _options[option]]
    if _options["plain"]:
        parts.append(_statistics(value.detach()))
    return f"{type(value).__name__}({', '.join(parts)})"


def _statistics(value: Tensor) -> str:
    """Range of integers and bools, mean and standard deviation of the rest."""
    if not value.numel():
        return "[]"
    if not value.is_floating_point() and not value.is_complex():
        return f"min={value.min().item()}, max={value.max().item()}"
    mean = value.mean().item()
    spread = value.std().item() if value.numel() > 1 else float("nan")
    return f"mean={mean:.4g}, std={spread:.4g}"
