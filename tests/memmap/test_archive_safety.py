"""Archives from outside are data: whatever a file holds, it loads whole or is an error that names what is wrong."""

import contextlib
import os
import resource
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensordict_lite import TensorDict, is_memmap_archive, unpack_memmap
from tensordict_lite.errors import ArchiveError, DatasetError
from tensordict_lite.memmap.archive.read import opened
from tests.memmap.trees import entries, touch
from tests.processes import in_child

META = (
    b'{"a": {"device": "cpu", "shape": [%d], "dtype": "torch.uint8", "is_nested": false}, "shape": [], '
    b'"device": "cpu", "_type": "<class \'tensordict._td.TensorDict\'>", "_format_version": 1, '
    b'"_class": "tensordict:TensorDict"}'
)


def local(name: bytes, data: bytes, /, **changes: Any) -> bytes:
    """A local header and its data."""
    f = {
        "method": 0,
        "flags": 0,
        "crc": zlib.crc32(data),
        "packed": len(data),
        "size": len(data),
        "extra": b"",
        **changes,
    }
    head = struct.pack(
        "<4s5H3L2H", b"PK\3\4", 20, f["flags"], f["method"], 0, 33, f["crc"], f["packed"], f["size"], len(name),
        len(f["extra"]),
    )  # fmt: skip
    return head + name + f["extra"] + data


def central(name: bytes, data: bytes, offset: int, /, **changes: Any) -> bytes:
    """A record of the directory."""
    f = {
        "method": 0, "flags": 0, "crc": zlib.crc32(data), "packed": len(data), "size": len(data), "extra": b"",
        "disk": 0, "mode": 0o100644, **changes,
    }  # fmt: skip
    head = struct.pack(
        "<4s6H3L5H2L", b"PK\1\2", 3 << 8 | 20, 20, f["flags"], f["method"], 0, 33, f["crc"], f["packed"], f["size"],
        len(name), len(f["extra"]), 0, f["disk"], 0, f["mode"] << 16, offset,
    )  # fmt: skip
    return head + name + f["extra"]


def end(count: int, size: int, offset: int, **changes: Any) -> bytes:
    f = {"disk": 0, "comment": b"", **changes}
    return (
        struct.pack("<4s4H2LH", b"PK\5\6", f["disk"], 0, count, count, size, offset, len(f["comment"])) + f["comment"]
    )


def archive(*members: tuple[bytes, bytes, dict[str, Any], dict[str, Any]]) -> bytes:
    """An archive of (name, data, changes of the local header, changes of the record)."""
    body, records = b"", b""
    for name, data, there, here in members:
        offset = here.pop("offset", len(body))
        records += central(here.pop("name", name), data, offset, **here)
        body += local(there.pop("name", name), data, **there)
    return body + records + end(len(members), len(records), len(body))


def with_extra(name: bytes, data: bytes = b"x", /, both: Any = None, **record: Any) -> bytes:
    """A good archive and one more entry."""
    both = both or {}
    return archive(
        (b"meta.json", META % 3, {}, {}), (b"a.memmap", b"abc", {}, {}), (name, data, dict(both), {**both, **record})
    )


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def bomb(size: int, claimed: int, method: int = 8) -> bytes:
    """An entry of compressed zeros that claims a size."""
    data = deflated(bytes(size))
    both = {"method": method, "size": claimed, "crc": zlib.crc32(bytes(size))}
    return archive((b"meta.json", META % claimed, {}, {}), (b"a.memmap", data, dict(both), dict(both)))


def plain(meta: bytes, /, **changes: Any) -> bytes:
    """Some metadata, and three bytes of a tensor."""
    return archive((b"meta.json", meta, dict(changes), dict(changes)), (b"a.memmap", b"abc", {}, {}))


GOOD = plain(META % 3)
WIDE = struct.pack("<2H2Q", 1, 16, 1 << 60, 1 << 60)

HOSTILE: dict[str, tuple[bytes, str]] = {
    "not a zip": (b"hello world" * 30, "not an archive"),
    "empty": (b"", "is empty"),
    "too short": (b"PK\5\6", "not an archive"),
    "no meta.json": (archive((b"x/meta.json", META % 3, {}, {})), "without a meta.json"),
    "truncated": (GOOD[:-30], "without its end"),
    "truncated by a byte": (GOOD[:-1], "without its end"),
    "absolute": (with_extra(b"/etc/passwd"), "not a path inside"),
    "parent": (with_extra(b"../a"), "not a path inside"),
    "parent below": (with_extra(b"b/../../a"), "not a path inside"),
    "parent at the end": (with_extra(b"b/.."), "not a path inside"),
    "here": (with_extra(b"./a"), "not a path inside"),
    "here alone": (with_extra(b"."), "not a path inside"),
    "nothing between": (with_extra(b"b//a"), "not a path inside"),
    "no name": (with_extra(b""), "not a path inside"),
    "no name first": (archive((b"", b"x", {}, {}), (b"meta.json", META % 3, {}, {})), "not a path inside"),
    "here first": (archive((b".", b"x", {}, {}), (b"meta.json", META % 3, {}, {})), "not a path inside"),
    "root first": (archive((b"/a", b"x", {}, {}), (b"meta.json", META % 3, {}, {})), "not a path inside"),
    "nul": (with_extra(b"a\0.memmap"), "not a path inside"),
    "not text": (with_extra(b"\xff\xfe", both={"flags": 0x800}), "damaged"),
    "link": (with_extra(b"l", b"/etc/passwd", mode=0o120777), "link"),
    "device": (with_extra(b"l", mode=0o060000), "special file"),
    "fifo": (with_extra(b"l", mode=0o010644), "special file"),
    "twice": (with_extra(b"a.memmap"), "two entries called 'a.memmap'"),
    "encrypted": (with_extra(b"e", both={"flags": 1}), "encrypted"),
    "strongly encrypted": (with_extra(b"e", both={"flags": 0x41}), "encrypted"),
    "masked": (with_extra(b"e", both={"flags": 0x2000}), "encrypted"),
    "method": (with_extra(b"e", both={"method": 93}), "method 93"),
    "same bytes": (with_extra(b"e", b"abc", offset=0, packed=3, size=3), "contradict|overlaps"),
    "inside another": (with_extra(b"e", offset=31), "not where|overlaps"),
    "behind the end": (with_extra(b"e", offset=100_000), "outside|overlaps"),
    "in the directory": (with_extra(b"e", offset=len(with_extra(b"e")) - 40), "outside|overlaps"),
    "larger in the directory": (with_extra(b"e", packed=1000, size=1000), "overlaps"),
    "larger in both": (with_extra(b"e", both={"packed": 1000, "size": 1000}), "overlaps"),
    "stored and smaller": (with_extra(b"e", b"xx", both={"size": 1}), "contradict"),
    "no local header": (GOOD.replace(b"PK\3\4", b"PK\3\5", 2)[:], "not where"),
    "wide and unsaid": (with_extra(b"e", packed=0xFFFFFFFF, size=0xFFFFFFFF), "overlaps"),
    "wide and huge": (with_extra(b"e", packed=0xFFFFFFFF, size=0xFFFFFFFF, extra=WIDE), "overlaps"),
    "wide and cut": (with_extra(b"e", packed=0xFFFFFFFF, size=0xFFFFFFFF, extra=WIDE[:12]), "damaged"),
    "wide locally": (with_extra(b"e", both={"packed": 0xFFFFFFFF, "size": 0xFFFFFFFF, "extra": WIDE}), "overlaps"),
    "directory elsewhere": (GOOD[:-22] + end(2, 10, 10), "damaged"),
    "directory damaged": (GOOD.replace(b"PK\1\2", b"PK\1\3"), "damaged"),
    "bomb that lies": (bomb(10_000, (1 << 32) - 2), "more than 1,032 times"),
    "bomb beyond any ratio": (bomb(1 << 20, 1 << 30), "more than 1,032 times"),
    "says more": (bomb(10_000, 12_000), "should have 12,000 bytes, but has 10,000"),
    "says less": (bomb(10_000, 8_000), "checksum differs"),
    "bzip2": (bomb(10, 10, 12), "method 12"),
    "lzma": (bomb(10, 10, 14), "method 14"),
    "tensor too short": (plain(META % 4), "truncated.*4 bytes"),
    "tensor too long": (plain(META % 2), "does not fit"),
    "tensor missing": (archive((b"meta.json", META % 2, {}, {})), "missing in the archive"),
    "metadata is no json": (plain(b"{"), "not valid JSON"),
    "metadata damaged": (plain(META % 3, crc=1), "checksum"),
    "folder missing": (plain((META % 3).replace(b'"a": {', b'"b": {"type": "TensorDict"}, "a": {')), "missing"),
}  # fmt: skip


def sixty_four(size: int = 109, offset: int = len(GOOD) - 131, disks: int = 1) -> bytes:
    """The good archive with a ZIP64 end that says what is asked for."""
    stop = len(GOOD) - 22
    big = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, size, offset)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, stop, disks)
    return GOOD[:-22] + big + locator + end(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)


HOSTILE |= {
    "64: size": (sixty_four(size=1 << 60), "damaged"),
    "64: offset": (sixty_four(offset=1 << 63), "damaged|outside"),
    "64: disks": (sixty_four(disks=7), "multiple disks"),
}


def test_the_archive_that_the_others_are_made_from_is_good(tmp_path: Path) -> None:
    good = (GOOD, sixty_four(), with_extra(b"b/c.txt"), bomb(10_000, 10_000), b"#!/bin/sh\n" + GOOD)
    for number, content in enumerate(good):
        path = tmp_path / f"{number}.tdz"
        path.write_bytes(content)
        assert is_memmap_archive(path) and zipfile.ZipFile(path).testzip() is None
        assert TensorDict.load_memmap(path)["a"].numel() in (3, 10_000)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archive_is_refused(tmp_path: Path, name: str) -> None:
    content, message = HOSTILE[name]
    path = tmp_path / "x.tdz"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=f"(?s)x.tdz.*({message})") as caught:
        TensorDict.load_memmap(path)
    assert isinstance(caught.value, ValueError) or "tdz/" in str(caught.value)  # of the file, or of something in it
    try:
        unpack_memmap(path, tmp_path / "out")
    except ArchiveError:
        assert not (tmp_path / "out").exists()
    assert set(os.listdir(tmp_path)) <= {"x.tdz", "out"}


def test_a_file_that_is_no_archive_is_a_value_error(tmp_path: Path) -> None:
    for content in (b"hello" * 100, b"", b"\x89PNG\r\n", b"PK"):
        (tmp_path / "x").write_bytes(content)
        for call in (TensorDict.load_memmap, lambda p: unpack_memmap(p, tmp_path / "o")):
            with pytest.raises(ValueError, match="archive"):
                call(tmp_path / "x")
        assert not is_memmap_archive(tmp_path / "x")


def test_file_and_folder_of_one_name_do_not_unpack(tmp_path: Path) -> None:
    (tmp_path / "x.tdz").write_bytes(with_extra(b"a.memmap/deeper"))
    with pytest.raises(ArchiveError, match="both a file and a folder"):
        unpack_memmap(tmp_path / "x.tdz", tmp_path / "out")
    assert os.listdir(tmp_path) == ["x.tdz"]


def test_zeros_are_decompressed_into_the_room_that_the_archive_justifies(tmp_path: Path) -> None:
    """Deflate cannot claim what a reader would not believe."""
    size = 50 << 20
    path = tmp_path / "x.tdz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("meta.json", META % size)
        with made.open("a.memmap", "w") as file:
            for _ in range(size >> 20):
                file.write(bytes(1 << 20))

    def load() -> None:
        spare = 75 << 20
        used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + spare, used + spare))
        assert TensorDict.load_memmap(path)["a"].shape == (size,)

    assert in_child(load) == 0
    assert os.listdir(tmp_path) == ["x.tdz"]


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused_by_name(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "x.tdz", "w", method) as made:
        made.writestr("meta.json", META % 2)
        made.writestr("a.memmap", bytes(8))
    for call in (TensorDict.load_memmap, lambda path: unpack_memmap(path, tmp_path / "out")):
        with pytest.raises(ArchiveError, match="method 1[24].*unzip it"):
            call(tmp_path / "x.tdz")
    assert os.listdir(tmp_path) == ["x.tdz"]


def test_what_is_saved_is_believed(tmp_path: Path) -> None:
    """Zeros compress better than anything from outside may claim: they are deflated instead."""
    td = TensorDict({"zeros": torch.zeros(2 << 20), "noise": torch.rand(1000), "none": torch.zeros(0)}, [])
    for threads in (0, 3):
        td.memmap(tmp_path / "x.tdz", compression="deflate", num_threads=threads)
        loaded = TensorDict.load_memmap(tmp_path / "x.tdz")
        assert not loaded["zeros"].any() and loaded["noise"].equal(td["noise"])
        assert zipfile.ZipFile(tmp_path / "x.tdz").testzip() is None


def test_special_files_do_not_hang_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.tdz")
    for call in (TensorDict.load_memmap, opened, is_memmap_archive):
        if call is is_memmap_archive:
            assert not call(tmp_path / "x.tdz")
            continue
        with pytest.raises(DatasetError):
            call(tmp_path / "x.tdz")


def test_nested_folders_beyond_measure_are_an_error(tmp_path: Path) -> None:
    meta = (
        b'{"b": {"type": "TensorDict"}, "shape": [], "device": "cpu", "_type": "<class \'tensordict._td.TensorDict\'>"}'
    )
    (tmp_path / "x.tdz").write_bytes(archive(*((b"b/" * i + b"meta.json", meta, {}, {}) for i in range(500))))
    with pytest.raises(DatasetError, match="nested too deeply"):
        TensorDict.load_memmap(tmp_path / "x.tdz")


@pytest.mark.parametrize("name", [b"a/" * 32_000 + b"b", b"a/" * 2_500 + b"b", b"a/" * 501 + b"b", b"a" * 4_097])
@pytest.mark.parametrize("call", [TensorDict.load_memmap, lambda path: unpack_memmap(path, path.parent / "out")])
def test_names_beyond_measure_are_refused_before_anything_is_made(tmp_path: Path, name: bytes, call: Any) -> None:
    (tmp_path / "x.tdz").write_bytes(archive((b"meta.json", META % 1, {}, {}), (name, b"", {}, {})))
    with pytest.raises(ArchiveError, match=r"has a name of [\d,]+ bytes and [\d,]+ levels"):
        call(tmp_path / "x.tdz")
    assert os.listdir(tmp_path) == ["x.tdz"]


def test_a_name_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="has a name of"):
        TensorDict({"k" * 5_000: torch.zeros(1)}).save(tmp_path / "x.tdz")
    assert os.listdir(tmp_path) == []


# -- fuzzing -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("originals")
    saved = entries("ours", jagged=True, classes=False).exclude("large")
    out = []
    for compression in (None, "deflate"):
        saved.memmap(folder / "x.tdz", compression=compression)
        out.append((folder / "x.tdz").read_bytes())
    saved.memmap(folder / "d")
    with zipfile.ZipFile(folder / "y.zip", "w", zipfile.ZIP_DEFLATED) as made:
        for file in sorted((folder / "d").rglob("*")):
            made.write(file, file.relative_to(folder / "d"))
    return [*out, (folder / "y.zip").read_bytes(), sixty_four()]


def headers(content: bytes) -> list[int]:
    """Where headers, records and ends start: that is where a flipped byte matters."""
    return [at for at in range(len(content) - 3) if content[at : at + 2] == b"PK" and content[at + 2] < 8]


def mutate(data: st.DataObject, content: bytearray) -> None:
    action = data.draw(st.sampled_from(["header", "anywhere", "cut", "insert", "move"]))
    if action == "header":
        at = data.draw(st.sampled_from(headers(bytes(content)) or [0])) + data.draw(st.integers(0, 60))
        value = data.draw(
            st.sampled_from([b"\0", b"\xff", b"\xff" * 4, b"\0" * 4, b"\1", b"\x80"]) | st.binary(max_size=8)
        )
        content[at : at + len(value)] = value
    elif action == "anywhere":
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        content[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    elif action == "cut":
        del content[data.draw(st.integers(0, len(content))) :]
    elif action == "insert":
        at = data.draw(st.sampled_from([0, len(content), *headers(bytes(content))]))
        content[at:at] = data.draw(st.binary(min_size=1, max_size=70))
    else:
        starts = headers(bytes(content)) or [0]
        a, b, n = data.draw(st.sampled_from(starts)), data.draw(st.sampled_from(starts)), data.draw(st.integers(1, 60))
        content[a : a + n] = content[b : b + n]


FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def fuzz(data: st.DataObject, originals: list[bytes], folder: Path) -> None:
    content = bytearray(data.draw(st.sampled_from(originals)))
    for _ in range(data.draw(st.integers(1, 3))):
        mutate(data, content)
    check_one(bytes(content), folder)


@settings(FUZZ, max_examples=150)
@given(data=st.data())
def test_fuzzed_archives_load_whole_or_not_at_all(
    data: st.DataObject, originals: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    fuzz(data, originals, tmp_path_factory.mktemp("fuzz"))


@pytest.mark.soak
@settings(FUZZ, max_examples=20_000, derandomize=False)
@given(data=st.data())
def test_fuzzed_archives_for_longer(
    data: st.DataObject, originals: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    fuzz(data, originals, tmp_path_factory.mktemp("fuzz"))


def check_one(content: bytes, folder: Path) -> None:
    """An archive loads, every byte of it, or is a DatasetError; and nothing may be made."""
    path = folder / "x.tdz"
    path.write_bytes(content)
    with contextlib.suppress(DatasetError):
        touch(TensorDict.load_memmap(path))
    assert os.listdir(folder) == ["x.tdz"] and path.read_bytes() == content
    try:
        unpack_memmap(path, folder / "out" / "side")
    except DatasetError:
        assert not (folder / "out" / "side").exists()
    assert set(os.listdir(folder)) <= {"x.tdz", "out"}


def test_entries_that_all_lie_outside_the_file_are_an_error(originals: list[bytes], tmp_path: Path) -> None:
    for original in originals:
        content, at, place = bytearray(original), 0, len(original) + 100
        while (at := content.find(b"PK\x01\x02", at)) >= 0:
            content[at + 42 : at + 46] = place.to_bytes(4, "little")
            at, place = at + 46, place + 100_000
        (tmp_path / "x.tdz").write_bytes(content)
        with pytest.raises(DatasetError):
            touch(TensorDict.load_memmap(tmp_path / "x.tdz"))
