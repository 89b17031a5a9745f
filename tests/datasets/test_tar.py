"""Tar files of WebDataset's are read whole or refused."""

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdmap.datasets import convert, read, write

ROWS = 6


def packed(change: Callable[[tarfile.TarInfo], None] = lambda member: None) -> bytes:
    """Six samples of two files each."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number in range(ROWS):
            for ending, content in (("cls", b"%d" % number), ("txt", b"row %d" % number)):
                member = tarfile.TarInfo(f"{number:03d}.{ending}")
                member.size = len(content)
                change(member)
                archive.addfile(member, io.BytesIO(content if member.isreg() else b""))
    return file.getvalue()


def require_whole_or_refused(path: Path, content: bytes) -> bool:
    """Whether a damaged file was refused; else it has all rows."""
    path.write_bytes(content)
    try:
        found = read(path)
    except ValueError as error:
        assert str(path) in str(error)
        return True
    assert found["cls"].tolist() == list(range(ROWS)) and found["txt"] == [f"row {n}" for n in range(ROWS)]
    return False


PACKERS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("packer", PACKERS)
def test_a_file_that_is_cut_is_refused_or_whole(tmp_path: Path, packer: str) -> None:
    content = packed()
    end = 512 * 4 * ROWS
    for cut in [*range(512, end + 1, 512), *range(700, end, 1024)]:
        assert require_whole_or_refused(tmp_path / "x.tar", PACKERS[packer](content[:cut])), cut
    assert not require_whole_or_refused(tmp_path / "x.tar", PACKERS[packer](content[: end + 1024]))
    if packer:
        small = PACKERS[packer](content)
        for cut in range(1, len(small), 7):
            assert require_whole_or_refused(tmp_path / "x.tar", small[:cut]), cut


def test_a_damaged_header_is_refused(tmp_path: Path) -> None:
    for header in range(0, 512 * 4 * ROWS, 1024):
        for change in (3, 124, 148, 156, 400):  # name, size, checksum, type, padding
            content = bytearray(packed())
            content[header + change] ^= 0xFF
            assert require_whole_or_refused(tmp_path / "x.tar", bytes(content)), (header, change)
        content = bytearray(packed())
        content[header : header + 512] = bytes(512)
        assert require_whole_or_refused(tmp_path / "x.tar", bytes(content)), header


@pytest.mark.parametrize("packer", PACKERS)
def test_two_files_in_one_are_refused(tmp_path: Path, packer: str) -> None:
    pack = PACKERS[packer]
    for content in (pack(packed() + packed()), pack(packed()) + pack(packed()), pack(packed() + b"\n")):
        assert require_whole_or_refused(tmp_path / "x.tar", content)


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE]
)
def test_files_without_their_content_are_refused_by_name(tmp_path: Path, kind: bytes) -> None:
    def change(member: tarfile.TarInfo) -> None:
        if member.name == "003.txt":
            member.type, member.linkname, member.size = kind, "002.txt", 0

    assert require_whole_or_refused(tmp_path / "x.tar", packed(change))
    with pytest.raises(ValueError, match=r"003\.txt"):
        read(tmp_path / "x.tar")


def test_a_sparse_file_takes_no_memory(tmp_path: Path) -> None:
    header = bytearray(tarfile.TarInfo("000.bin").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = b"S"
    header[386:410] = b"00000000000\0" * 2
    header[483:495] = b"77777777777\0"  # 8 GiB
    header[148:156] = b"%06o\0 " % (256 + sum(header[:148]) + sum(header[156:]))
    (tmp_path / "x.tar").write_bytes(bytes(header) + bytes(1024))
    with pytest.raises(ValueError, match=r"x\.tar: '000\.bin' is a sparse file"):
        read(tmp_path / "x.tar", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def make_tar(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def array(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def test_files_of_samples_are_columns(tmp_path: Path) -> None:
    files = {}
    for n in range(50):
        files |= {f"d/{n:03d}.jpg": bytes([n] * n), f"d/{n:03d}.cls": str(n % 3).encode(), f"d/{n:03d}.txt": b"t%d" % n,
                  f"d/{n:03d}.box.npy": array(np.full((2, 2), n))}  # fmt: skip
    make_tar(tmp_path / "x.tar", files)
    found = read(tmp_path / "x.tar", tmp_path / "out")
    assert found["__key__"] == [f"d/{n:03d}" for n in range(50)]
    assert found["jpg"].tolist() == [bytes([n] * n) for n in range(50)]
    assert found["cls"].tolist() == [n % 3 for n in range(50)]
    assert found["txt"] == [f"t{n}" for n in range(50)]
    assert found["box.npy"].tolist() == [[[n, n], [n, n]] for n in range(50)]


@pytest.mark.parametrize("source", ["rows", "file"])
@pytest.mark.parametrize("name", ["x.tar", "x.tgz"])
def test_tar_files_are_not_written(tmp_path: Path, name: str, source: str) -> None:
    write({"txt": ["a"]}, tmp_path / "y.csv")
    with pytest.raises(ValueError, match=rf"{name}: tdmap reads tar files and does not write them: .* webdataset"):
        write({"txt": ["a"]}, tmp_path / name) if source == "rows" else convert(tmp_path / "y.csv", tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["y.csv"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.jpg": b"", "a.cls": b"1", "b.jpg": b""}, r"the sample 'b' has the files \['jpg'\]"),
        ({"a": b""}, "has no ending"),
        ({"a.cls": b"one"}, r"a\.cls cannot be read"),
        ({"a.cls": b"9" * 20}, r"x\.tar.*a\.cls"),
        ({"a.json": b"\xff"}, r"x\.tar.*a\.json"),
        ({"a.__key__": b"x"}, r"x\.tar.*a\.__key__"),
        ({"a.npy": b"\x93NUMPY"}, r"x\.tar.*a\.npy"),
        ({"a.npy": array(np.ones(2)) * 2}, r"a\.npy.*more than one"),
        ({"a.npy": array(np.ones(2)), "b.npy": array(np.ones(3))}, r"b\.npy cannot be read: its shape is \[3\]"),
        ({"a.npy": array(np.array([{}], dtype=object))}, "allow_pickle"),
    ],
)
def test_content_that_is_no_value_is_refused_by_name(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    make_tar(tmp_path / "x.tar", files)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "x.tar", tmp_path / "out")
    assert not (tmp_path / "out" / "meta.json").exists()


def test_arrays_of_other_machines_are_read(tmp_path: Path) -> None:
    make_tar(tmp_path / "x.tar", {"0.npy": array(np.arange(3, dtype=">f4"))})
    assert read(tmp_path / "x.tar")["npy"].tolist() == [[0.0, 1.0, 2.0]]
