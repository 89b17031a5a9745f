"""Print options, and the entries of a collection in print order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tensordict_lite.kernel import DeviceLike
from tensordict_lite.settings import Block

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection

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
# Options of the detailed form: setting one selects that form.
_DETAILED = frozenset(
    "show_is_shared show_shape show_field_device show_field_is_shared show_grad show_is_contiguous show_is_view "
    "show_storage_size plain".split()
)
_QUIET = ("show_device", "show_is_shared", "show_field_device", "show_dtype", "show_field_is_shared")
options = dict(_DEFAULTS)

SHORT_DTYPES: dict[torch.dtype, str] = {
    torch.bool: "bool",
    torch.bfloat16: "bf16",
    **{getattr(torch, f"float{n}"): f"f{n}" for n in (16, 32, 64)},
    **{getattr(torch, f"complex{n}"): f"c{n}" for n in (32, 64, 128)},
    **{getattr(torch, f"int{n}"): f"i{n}" for n in (8, 16, 32, 64)},
    **{getattr(torch, f"uint{n}"): f"u{n}" for n in (8, 16, 32, 64)},
}


class set_printoptions(Block):
    """What ``repr`` of a collection shows: in a ``with`` block, a decorated function, or permanently (:meth:`set`).

    Args:
        verbose: ``False`` hides devices, dtypes and whether memory is shared.
        **kwargs: ``show_batch_size``, ``show_device``, ``show_dtype``, ``sort_keys`` (``"alphabetical"`` or
            ``False``), ``compact``, ``html``; and options of the detailed form, each of which selects that form:
            ``show_is_shared``, ``show_shape``, ``show_field_device``, ``show_field_is_shared``, ``show_grad``,
            ``show_is_contiguous``, ``show_is_view``, ``show_storage_size`` and ``plain`` (statistics).

    Raises:
        TypeError: an unknown option.

    Example:
        >>> with set_printoptions(compact=False, verbose=False):
        ...     print(TensorDict(a=torch.zeros(3), batch_size=[3]))
        TensorDict(
            fields={
                a: Tensor(shape=torch.Size([3]))},
            batch_size=torch.Size([3]))
    """

    def __init__(self, *, verbose: bool = True, **kwargs: Any) -> None:
        super().__init__()
        unknown = sorted(set(kwargs) - set(_DEFAULTS))
        if unknown:
            raise TypeError(f"unknown print options {unknown}: expected any of {sorted(_DEFAULTS)}")
        self._changes = {} if verbose else dict.fromkeys(_QUIET, False)
        self._changes.update(kwargs)
        if "compact" not in kwargs and _DETAILED & set(kwargs):
            self._changes["compact"] = False

    def set(self) -> None:
        """Apply the options for the rest of the program."""
        options.update(self._changes)

    def _begin(self) -> dict[str, Any]:
        before = dict(options)
        self.set()
        return before

    def _end(self, before: dict[str, Any]) -> None:
        options.update(before)


def get_printoptions() -> dict[str, Any]:
    """The current print options.

    Example:
        >>> get_printoptions()["show_dtype"]
        True
    """
    return dict(options)


# -- entries ------------------------------------------------------------------------------------------------


def fields_of(td: Any) -> Iterator[tuple[str, Any]]:
    """Entries in print order, followed by unset fields of a tensorclass as ``None``."""
    entries: Any = _shared_entries(td)
    if options["sort_keys"]:
        # Compared with a colon appended: "a1" comes before "a", as in the reference.
        entries = sorted(entries, key=lambda item: item[0] + ":")
    if is_tensorclass(td):
        entries = [*entries, *((name, None) for name in td._none_fields())]
    return iter(entries)


def is_tensorclass(td: Any) -> bool:
    return hasattr(type(td), "_field_specs")


def _shared_entries(td: TensorCollection) -> list[tuple[str, Any]]:
    """Entries; for a lazy stack those of all members, with a shape instead of a value if shapes differ."""
    if type(td._source) is dict:
        return list(td._source.items())
    return [(key, _entry_of(td, key)) for key in td._key_list()]


def _entry_of(td: TensorCollection, key: str) -> Any:
    """An entry of a stack, which may consist of ragged stacks."""
    try:
        return td._get_str(key)
    except (RuntimeError, TypeError):  # members that do not stack
        first = _entry_of(td._source[0], key)
        try:
            shape = td.get_item_shape(key)
        except (RuntimeError, TypeError):  # different numbers of dimensions, or kinds
            shape = torch.Size((*td._batch_size, -1))
        return RaggedShape(first.first if isinstance(first, RaggedShape) else first, shape)


@dataclass
class RaggedShape:
    """An entry of a lazy stack whose members have different shapes: -1 in dimensions that differ."""

    first: Any
    shape: torch.Size


def exclusive_entries(td: TensorCollection) -> list[tuple[int, dict[str, Any]]]:
    """For a lazy stack, the entries of each member that not all members have."""
    if type(td._source) is dict or not td._source or is_tensorclass(td):
        return []
    common = set(td._key_list())
    out = []
    for i, member in enumerate(td._source):
        own = {key: _entry_of(member, key) for key in sorted(member._key_list()) if key not in common}
        if own:
            out.append((i, own))
    return out


def dimensions(shape: Any) -> str:
    return f"[{','.join(str(n) for n in shape)}]"


def tensor_field(value: Tensor, shape: Any, device: DeviceLike | None) -> str:
    text = dimensions(shape)
    if options["show_dtype"]:
        text = SHORT_DTYPES.get(value.dtype, str(value.dtype).removeprefix("torch.").replace("float", "f")) + text
    if options["show_device"] and value.device.type != "cpu" and value.device != device:
        text += f"@{value.device}"
    return text


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def bytes_text(count: float) -> str:
    """Write a number of bytes for people.

    Example:
        >>> bytes_text(12), bytes_text(1_572_864), bytes_text(1000 << 10)
        ('12 B', '1.5 MiB', '1000.0 KiB')
    """
    count = int(count)
    scale = max(0, min((count.bit_length() - 1) // 10, len(_UNITS) - 1))
    return f"{count} B" if not scale else f"{count / (1 << 10 * scale):.1f} {_UNITS[scale]}"
