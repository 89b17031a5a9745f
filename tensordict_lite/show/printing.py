"""``repr`` of collections: a compact form of a few lines, and a detailed one.

The compact form prints the dtype of every entry and its dimensions after the batch size::

    TensorDict(batch_size=[3], fields={a: f32[4], b: {c: f32[1]}})

:class:`set_printoptions` selects the detailed form and its content.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tensordict_lite.kernel import Kernel
from tensordict_lite.show.html import render_html
from tensordict_lite.show.options import (
    SHORT_DTYPES,
    RaggedShape,
    dimensions,
    exclusive_entries,
    fields_of,
    get_printoptions,
    is_tensorclass,
    options,
    set_printoptions,
    tensor_field,
)
from tensordict_lite.strided import shape_of

__all__ = ["SHORT_DTYPES", "get_printoptions", "render", "render_html", "set_printoptions"]

_WIDTH = 80


def render(td: Any) -> str:
    """The text of ``repr(td)``, in the form selected by :class:`set_printoptions`."""
    return _compact(td) if options["compact"] else _detailed(td)


# -- compact --------------------------------------------------------------------------------------------------


@dataclass
class _Block:
    """``head{key: value, ...}``, on one line or one line per item."""

    head: str
    items: list[tuple[str, str | _Block]]

    def flat(self) -> str:
        inner = ", ".join(f"{key}: {value if isinstance(value, str) else value.flat()}" for key, value in self.items)
        return f"{self.head}{{{inner}}}"

    def lay_out(self, indent: int, column: int, trailing: int) -> str:
        """Text that starts at ``column`` with ``trailing`` more characters after it."""
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
    if options["show_batch_size"]:
        head.append(f"batch_size={dimensions(td._batch_size)}")
    if options["show_device"] and td.device is not None:
        head.append(f"device={td.device}")
    if type(td._source) is not dict and not is_tensorclass(td):
        head.append(f"stack_dim={td._stack_dim}")
    start = f"{type(td).__name__}({', '.join([*head, 'fields='])}"
    fields = _block(td, "", td.batch_dims, td.device)
    exclusive = exclusive_entries(td)
    if not exclusive:
        return start + fields.lay_out(0, len(start), 1) + ")"
    more = _Block("", [(str(i), _member_block(own, td.batch_dims - 1)) for i, own in exclusive])
    text = start + fields.lay_out(0, len(start), len(", exclusive_fields=") + len(more.flat()) + 1)
    text += ", exclusive_fields="
    return text + more.lay_out(0, len(text) - text.rfind("\n") - 1, 1) + ")"


def _block(td: Any, head: str, dims: int, device: Any) -> _Block:
    return _Block(head, [(key, _field(value, dims, device, td)) for key, value in fields_of(td)])


def _member_block(own: dict[str, Any], dims: int) -> _Block:
    return _Block("", [(key, _field(value, dims, None)) for key, value in own.items()])


def _field(value: Any, dims: int, device: Any, parent: Any = None) -> str | _Block:
    if isinstance(value, RaggedShape):
        if not isinstance(value.first, Tensor):
            return type(value.first).__name__
        return tensor_field(value.first, value.shape[dims:], device)
    if isinstance(value, Tensor):
        return tensor_field(value, shape_of(value)[dims:], device)
    if value is None:
        return "None"
    if not isinstance(value, Kernel):
        return type(value).__name__
    in_stack = parent is not None and isinstance(parent._source, list)
    if value._is_unbatched:
        return tensor_field(value._plain(), value._payload.shape, device)
    if value._is_non_tensor:
        if not in_stack and hasattr(value, "_payloads"):
            return type(value).__name__
        while in_stack and isinstance(value._source, list) and value._source:
            value = value._source[0]  # the stack is the parent: use the size in a member
        shown = value._payload if type(value._source) is dict and not hasattr(value, "_parameter") else value
        return type(shown).__name__
    bare = in_stack and isinstance(value._source, list) and not is_tensorclass(value)
    plain = type(value) is value._plain_class() or bare
    extra = value.batch_size[dims:]
    head = ("" if plain else type(value).__name__) + (dimensions(extra) if extra else "")
    return _block(value, head, value.batch_dims, value.device if value.device is not None else device)


# -- detailed ---------------------------------------------------------------------------------------------------


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")


def _detailed(td: Any) -> str:
    parts: list[str] = []
    if is_tensorclass(td):
        parts.extend(f"{key}={_detailed_field(value)}" for key, value in fields_of(td))
    else:
        fields = [f"\n    {key}: {_indented(_detailed_field(value))}" for key, value in fields_of(td)]
        parts.append("fields={" + (",".join(fields) if fields else "\n") + "}")
    lazy = type(td._source) is not dict
    if lazy:
        members = []
        for i, own in exclusive_entries(td):
            lines = [f"\n        {key}: {_indented(_indented(_detailed_field(value)))}" for key, value in own.items()]
            members.append(f"\n    {i} ->" + ",".join(lines))
        parts.append("exclusive_fields={" + (",".join(members) if members else "\n") + "}")
    if options["show_batch_size"]:
        parts.append(f"batch_size={td.batch_size}")
    if options["show_device"]:
        parts.append(f"device={td.device}")
    if options["show_is_shared"]:
        parts.append(f"is_shared={td.is_shared()}")
    if lazy:
        parts.append(f"stack_dim={td._stack_dim}")
    return f"{type(td).__name__}(\n    " + ",\n    ".join(_indented(part) for part in parts) + ")"


def _detailed_field(value: Any) -> str:
    if isinstance(value, RaggedShape):
        return _detailed_tensor(value.first, value.shape) if isinstance(value.first, Tensor) else repr(value.first)
    if isinstance(value, Tensor):
        return _detailed_tensor(value, value.shape)
    return repr(value)


def _detailed_tensor(value: Tensor, shape: Any) -> str:
    shown: list[tuple[str, str, Callable[[], Any]]] = [
        ("show_shape", "shape", lambda: torch.Size(shape)),
        ("show_field_device", "device", lambda: value.device),
        ("show_dtype", "dtype", lambda: value.dtype),
        ("show_field_is_shared", "is_shared", value.is_shared),
        ("show_grad", "requires_grad", lambda: value.requires_grad),
        ("show_is_contiguous", "is_contiguous", value.is_contiguous),
        ("show_is_view", "is_view", lambda: value._is_view()),
        ("show_storage_size", "storage_size", lambda: value.untyped_storage().nbytes()),
    ]
    parts = [f"{name}={read()}" for option, name, read in shown if options[option]]
    if options["plain"]:
        parts.append(_statistics(value.detach()))
    return f"{type(value).__name__}({', '.join(parts)})"


def _statistics(value: Tensor) -> str:
    """Range of integers and bools, mean and standard deviation of other dtypes."""
    if not value.numel():
        return "[]"
    if not value.is_floating_point() and not value.is_complex():
        return f"min={value.min().item()}, max={value.max().item()}"
    mean = value.mean().item()
    spread = value.std().item() if value.numel() > 1 else float("nan")
    return f"mean={mean:.4g}, std={spread:.4g}"
