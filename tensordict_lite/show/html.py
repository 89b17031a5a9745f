"""A collection in a notebook: the tree of its entries, with their sizes, and images.

Colours derive from that of the page (``currentColor``, lighter for less important parts), so that light and dark themes
both work. Only displayed rows are read.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any

import torch
from torch import Tensor

from tensordict_lite.kernel import Kernel
from tensordict_lite.show.options import (
    RaggedShape,
    bytes_text,
    exclusive_entries,
    fields_of,
    get_printoptions,
    tensor_field,
)
from tensordict_lite.strided import shape_of

MOST_ENTRIES = 40
"""Maximum number of displayed entries per level; of others, the number is shown."""

MOST_LEVELS = 8
"""Maximum number of displayed levels."""

PICTURES = 6
"""Maximum number of displayed images per entry."""

EDGE = 56
"""Their maximum height and width in pixels."""

_STYLE = """<style>
.tdl-tree {font-family: monospace; font-size: 13px; line-height: 1.5; color: inherit}
.tdl-tree ul {list-style: none; margin: 0 0 0 .55em; padding: 0 0 0 .9em; border-left: 1px solid rgba(127,127,127,.35)}
.tdl-tree li {margin: 0; padding: 0}
.tdl-tree summary {cursor: pointer}
.tdl-tree .tdl-less {opacity: .65}
.tdl-tree img {height: 56px; margin: 2px 4px 2px 0; vertical-align: middle; image-rendering: pixelated;
 border: 1px solid rgba(127,127,127,.35)}
</style>"""


def render_html(td: Any) -> str | None:
    """HTML of a collection; ``None`` if :class:`~tensordict_lite.set_printoptions` has ``html=False``.

    Example:
        >>> page = render_html(TensorDict({"pixels": torch.zeros(8, 3, 32, 32, dtype=torch.uint8)}, [8]))
        >>> "u8[3,32,32]" in page, "24.0 KiB" in page
        (True, True)
    """
    if not get_printoptions()["html"]:
        return None
    return f'{_STYLE}<div class="tdl-tree">{_tree(td, td.batch_dims, td.device, 0)}</div>'


def _tree(td: Any, dims: int, device: Any, level: int, key: str | None = None) -> str:
    """One collection as a foldable element."""
    entries = list(fields_of(td))
    items = [_entry(name, value, dims, device, level + 1) for name, value in entries[:MOST_ENTRIES]]
    if len(entries) > MOST_ENTRIES:
        items.append(_less(f"and {len(entries) - MOST_ENTRIES:,} more"))
    for number, own in exclusive_entries(td)[:MOST_ENTRIES]:
        inner = "".join(
            f"<li>{_entry(name, value, max(dims - 1, 0), device, level + 1)}</li>" for name, value in own.items()
        )
        items.append(f"<details><summary>{_less(f'only in member {number}')}</summary><ul>{inner}</ul></details>")
    name = "" if key is None else f"{escape(key)}: "
    told = [f"batch_size=[{', '.join(str(n) for n in td._batch_size)}]"]
    if type(td._source) is list and not hasattr(type(td), "_field_specs"):
        told.append(f"stack_dim={td._stack_dim}")
    told.append(f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}")
    if level == 0:
        told += [bytes_text(_size(td)), *([str(td.device)] if td.device is not None else [])]
        told += [f"mapped from {td._memmap_path}"] if getattr(td, "_memmap_path", None) else []
        told += ["locked"] if td.is_locked else []
    head = f"{name}<b>{escape(type(td).__name__)}</b> {_less(', '.join(told))}"
    if not items:
        return head
    is_open = " open" if level == 0 or (level < 3 and len(entries) <= 12) else ""
    body = "".join(f"<li>{item}</li>" for item in items)
    return f"<details{is_open}><summary>{head}</summary><ul>{body}</ul></details>"


def _entry(key: str, value: Any, dims: int, device: Any, level: int) -> str:
    name = f"{escape(str(key))}: "
    if isinstance(value, RaggedShape):
        text = tensor_field(value.first, value.shape[dims:], device) if isinstance(value.first, Tensor) else "..."
        return name + _less(f"{text}, other shapes in other rows")
    if isinstance(value, Tensor):
        shape = shape_of(value)
        told = f"{tensor_field(value, shape[dims:], device)} · {bytes_text(_size(value))}"
        where = getattr(value, "filename", None) if type(value) is not Tensor else None
        title = f' title="{escape(str(where))}"' if where else ""
        return f'{name}<span class="tdl-less"{title}>{escape(told)}</span>{_pictures(value, dims)}'
    if value is None or not isinstance(value, Kernel):
        return name + _less("None" if value is None else type(value).__name__)
    if value._is_unbatched:
        return name + _less(f"{tensor_field(value._plain(), value._payload.shape, device)} for the whole batch")
    if value._is_non_tensor:
        return name + _objects(value)
    if level >= MOST_LEVELS:
        return name + _less(f"{type(value).__name__} ...")
    return _tree(value, value.batch_dims, value.device if value.device is not None else device, level, str(key))


def _objects(value: Any) -> str:
    """The object, or the first objects."""
    if hasattr(value, "_payloads"):
        rows = value._batch_size[0] if value._batch_size else 0
        first = value[:3].tolist() if rows else []
        shown = ", ".join(_short(item) for item in first) + (", ..." if rows > 3 else "")
        kinds = {type(item).__name__ for item in first}
        return f"{_less(kinds.pop() if len(kinds) == 1 else 'objects')} {_less(f'[{shown}]')}"
    return f"{_less(type(value._payload).__name__)} {_less(_short(value._payload))}"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # an object whose repr fails
        text = object.__repr__(value)
    return text if len(text) <= 32 else text[:31] + "…"


def _less(text: str) -> str:
    return f'<span class="tdl-less">{escape(text)}</span>'


def _size(value: Any) -> int:
    leaves = [value] if isinstance(value, Tensor) else value._leaves()
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves if leaf.layout is torch.strided)


# -- pictures -------------------------------------------------------------------------------------------------


def channels_at(shape: Sequence[int]) -> int | None:
    """Position of the channel dimension (of size 1, 3 or 4) if the shape after the batch looks like an image."""
    if len(shape) != 3 or min(shape) < 1:
        return None
    for at, (height, width) in ((0, shape[1:]), (2, shape[:2])):
        if shape[at] in (1, 3, 4) and min(height, width) >= 8 and max(height, width) <= 8192:
            return at
    return None


def _pictures(value: Tensor, dims: int) -> str:
    """The first rows as PNG if they look like images, are in readable memory, and Pillow is installed."""
    at = channels_at(value.shape[dims:])
    is_byte = value.dtype is torch.uint8
    if at is None or not value.numel() or value.device.type != "cpu" or not (is_byte or value.is_floating_point()):
        return ""
    try:
        from PIL import Image
    except ImportError:
        return ""
    drawn = []
    for row in _first_rows(value, dims):
        pixels = row.detach().as_subclass(Tensor)
        pixels = pixels.permute(1, 2, 0) if at == 0 else pixels
        step = max(1, -(-max(pixels.shape[:2]) // (2 * EDGE)))
        pixels = pixels[::step, ::step]
        if not is_byte:
            pixels = pixels.float()
            low, high = pixels.aminmax()
            if not 0 <= low <= high <= 1:  # and not NaN
                return ""
            pixels = (pixels * 255).to(torch.uint8)
        array = pixels.contiguous().numpy()
        file = io.BytesIO()
        Image.fromarray(array[..., 0] if array.shape[2] == 1 else array).save(file, "PNG")
        drawn.append(f'<img alt="" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">')
    return f"<div>{''.join(drawn)}</div>"


def _first_rows(value: Tensor, dims: int) -> list[Tensor]:
    while dims > 1:  # the first of each further batch dimension
        value, dims = value[0], dims - 1
    return [value] if dims == 0 else list(value[:PICTURES])
