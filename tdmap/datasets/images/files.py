"""Which files are pictures of a dataset, in which order, and what their labels are."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdmap.datasets.images.pixels import PictureError
from tensordict_lite.paths import absolute_path

SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .png .apng .gif .webp .bmp .dib .tif .tiff .ppm .pgm .pbm .pnm .jp2 .tga .ico .avif".split()
)
"""Names of files that end so, in any case, are taken for pictures."""

FILE_COLUMNS = ("file", "filename", "file_name", "path", "image", "name")
LABEL_COLUMNS = ("label", "class", "category", "target")


@dataclass(frozen=True)
class Files:
    """The pictures of a folder, in their order."""

    folder: str
    names: list[str]
    """Relative to the folder, with `/`, sorted (or in the order of the file of labels)."""
    labels: list[int] | None
    """A number for each; None where nothing says."""
    classes: list[str]
    """Names of the numbers; none where labels are numbers already."""
    ignored: int
    """Files that are there and are not taken."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Folders whose pictures are not taken, and why; their names end in `/`. Those of classes keep their number."""

    def path(self, number: int) -> str:
        """Where a file is."""
        return os.path.join(self.folder, self.names[number])


def list_files(folder: str | os.PathLike[str], labels: Any = None, suffixes: Any = None, strict: bool = True) -> Files:
    """Find the pictures of a folder.

    Args:
        folder: where they are. Folders in it are the classes, and pictures may lie at any depth below.
        labels: a CSV or JSON Lines file with a column of names of files, relative to the folder, and one of labels
            (text, or whole numbers); or a mapping. Then only files that it names are taken.
        suffixes: endings of names that are taken. Default: those of the common formats.
        strict: labels of files that are not there are an error; else those are files that cannot be read.

    Raises:
        FileNotFoundError: there is no such folder.
        PictureError: with `strict`, a folder cannot be listed, is a link, or is a class without pictures; names it.
        ValueError: there are no pictures, some lie beside the class folders, or the labels are not usable.
    """
    root = absolute_path(folder)
    if not os.path.isdir(root):
        raise FileNotFoundError(f"{root} is not a folder")
    wanted = SUFFIXES if suffixes is None else frozenset(suffix.lower() for suffix in suffixes)
    left_out: dict[str, str] = {}
    found = sorted(_walk(root, wanted, left_out))
    files = [name for name in found if not name.endswith("/")]
    names = [name for name in files if os.path.splitext(name)[1].lower() in wanted]
    if labels is not None:
        return _labelled(root, files, labels, strict)
    _require_none(left_out, strict)
    if not names:
        endings = ", ".join(sorted(wanted)[:5])
        raise ValueError(f"{root} has no pictures among {len(files)} files: names end in {endings}...")
    ignored = len(files) - len(names)
    filled = {name.partition("/")[0] for name in names if "/" in name}
    if not filled:
        return Files(root, names, None, [], ignored, tuple(sorted(left_out.items())))
    classes = sorted(name[:-1] for name in found if name.endswith("/"))
    loose = [name for name in names if "/" not in name]
    if loose:
        raise ValueError(
            f"{root} has class folders ({', '.join(classes[:3])}...), and {len(loose)} images without a class "
            f"({loose[0]}...): move them into a class folder, or pass labels= (a CSV or JSONL file)."
        )
    for name in classes:
        if name not in filled:
            left_out.setdefault(f"{name}/", "the class folder has no pictures: remove it, or pass suffixes= or labels=")
    _require_none(left_out, strict)
    number = {name: index for index, name in enumerate(classes)}
    labelled = [number[name.partition("/")[0]] for name in names]
    return Files(root, names, labelled, classes, ignored, tuple(sorted(left_out.items())))


def _require_none(left_out: dict[str, str], strict: bool) -> None:
    if strict and left_out:
        name = min(left_out)
        raise PictureError(left_out[name], name)


def _walk(root: str, suffixes: frozenset[str], left_out: dict[str, str]) -> Iterator[str]:
    """Files below a folder, and the folders in it with `/` at their end, but for hidden ones.

    Folders that cannot be looked into, among them links, are added to `left_out`.
    """

    def relative(path: str) -> str:
        inner = os.path.relpath(path, root).replace(os.sep, "/")
        return "" if inner == "." else f"{inner}/"

    def unlisted(error: OSError) -> None:
        left_out[relative(error.filename) or "./"] = f"the folder cannot be listed ({error.strerror})"

    for folder, folders, files in os.walk(root, onerror=unlisted):
        inner = relative(folder)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = [name for name in files if not name.startswith(".")]
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        # What a link that leads nowhere was meant to be, only its name tells.
        broken = [
            name for name in files if os.path.splitext(name)[1].lower() not in suffixes and _is_broken(folder, name)
        ]
        for name in (*links, *broken):
            left_out[f"{inner}{name}/"] = "it is a link, and links to folders are not followed: copy the folder"
        if not inner:
            yield from (f"{name}/" for name in (*folders, *broken))
        yield from (f"{inner}{name}" for name in files if name not in broken)


def _is_broken(folder: str, name: str) -> bool:
    path = os.path.join(folder, name)
    return os.path.islink(path) and not os.path.exists(path)


def _labelled(root: str, found: list[str], labels: Any, strict: bool) -> Files:
    pairs = list(labels.items()) if hasattr(labels, "items") else read_labels(labels)
    given: dict[str, Any] = {}
    for name, label in pairs:
        name = os.path.normpath(str(name)).replace(os.sep, "/")
        if os.path.isabs(name) or name.startswith("../"):
            raise ValueError(f"the labels name {name!r}, which is not in {root}: names are relative to the folder.")
        if given.setdefault(name, label) != label:
            raise ValueError(f"the labels give {name!r} two labels, {given[name]!r} and {label!r}.")
    if not given:
        raise ValueError("the labels name no files")
    there = set(found)
    missing = [name for name in given if name not in there]
    if missing and strict:
        raise ValueError(
            f"the labels name {len(missing)} files that are not in {root} ({', '.join(missing[:3])}...): correct them, "
            "or pass on_error='skip'."
        )
    ignored = len(there - given.keys())
    numbers = _whole_numbers(given.values())
    if numbers is not None:
        return Files(root, list(given), numbers, [], ignored)
    classes = sorted({str(label) for label in given.values()})
    number = {name: index for index, name in enumerate(classes)}
    return Files(root, list(given), [number[str(label)] for label in given.values()], classes, ignored)


def _whole_numbers(values: Any) -> list[int] | None:
    try:
        numbers = [int(value) for value in values if not isinstance(value, bool)]
    except (TypeError, ValueError):
        return None
    return numbers if [str(number) for number in numbers] == [str(value).strip() for value in values] else None


def read_labels(path: str | os.PathLike[str]) -> list[tuple[str, Any]]:
    """Pairs of a name and a label, out of a CSV file with a header or a JSON Lines file.

    Raises:
        ValueError: a line has no name or no label; names the line.
    """
    path = Path(path)
    rows: list[dict[str, Any]] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix.lower() in (".jsonl", ".ndjson", ".json"):
            for number, line in enumerate(file, 1):
                if line.strip():
                    rows.append(_json_line(path, number, line))
        else:
            rows += csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    if not rows:
        raise ValueError(f"{path} has no lines with labels")
    name, label = (_column(path, rows[0], known) for known in (FILE_COLUMNS, LABEL_COLUMNS))
    for number, row in enumerate(rows, 1):
        if row.get(name) in (None, "") or row.get(label) in (None, ""):
            raise ValueError(f"{path}, entry {number}: {name!r} or {label!r} is missing")
    return [(row[name], row[label]) for row in rows]


def _json_line(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError(f"{path}, line {number}: a line must be an object with a file and a label: got {line[:60]!r}")
    return row


def _column(path: Path, row: dict[str, Any], known: tuple[str, ...]) -> str:
    for name in known:
        if name in row:
            return name
    raise ValueError(f"{path} has the columns {', '.join(map(str, row))}, and none of {', '.join(known)}")
