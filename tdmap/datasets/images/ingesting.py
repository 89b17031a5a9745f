"""A folder of pictures becomes a memory-mapped dataset, decoded by workers.

    out/                   label int64 [n], file int64 [n], and image: decoded, uint8 [n, channels, height, width];
                           encoded, bytes; of different sizes, flat pixels beside shape int64 [n, 3]
    out/pictures.json      how it was made, and the names of the classes
    out/files/             the entry name: names of all files; `file` is the number of a row's
    out/skipped.jsonl      files that are no rows, and why

The files beside the dataset are written when it is whole; a call that was killed in between writes them next time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tdmap.data.objects import objects_of
from tdmap.datasets.images.files import Files, list_files
from tdmap.datasets.images.pictures import ABOUT, FILES, SKIPPED, Pictures
from tdmap.datasets.images.pixels import Look, PictureError, as_size, decode, open_file, open_picture, pillow, spoilt
from tdmap.errors import AlreadyComplete, SkippedRows
from tdmap.frames import without_warnings
from tdmap.memory.folderlock import FolderLock, replacement_of
from tdmap.memory.hidden import printable, remove, remove_tree
from tdmap.ops.flat_map import flat_map
from tdmap.ops.map import map as map_chunks
from tdmap.ops.permute import permute
from tdmap.output.outputfolder import META, replacing, require_no_tilde
from tdmap.rowerrors import RowErrors
from tdmap.run.operation import entry_point
from tensordict_lite import Ragged, TensorDict
from tensordict_lite.memmap.disk.contents import put_away
from tensordict_lite.memmap.disk.files import is_there, new_file, refuse_link, write_all
from tensordict_lite.paths import absolute_path

if TYPE_CHECKING:
    from typing import Unpack

    from tdmap.execution import WorkerOptions

KEEPS = ("decoded", "encoded")
CHUNK_BYTES = 2 << 20
"""Pixels of a chunk of pictures: a chunk of large ones is one picture."""


class SkippedPictures(UserWarning):
    """Files were left out of the dataset, because they cannot be read.

    Attributes:
        files: pairs of the file's name and the reason.
    """

    def __init__(self, files: list[tuple[str, str]], total: int, place: Path) -> None:
        self.files = files
        shown = "".join(f"\n  {printable(name)}: {printable(reason)}" for name, reason in files[:5])
        more = f"\n  and {len(files) - 5:,} more" if len(files) > 5 else ""
        super().__init__(f"{len(files):,} of {total:,} files were left out (all are listed in {place}):{shown}{more}")


@entry_point
def ingest(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    size: int | tuple[int, int] | None = None,
    resize: str = "crop",
    mode: str = "RGB",
    keep: str = "decoded",
    labels: Any = None,
    on_error: str = "raise",
    resume: bool | None = None,
    overwrite: bool = False,
    resample: str = "bilinear",
    background: tuple[int, int, int] = (255, 255, 255),
    max_pixels: int = 89_478_485,
    suffixes: Any = None,
    **options: Unpack[WorkerOptions],
) -> Pictures:
    """Convert the images in a folder to a memory-mapped dataset.

    Rows are sorted by file name, for any number of workers. Of an animation, the first frame is used. Images are
    rotated by their EXIF orientation, transparent pixels are blended with the background, and 16-bit grey loses its
    lower 8 bits. Colour profiles are not applied.

    The format is detected from the content. These files cannot be read: empty, truncated and damaged files; pixels of
    32 bits or floats, whose range is unknown; 16-bit colour with a transparent colour; links out of the folder; pipes
    and devices.

    Args:
        folder: folder of images. Its subfolders are the classes, in alphabetical order.
        out: folder for the dataset.
        size: pixels, or (height, width). None keeps the size of each image.
        resize: `"crop"`: scale to cover the size, and crop both sides. `"pad"`: scale to fit, and pad with the
            background. `"exact"`: stretch. `"shorter"`: scale the shorter side to the size; images then differ in size.
        mode: `"RGB"`, `"L"` or `"RGBA"`.
        keep: `"decoded"` stores pixels. `"encoded"` stores the bytes of the files, to be decoded when rows are read
            (`Pictures.decoder`), without `size` and `resize`.
        labels: instead of class folders, a CSV or JSON Lines file with a column of files (`file`, `path`...) and a
            column of labels (`label`, `class`...), or a mapping of file names to labels. Only these files are read.
        on_error: `"raise"` raises for the first file that cannot be read, or folder that cannot be listed, is a link,
            or is a class without images. `"skip"` leaves them out, lists them in `out/skipped.jsonl`, and warns
            (`SkippedPictures`).
        resume: resume an interrupted call, or open a complete result. Default: True, unless `overwrite` is True.
        overwrite: ingest all images again, and replace the dataset in `out` when the new one is complete.
        resample: filter for scaling: `"bilinear"` (antialiased), `"bicubic"`, `"lanczos"`, `"box"`, `"nearest"`.
        background: colour behind transparent pixels and around padded images.
        max_pixels: reject larger images before they are decoded, and images that would be larger while they are scaled.
        suffixes: file extensions of images. Default: those of common formats.
        **options: about workers, as `tdmap.map`: `num_workers`, `pbar`...

    Returns:
        The dataset with its classes and file names. `TensorDict.load_memmap(out)` opens only the rows.

    Raises:
        ImportError: Pillow is not installed.
        ValueError: the folder has no images, labels are invalid, an option is out of range, or `resume` and `overwrite`
            are both True.
        FileExistsError: `out` holds other files.
        ResumeMismatch: `out` holds an unfinished run with other options or files; names the difference.
        PictureError: with `on_error="raise"`, the first file that cannot be read.
    """
    pillow()
    if keep not in KEEPS:
        raise ValueError(f"keep must be one of {', '.join(map(repr, KEEPS))}: got {keep!r}.")
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise' or 'skip': got {on_error!r}.")
    if keep == "encoded" and size is not None:
        raise ValueError("keep='encoded' stores files as they are: give the size to Pictures.decoder(size=) instead.")
    if resume and overwrite:
        raise ValueError(
            "resume=True continues the dataset in the folder, and overwrite=True replaces it: pass one of them."
        )
    resume = not overwrite if resume is None else resume
    require_no_tilde(out)
    look = Look(as_size(size), resize, mode, resample, tuple(background), max_pixels)  # type: ignore[arg-type]
    files = list_files(folder, labels, suffixes, strict=on_error == "raise")
    path = Path(absolute_path(out))
    replaces = overwrite and is_there(path / META)
    if is_there(path / ABOUT) and not overwrite:
        return _reopen(path, files, look, keep, on_error, resume)
    with without_warnings(AlreadyComplete, SkippedRows):
        run = _decode if look.is_fixed else _copy
        with _beside(path) if replaces else contextlib.nullcontext(path) as place:
            skipped = run(files, place, look, keep, on_error, {"resume": resume, **options})
    if skipped or files.left_out:
        skipped, total = [*files.left_out, *skipped], len(files.names) + len(files.left_out)
        warnings.warn(SkippedPictures(skipped, total, path / SKIPPED), stacklevel=3)
    return Pictures.open(path)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A folder for the dataset that is to replace the one at `path`, and does when the block succeeds.

    A process that is killed meanwhile leaves the old dataset or the new one, whole.
    """
    with replacing(path, "images.ingest") as lock:
        old = lock.folder
        new = replacement_of(old)
        for left in (new, _kept_beside(new)):  # by a process that was killed while it held this lock
            _remove(left, old)
        os.mkdir(new, 0o700)  # until it has the permissions of the old one
        try:
            yield new
            _exchange(new, lock)
        except BaseException:
            if lock.is_mine and lock.folder == old:  # not in a fork of the program, and not exchanged
                _remove(new, old)
            raise


def _exchange(new: Path, lock: FolderLock) -> None:
    """Put a new dataset in the place of the locked one, which is removed; others are kept out of both meanwhile."""
    place = lock.folder
    with FolderLock(new, "images.ingest") as made:
        made.exchange(lock)
        _remove(new, place)


def _remove(left: Path, place: Path) -> None:
    """Remove a dataset that another one has replaced, or one that is not whole and holds no file of the user's."""
    if is_there(left / META) and (is_there(left / ABOUT) or not is_there(left / FILES)):
        put_away(str(left), str(place))
    else:
        remove_tree(left)


def _kept_beside(path: Path) -> Path:
    """Where the rows of a dataset go whose other rows are left out."""
    return path.with_name(f".{path.name}.tdmap-kept")


def _reason(error: BaseException, name: str) -> str:
    """Why a file is no row. Of what an earlier session has skipped, only the text is left."""
    if isinstance(error, PictureError):
        return error.reason
    lines = [line.partition(f"{name}: ")[2] for line in str(error).splitlines()]
    return next(filter(None, lines), str(error))


def _copy(
    files: Files, path: Path, look: Look, keep: str, on_error: str, options: dict[str, Any]
) -> list[tuple[str, str]]:
    """Rows of different lengths: those of files that cannot be read are left out at once."""
    errors = RowErrors()
    fn: Any = ReadFiles(files, look) if keep == "encoded" else DecodeRagged(files, look)
    how = errors if on_error == "skip" else "raise"
    flat_map(_index(files), fn, out=path, chunksize=64 if keep == "encoded" else 8, on_error=how, **options)
    skipped = [(name, _reason(bad.error, name)) for bad in errors for name in [files.names[bad.row]]]
    _write_beside(path, files, look, keep, on_error, skipped)
    return skipped


def _decode(
    files: Files, path: Path, look: Look, keep: str, on_error: str, options: dict[str, Any]
) -> list[tuple[str, str]]:
    """Rows of one size: all have a place, where pixels are written once; only when files cannot be read, which is
    seldom, the other rows are copied to new places. A run can be resumed under another `on_error`, too."""
    channels, height, width = look.shape
    chunk = max(min(CHUNK_BYTES // (channels * height * width), 64), 1)
    fn = DecodeFiles(files, look, on_error == "skip")
    data: Any = map_chunks(_index(files), fn, out=path, chunksize=chunk, **options)
    numbers = data["file"]
    bad = [UNREAD - number for number in numbers[numbers < 0].tolist()]
    if bad and on_error == "raise":
        fn.read(bad[0])  # an earlier session was to skip it
    skipped = [(files.names[number], fn.reason(number)) for number in bad]
    if not bad:
        _write_beside(path, files, look, keep, on_error, skipped)
    elif len(bad) == len(data):
        remove(path / "meta.json")  # it is none
        name, reason = skipped[0]
        raise PictureError(f"{reason}; none of the {len(bad):,} files can be read", name)
    else:
        workers = {name: value for name, value in options.items() if name != "resume"}
        real = Path(os.path.realpath(path))
        new = _kept_beside(real)
        with FolderLock(real, "images.ingest") as lock:
            _remove(new, real)  # of a call that was killed
            permute(data, torch.from_numpy(np.flatnonzero(numbers.numpy() >= 0)), out=new, **workers)
            _write_beside(new, files, look, keep, on_error, skipped)
            _exchange(new, lock)
    return skipped


def _index(files: Files) -> TensorDict:
    index = TensorDict({"file": torch.arange(len(files.names))}, [len(files.names)])
    if files.labels is not None:
        index["label"] = torch.tensor(files.labels)
    return index


class _OnFiles:
    """What workers call with the numbers of files. Names travel as bytes: a million strings take seconds to pickle."""

    def __init__(self, files: Files, look: Look) -> None:
        self.folder = files.folder
        self.root = os.path.realpath(files.folder)
        self.names: Ragged = Ragged.from_list(files.names)
        self.look = look
        self._done: dict[int, Any] = {}  # when a file of a chunk fails, its other files come again in parts

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_done": {}}

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged: the files and how they are read."""
        digest = hashlib.blake2b(self.names.flat()[0].numpy().tobytes(), digest_size=16)
        for name in objects_of(self.names):
            with contextlib.suppress(OSError):
                info = os.stat(os.path.join(self.folder, name))
                digest.update(f"{info.st_size} {info.st_mtime_ns};".encode())
        return {"reader": type(self).__name__, "options": repr(self.look), "files": digest.hexdigest()}

    def name(self, number: int) -> str:
        """The name of a file."""
        return str(objects_of(self.names[number : number + 1])[0])

    def each(self, numbers: list[int]) -> list[Any]:
        """The results of some files; those that a failing call has made already are not made again."""
        done, self._done = self._done, {}
        results: dict[int, Any] = {}
        try:
            for number in numbers:
                results[number] = done[number] if number in done else self.read(number)
        except PictureError:
            self._done = {**done, **results}
            raise
        return list(results.values())

    def read(self, number: int) -> Any:
        """One file.

        Raises:
            PictureError: it cannot be read; names it.
        """
        name = self.name(number)
        path = os.path.join(self.folder, name)
        try:
            if not os.path.realpath(path).startswith(f"{self.root}{os.sep}"):
                raise PictureError("it is a link that leads out of the folder: copy the file")
            return self.one(path)
        except PictureError as error:
            raise PictureError(error.reason, name) from error.__cause__
        except OSError as error:
            raise PictureError(f"cannot be read: {error.strerror or error}", name) from error

    def one(self, path: str) -> Any:
        raise NotImplementedError


UNREAD = -1
"""A row whose file cannot be read has `UNREAD - number` for the number of the file."""


class DecodeFiles(_OnFiles):
    """Files become rows of pixels of one size.

    Args:
        skip: rows of files that cannot be read are zeros, and marked (see `UNREAD`).
    """

    def __init__(self, files: Files, look: Look, skip: bool) -> None:
        super().__init__(files, look)
        self.skip = skip

    def __call__(self, chunk: TensorDict) -> TensorDict:
        numbers = chunk["file"]
        images = torch.empty((len(numbers), *self.look.shape), dtype=torch.uint8)
        kept = numbers.clone()
        for row, number in enumerate(numbers.tolist()):
            try:
                images[row].copy_(self.read(number).permute(2, 0, 1))
            except Exception:
                if not self.skip:
                    raise
                images[row].zero_()
                kept[row] = UNREAD - number
        rows = chunk.copy()
        rows["file"] = kept
        rows["image"] = images
        return rows

    def reason(self, number: int) -> str:
        """Why a file cannot be read."""
        try:
            self.read(number)
        except Exception as error:
            return _reason(error, self.name(number))
        return "could not be read, and can be by now"

    def one(self, path: str) -> torch.Tensor:
        return _tensor(decode(path, self.look))


class DecodeRagged(_OnFiles):
    """Files become rows of pixels of different sizes: flat, and the shape of each beside."""

    def __call__(self, chunk: TensorDict) -> TensorDict:
        pixels = [picture.permute(2, 0, 1) for picture in self.each(chunk["file"].tolist())]
        rows = chunk.copy()
        rows["shape"] = torch.tensor([picture.shape for picture in pixels])
        rows["image"] = Ragged.from_list([picture.reshape(-1) for picture in pixels])
        return rows

    def one(self, path: str) -> torch.Tensor:
        return _tensor(decode(path, self.look))


class ReadFiles(_OnFiles):
    """Files become rows of bytes, once their heads have been looked at."""

    def __call__(self, chunk: TensorDict) -> TensorDict:
        rows = chunk.copy()
        rows["image"] = Ragged.from_list(self.each(chunk["file"].tolist()))
        return rows

    def one(self, path: str) -> bytes:
        with open_file(path) as file:
            content: bytes = file.read()
        with spoilt(), open_picture(content, self.look.max_pixels) as picture:
            picture.verify()
        return content


def _tensor(pixels: Any) -> torch.Tensor:
    return torch.from_numpy(pixels if pixels.flags.writeable else pixels.copy())


# -- beside the dataset ------------------------------------------------------------------------------------------------


def _about(files: Files, look: Look, keep: str, on_error: str) -> dict[str, Any]:
    return {
        "version": 1,
        "folder": files.folder,
        "files": len(files.names),
        "ignored": files.ignored,
        "classes": files.classes,
        "keep": keep,
        "on_error": on_error,
        "size": None if look.size is None else list(look.size),
        "resize": look.resize,
        "mode": look.mode,
        "resample": look.resample,
        "background": list(look.background),
        "max_pixels": look.max_pixels,
    }


def _write_beside(
    path: Path, files: Files, look: Look, keep: str, on_error: str, skipped: list[tuple[str, str]]
) -> None:
    refuse_link(str(path / FILES))
    names = TensorDict.load_memmap(path / FILES) if (path / FILES / "meta.json").exists() else None
    if names is None:
        TensorDict({"name": Ragged.from_list(files.names)}, [len(files.names)]).memmap(path / FILES)
    listed = (*files.left_out, *skipped)
    lines = "".join(json.dumps({"file": name, "reason": reason}) + "\n" for name, reason in listed)
    _write(path / SKIPPED, lines.encode())
    _write(path / ABOUT, json.dumps(_about(files, look, keep, on_error), indent=1).encode())  # last: all is there


def _write(path: Path, content: bytes) -> None:
    with new_file(str(path)) as fd:
        write_all(fd, content, 0, str(path))


def _reopen(path: Path, files: Files, look: Look, keep: str, on_error: str, resume: bool) -> Pictures:
    """A dataset that is there already.

    Raises:
        FileExistsError: `resume` is False, or it was made in another way; names what differs.
    """
    found = Pictures.open(path)
    if not resume:
        raise FileExistsError(
            f"{path} holds a dataset of images already: choose another folder, or pass overwrite=True, which "
            "replaces it when the new one is complete."
        )
    wanted = json.loads(json.dumps(_about(files, look, keep, on_error)))
    different = [key for key, value in wanted.items() if found.about.get(key) != value]
    if found.files.tolist() != files.names and "files" not in different:
        different.append("the names of the files")
    if different:
        what = "; ".join(
            f"{key}: {found.about.get(key, '...')!r:.60}, now {wanted.get(key, '...')!r:.60}" for key in different
        )
        raise FileExistsError(
            f"{path} holds images that were ingested with other options ({what}): choose another folder, or "
            "pass overwrite=True, which replaces them when the new dataset is complete."
        )
    return found
