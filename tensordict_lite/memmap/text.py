"""Stacks of strings (which may be None), bytes or JSON values, saved as two files instead of one JSON list.

    key/meta.json         kind ("str", "bytes" or "json"), number of rows, total bytes, names of the files
    key/values.memmap     uint8 [total]     the concatenated rows; strings as UTF-8, None as the byte 0xFF
    key/offsets.memmap    int64 [n + 1]     row i is values[offsets[i] : offsets[i + 1]]

tensordict cannot read this layout; ``memmap(reference_format=True)`` writes a JSON list. Few short strings are always
written as a list (`Tuning.text_rows`, `Tuning.text_bytes`).
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from typing import Any

import torch

from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.format import FORMAT_VERSION, META, TEXTS, NodeMeta, is_count
from tensordict_lite.memmap.load import Loader
from tensordict_lite.memmap.plan import FolderPlan, RaggedFiles, SavePlan
from tensordict_lite.memmap.tuning import current
from tensordict_lite.ragged import Ragged, text_of

KINDS = ("str", "bytes", "json")
CLASS = "tensordict_lite:TextStack"
_NAME = re.compile(r"(values|offsets)(-[0-9a-f]{8})?\.memmap")
_MOST = 1 << 46


def plan_text(plan: SavePlan, node: Any, path: str, where: tuple[str, ...]) -> str | None:
    """Plan strings, bytes or JSON values; ``None`` if they are written like other objects."""
    if len(node._batch_size) != 1:
        return None
    column, rows = node.column if isinstance(node, Ragged) else None, len(node)
    if column is not None and column.kind != "tensor":
        if rows and is_short(column.kind, rows, lambda: int(node.lengths.sum())):
            return None
        kind, values, offsets = column.kind, *column.flat(node._rows)
    else:
        objects = node._payloads() or []
        first = next((type(value).__name__ for value in objects if value is not None), "")
        if first not in ("str", "bytes") or ((first == "str" or plan.allow_pickle) and _are_short(objects)):
            return None
        text = text_of(objects)
        if text is None:
            return None
        kind, values, offsets = text
    folder = plan.folder(node, path, where, text_meta(kind, len(offsets) - 1, len(values)))
    folder.blobs = dict(zip(TEXTS, (values, offsets)))
    if column is not None:
        files = (folder.join(name) for name in TEXTS)
        plan.ragged.append(RaggedFiles(node, *zip(files, (values, offsets))))
    return "TextStack"


def text_meta(kind: str, rows: int, nbytes: int) -> dict[str, Any]:
    """The metadata of strings, bytes or JSON values."""
    return {
        "_type": "<class 'tensordict_lite.TextStack'>",
        "_format_version": FORMAT_VERSION,
        "_class": CLASS,
        "kind": kind,
        "rows": rows,
        "nbytes": nbytes,
        "files": list(TEXTS),
    }


def is_short(kind: str, rows: int, nbytes: Callable[[], int]) -> bool:
    """Whether rows of a kind are so few and so short that they are written like other objects.

    ``nbytes`` counts their bytes, which takes a look at each row, where they are few.
    """
    return kind in ("str", "json") and rows < current().text_rows and nbytes() < current().text_bytes


def _are_short(objects: list[Any]) -> bool:
    return is_short("str", len(objects), lambda: sum(len(row) for row in objects if isinstance(row, (str, bytes))))


def rename_files(folder: FolderPlan) -> None:
    """Give new names to the files of strings that replace others, so that readers open the old ones until ``meta.json``
    names the new ones."""
    if folder.meta.get("_class") != CLASS:
        return
    token = f"-{secrets.token_hex(4)}."
    folder.blobs = {name.replace(".", token): content for name, content in folder.blobs.items()}
    folder.meta["files"] = list(folder.blobs)


def files_in(folder: str) -> list[str]:
    """The files of strings in a folder."""
    if not os.path.isdir(folder):
        return []
    return [name for name in os.listdir(folder) if _NAME.fullmatch(name)]


def text_fields(path: str, data: dict[str, Any]) -> tuple[str, int, int, list[str]]:
    """Kind, rows, bytes and files of strings, from the metadata at ``path``; DatasetError if one is invalid."""
    kind, rows, nbytes, names = (data.get(name) for name in ("kind", "rows", "nbytes", "files"))
    if type(kind) is not str or kind not in KINDS or not is_count(rows, _MOST) or not is_count(nbytes, _MOST):
        raise DatasetError(
            path, f"needs kind, rows and bytes of strings, got {kind!r:.100}, {rows!r:.100} and {nbytes!r:.100}"
        )
    if type(names) is not list or len(names) != 2 or not all(type(n) is str and _NAME.fullmatch(n) for n in names):
        raise DatasetError(path, f"needs the names of the two files of its strings, got {names!r:.100}")
    return kind, rows, nbytes, names


def read_text(loader: Loader, meta: NodeMeta, lead: torch.Size | None) -> Any:
    """Load the entry of :func:`plan_text`; the files are read when a row is."""
    kind, rows, nbytes, names = text_fields(f"{meta.path}/{META}", meta.raw)
    is_growing = "_growing" in meta.raw
    values = loader.values(f"{meta.path}/{names[0]}", torch.uint8, (nbytes,), is_growing)
    offsets = loader.values(f"{meta.path}/{names[1]}", torch.int64, (rows + 1,), is_growing)
    return Ragged._over(kind, values, offsets, loader.device or torch.device("cpu"))
