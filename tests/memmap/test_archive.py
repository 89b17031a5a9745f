"""Datasets in one file: what is saved is loaded, here and by the reference, in place where that can be."""

import os
import shutil
import subprocess
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import tensordict as reference
import torch

import tensordict_lite as project
from tensordict_lite import (
    DatasetError,
    MemoryMappedTensor,
    NonTensorData,
    TensorDict,
    is_memmap_archive,
    lazy_stack,
    load,
    load_memmap,
    memmap,
    pack_memmap,
    refresh_archive_checksums,
    save,
    unpack_memmap,
)
from tensordict_lite.errors import ArchiveError, ArchiveNotFoundError, DatasetNotFoundError
from tensordict_lite.memmap import tuning
from tensordict_lite.memmap.archive import write
from tensordict_lite.memmap.checksum import store, verify
from tensordict_lite.memmap.disk import crc, mapping
from tests.memmap.test_roundtrip import assert_same
from tests.memmap.trees import CROSSINGS, LIBRARIES, assert_entries, entries, leaves

COMPRESSIONS = [None, "stored", "deflate"]


@pytest.fixture
def small() -> TensorDict:
    return TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3, 2)}, "s": "x"}, [3])


def storages(td: Any) -> set[int]:
    return {leaf.untyped_storage().data_ptr() for leaf in leaves(td) if not leaf.is_nested and leaf.numel()}


# -- there and back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(("writer", "reader"), CROSSINGS)
def test_every_kind_of_entry_crosses_over(tmp_path: Path, writer: str, reader: str, compression: str | None) -> None:
    saved = entries(writer, jagged=(writer, reader) == ("ours", "ours"))
    path = tmp_path / "x.tdz"
    saved.memmap(path, compression=compression)
    assert zipfile.ZipFile(path).testzip() is None
    assert_entries(LIBRARIES[reader].td.load_memmap(path), saved, reader)


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_result_of_a_save_is_what_is_loaded(tmp_path: Path, compression: str | None, threads: int) -> None:
    saved = entries("ours", jagged=True)
    path = tmp_path / "x.tdz"
    out = saved.memmap(path, compression=compression, num_threads=threads)
    again = TensorDict.load_memmap(path, num_threads=threads)
    for td in (out, again):
        assert_entries(td, saved)
        assert not td.is_memmap() and not td.is_locked and td.device == torch.device("cpu")
        assert all(node.device == torch.device("cpu") for node in td.values() if isinstance(node, TensorDict))
        with pytest.raises(AttributeError):
            assert td.saved_path
    assert not saved.is_memmap() and not saved.is_locked and type(saved["a"]) is torch.Tensor
    mapped = compression in (None, "stored")
    for td in (out, again):
        assert isinstance(td["large"], MemoryMappedTensor) is mapped
        assert len(storages(td)) == 1 or not mapped
    first = path.read_bytes()
    saved.save(path, compression=compression)
    assert path.read_bytes() == first  # the same data makes the same file, whatever the number of threads
    assert os.listdir(tmp_path) == ["x.tdz"]


@pytest.mark.parametrize("size", [[], [1], [0], [2, 3], [2, 1, 5, 1]])
@pytest.mark.parametrize("compression", [None, "deflate"])
def test_batch_sizes_and_roots_of_every_class(tmp_path: Path, size: list[int], compression: str | None) -> None:
    point = LIBRARIES["ours"].point
    roots = {
        "td": TensorDict({"a": torch.rand(*size, 2), "n": TensorDict({}, size)}, size),
        "empty": TensorDict({}, size),
        "class": point(torch.rand(*size, 2), "l", batch_size=size),
        "stack": lazy_stack([TensorDict({"a": torch.rand(*size, i + 1)}, size) for i in range(2)], len(size)),
        "classes": lazy_stack([point(torch.rand(*size, 2), "l", batch_size=size) for _ in range(2)]),
        "object": NonTensorData("x", batch_size=[]),
    }
    for name, root in roots.items():
        root.memmap(tmp_path / f"{name}.tdz", compression=compression)
        loaded = TensorDict.load_memmap(tmp_path / f"{name}.tdz")
        assert type(loaded) is type(root) and loaded.batch_size == root.batch_size, name
        assert [leaf.tolist() for leaf in leaves(loaded)] == [leaf.tolist() for leaf in leaves(root)]


def test_functions_and_aliases_take_archives(tmp_path: Path, small: TensorDict) -> None:
    save(small, tmp_path / "s.tdz")
    memmap(small, tmp_path / "m.tdz", compression="deflate")
    small.dumps(tmp_path / "d.tdz")
    for name in ("s", "m", "d"):
        path = str(tmp_path / f"{name}.tdz")
        for loaded in (load(path), load_memmap(path), TensorDict.load(path), TensorDict.load_memmap(Path(path))):
            assert loaded["b", "c"].sum() == 6 and loaded["s"] == "x"


def test_name_or_option_decides_what_is_written(tmp_path: Path, small: TensorDict) -> None:
    small.memmap(tmp_path / "folder.tdz", archive=False)
    small.memmap(tmp_path / "file", archive=True)
    small.memmap(tmp_path / "X.TDZ")
    small.clone().memmap_(tmp_path / "inplace.tdz")
    assert [(tmp_path / n).is_dir() for n in ("folder.tdz", "file", "X.TDZ", "inplace.tdz")] == [
        True,
        False,
        True,
        True,
    ]
    for name in ("folder.tdz", "file", "X.TDZ", "inplace.tdz"):
        assert TensorDict.load_memmap(tmp_path / name)["a"].tolist() == [0, 1, 2]
    assert [is_memmap_archive(tmp_path / n) for n in ("folder.tdz", "file", "missing")] == [False, True, False]


def test_payloads_are_aligned_and_any_zip_tool_reads_them(tmp_path: Path) -> None:
    td = TensorDict({f"k{i}": torch.ones(i + 1, dtype=torch.uint8) for i in range(200)}, [])
    td.memmap(tmp_path / "x.tdz")
    loaded = TensorDict.load_memmap(tmp_path / "x.tdz")
    assert all(leaf.data_ptr() % 64 == 0 for leaf in leaves(loaded))
    with zipfile.ZipFile(tmp_path / "x.tdz") as archive:
        assert archive.read("k7.memmap") == b"\1" * 8
    if shutil.which("unzip"):
        subprocess.run(["unzip", "-q", "x.tdz", "-d", "out"], cwd=tmp_path, check=True)
        assert_same(TensorDict.load_memmap(tmp_path / "out"), td)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_any_zip_of_a_folder_loads(tmp_path: Path, method: int) -> None:
    saved = entries("ours", jagged=True)
    saved.memmap(tmp_path / "d")
    with zipfile.ZipFile(tmp_path / "x.zip", "w", method) as archive:
        archive.comment = b"made by hand"
        for file in sorted((tmp_path / "d").rglob("*")):
            archive.write(file, file.relative_to(tmp_path / "d"))  # folders too
    assert_entries(TensorDict.load_memmap(tmp_path / "x.zip"), saved)
    assert is_memmap_archive(tmp_path / "x.zip")
    with pytest.raises(ArchiveError, match=r'mode="r\+"'):
        TensorDict.load_memmap(tmp_path / "x.zip", mode="r+")


def test_zip_that_was_written_as_a_stream_loads(tmp_path: Path, small: TensorDict) -> None:
    small.memmap(tmp_path / "d")
    made, out = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(made)
        with open(out, "wb") as pipe, zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in (tmp_path / "d").rglob("*"):
                archive.write(file, file.relative_to(tmp_path / "d"))
        os._exit(0)
    os.close(out)
    with open(made, "rb") as pipe:
        (tmp_path / "x.zip").write_bytes(pipe.read())
    os.waitpid(pid, 0)
    assert_same(TensorDict.load_memmap(tmp_path / "x.zip").exclude("s"), small.exclude("s"))


# -- saving --------------------------------------------------------------------------------------------------------


def test_mapped_tensors_are_copied_without_asking(tmp_path: Path, small: TensorDict) -> None:
    mapped = small.memmap(tmp_path / "d")
    mapped.memmap(tmp_path / "x.tdz")
    loaded = TensorDict.load_memmap(tmp_path / "x.tdz")
    loaded.memmap(tmp_path / "x.tdz")  # onto the file that it is mapped from
    assert loaded["a"].tolist() == [0, 1, 2]
    folder = TensorDict.load_memmap(tmp_path / "x.tdz").memmap(tmp_path / "back")
    assert folder.is_memmap() and folder["a"].filename == str(tmp_path / "back" / "a.memmap")
    shared = loaded.memmap()
    assert shared.is_memmap() and shared.saved_path is None and storages(shared).isdisjoint(storages(loaded))
    own = MemoryMappedTensor.from_tensor(loaded["a"], filename=tmp_path / "a.memmap")
    assert own.filename == str(tmp_path / "a.memmap")


def test_saves_from_what_is_awkward(tmp_path: Path) -> None:
    big = torch.arange(2_000_000).view(2, 1000, 1000)
    td = TensorDict(
        {
            "grad": torch.ones(2, 2, requires_grad=True),
            "conj": torch.complex(torch.ones(2), torch.ones(2)).conj(),
            "big_strides": big.transpose(1, 2),
            "big_expanded": torch.ones(2, 1, 1).expand(2, 1000, 300),
            "big_conj": torch.complex(torch.ones(2, 300_000), torch.ones(2, 300_000)).conj(),
        },
        [2],
    )
    for threads in (0, 3):
        for compression in (None, "deflate"):
            loaded = td.memmap(tmp_path / "x.tdz", num_threads=threads, compression=compression)
            for key, value in td.items():
                assert torch.equal(loaded[key].as_subclass(torch.Tensor), value.detach().resolve_conj()), key
    params = project.TensorDictParams(TensorDict({"w": torch.ones(2)}, []))
    params.memmap(tmp_path / "p.tdz")
    assert TensorDict.load_memmap(tmp_path / "p.tdz")["w"].sum() == 2


def test_options_that_contradict_each_other_are_named(tmp_path: Path, small: TensorDict) -> None:
    for compression in ("deflate", 8):
        with pytest.raises(ValueError, match="archive=True"):
            small.memmap(tmp_path / "d", compression=compression)
    with pytest.raises(ValueError, match="archive=True"):
        small.memmap(tmp_path / "d.tdz", archive=False, compression="deflate")
    with pytest.raises(ValueError, match="prefix"):
        small.memmap(archive=True)
    for bad in ("zstd", 77, True, 3.0):
        with pytest.raises(ValueError, match="unknown compression"):
            small.memmap(tmp_path / "x.tdz", compression=bad)
    for save_as in (small.memmap, small.save, small.memmap_like):
        with pytest.raises(NotImplementedError, match="return_early"):
            save_as(tmp_path / "x.tdz", return_early=True, num_threads=2)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        small.memmap(tmp_path / "folder", archive=True)
    small.memmap(tmp_path / "x.tdz")
    with pytest.raises(RuntimeError, match="existsok"):
        small.memmap(tmp_path / "x.tdz", existsok=False)
    with pytest.raises(RuntimeError, match="allow_pickle"):
        TensorDict({"s": {1, 2}}).memmap(tmp_path / "p.tdz")
    assert sorted(os.listdir(tmp_path)) == ["folder", "x.tdz"]


def test_replaced_archive_keeps_its_mode_its_link_and_its_readers(tmp_path: Path, small: TensorDict) -> None:
    small.memmap(tmp_path / "x.tdz")
    os.chmod(tmp_path / "x.tdz", 0o640)
    os.symlink(tmp_path / "x.tdz", tmp_path / "link.tdz")
    before = TensorDict.load_memmap(tmp_path / "x.tdz")
    (small + 1).memmap(tmp_path / "link.tdz")
    assert os.path.islink(tmp_path / "link.tdz")
    assert oct(os.stat(tmp_path / "x.tdz").st_mode & 0o777) == "0o640"
    assert before["a"].tolist() == [0, 1, 2]
    assert TensorDict.load_memmap(tmp_path / "x.tdz")["a"].tolist() == [1, 2, 3]
    small.memmap(tmp_path / "made" / "on" / "the way.tdz")
    assert TensorDict.load_memmap(tmp_path / "made" / "on" / "the way.tdz")["s"] == "x"


# -- loading -------------------------------------------------------------------------------------------------------


def test_writes_stay_here_by_default_and_reach_the_file_when_asked(tmp_path: Path, small: TensorDict) -> None:
    path = tmp_path / "x.tdz"
    small.memmap(path)
    for mode in (None, "r"):
        loaded = TensorDict.load_memmap(path, mode=mode)
        loaded["a"].add_(7)
        assert TensorDict.load_memmap(path)["a"].tolist() == [0, 1, 2]
    loaded = TensorDict.load_memmap(path, mode="r+")
    loaded["a"].add_(7)
    assert TensorDict.load_memmap(path)["a"].tolist() == [7, 8, 9]
    assert loaded["a"].filename == str(path)
    assert zipfile.ZipFile(path).testzip() == "a.memmap" and not verify(path).ok
    assert refresh_archive_checksums(path) == path
    assert zipfile.ZipFile(path).testzip() is None and verify(path).ok
    with pytest.raises(ValueError, match="mode"):
        TensorDict.load_memmap(path, mode="w")


def test_nested_tensors_are_mapped_in_place(tmp_path: Path) -> None:
    parts = [torch.ones(i + 1, 4 - i) * i for i in range(3)]
    td = TensorDict(
        {
            "strided": torch.nested.nested_tensor(parts),
            "jagged": torch.nested.nested_tensor([torch.ones(i + 1, 2) for i in range(3)], layout=torch.jagged),
        },
        [3],
    )
    td.memmap(tmp_path / "x.tdz")
    loaded = TensorDict.load_memmap(tmp_path / "x.tdz", mode="r+")
    loaded["strided"].unbind()[2].fill_(9)
    loaded["jagged"].values().mul_(3)
    again = TensorDict.load_memmap(tmp_path / "x.tdz")
    assert again["strided"].unbind()[2].eq(9).all() and again["strided"].unbind()[1].eq(1).all()
    assert again["jagged"].values().eq(3).all()


def test_mode_for_writing_needs_an_archive_that_can_be_written(tmp_path: Path, small: TensorDict) -> None:
    small.memmap(tmp_path / "c.tdz", compression="deflate")
    with pytest.raises(ValueError, match="compressed"):
        TensorDict.load_memmap(tmp_path / "c.tdz", mode="r+")
    if os.geteuid():
        os.chmod(tmp_path / "c.tdz", 0o400)
        with pytest.raises(PermissionError):
            TensorDict.load_memmap(tmp_path / "c.tdz", mode="r+")


def test_part_of_an_archive_is_loaded_alone(tmp_path: Path) -> None:
    saved = entries("ours")
    for compression in (None, "deflate"):
        saved.memmap(tmp_path / "x.tdz", compression=compression)
        for subpath in ("deep/er", ("deep", "er"), (("deep",), "er")):
            part = TensorDict.load_memmap(tmp_path / "x.tdz", subpath=subpath, num_threads=2)
            assert part["still"].tolist() == [0, 1, 2]
        assert TensorDict.load_memmap(tmp_path / "x.tdz", subpath="lazy/1")["s"] == "1"
        assert TensorDict.load_memmap(tmp_path / "x.tdz", subpath="point").label == "q"
        assert set(TensorDict.load_memmap(tmp_path / "x.tdz", subpath="").keys()) == set(saved.keys())
        for missing in ("nothing", "a", "deep/nothing", "lazy/7", "lazy/x"):
            with pytest.raises((ValueError, DatasetError)):
                TensorDict.load_memmap(tmp_path / "x.tdz", subpath=missing)


def test_what_is_mapped_is_so_no_more_with_the_entries_of_an_archive(tmp_path: Path, small: TensorDict) -> None:
    path = tmp_path / "x.tdz"
    small.memmap(path)
    mapped = (small + 1).memmap(tmp_path / "d")
    assert mapped.load_memmap_(path) is mapped and mapped["a"].tolist() == [0, 1, 2]
    assert not mapped.is_memmap() and not mapped.is_locked


def test_zeros_without_writing_them(tmp_path: Path) -> None:
    datum = TensorDict({"image": torch.ones(3, 8, 8), "label": torch.tensor(3), "note": "n"}, [])
    for rows in (0, 1, 20_000):
        room = datum.expand(rows).memmap_like(tmp_path / "x.tdz")
        assert room["image"].shape == (rows, 3, 8, 8) and not room["image"].any() and room["note"] == "n"
        assert zipfile.ZipFile(tmp_path / "x.tdz").testzip() is None  # the checksums are those of zeros
        assert not room.is_memmap() and not room.is_locked
    room["label"].copy_(torch.arange(20_000))
    assert TensorDict.load_memmap(tmp_path / "x.tdz")["label"].sum() == sum(range(20_000))
    assert not datum.expand(20_000).memmap_like(tmp_path / "x.tdz")["label"].any()  # always made anew
    with pytest.raises(RuntimeError, match="existsok"):
        datum.memmap_like(tmp_path / "x.tdz", existsok=False)
    ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    made = TensorDict({"n": ragged}, [2]).memmap_like(tmp_path / "n.tdz")
    assert [tuple(part.shape) for part in made["n"].unbind()] == [(2, 3), (1, 3)] and not made["n"].values().any()


# -- packing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_folder_is_packed_and_unpacked(tmp_path: Path, compression: str | None, threads: int) -> None:
    saved = entries("ours", jagged=True)
    saved.memmap(tmp_path / "d").checksum()
    packed = pack_memmap(tmp_path / "d", tmp_path / "x.tdz", compression=compression, num_threads=threads)
    assert packed == tmp_path / "x.tdz"
    assert_entries(TensorDict.load_memmap(packed), saved)
    assert unpack_memmap(packed, tmp_path / "back") == tmp_path / "back"
    files = {p.relative_to(tmp_path / "d"): p.read_bytes() for p in (tmp_path / "d").rglob("*") if p.is_file()}
    assert {
        p.relative_to(tmp_path / "back"): p.read_bytes() for p in (tmp_path / "back").rglob("*") if p.is_file()
    } == files
    assert verify(tmp_path / "back").ok  # the stored checksums went along
    reference.unpack_memmap(packed, tmp_path / "theirs")
    assert {p.relative_to(tmp_path / "theirs") for p in (tmp_path / "theirs").rglob("*") if p.is_file()} == set(files)


def test_archives_of_the_reference_are_unpacked_and_refreshed(tmp_path: Path) -> None:
    saved = entries("theirs")
    saved.memmap(tmp_path / "x.tdz")
    unpack_memmap(tmp_path / "x.tdz", tmp_path / "d")
    assert_entries(TensorDict.load_memmap(tmp_path / "d"), saved)
    TensorDict.load_memmap(tmp_path / "x.tdz", mode="r+")["a"].add_(1)
    with pytest.raises(ArchiveError, match="a.memmap.*refresh_archive_checksums"):
        unpack_memmap(tmp_path / "x.tdz", tmp_path / "e")
    assert not (tmp_path / "e").exists()
    refresh_archive_checksums(tmp_path / "x.tdz")
    assert reference.TensorDict.load_memmap(tmp_path / "x.tdz")["a"].sum() == 21
    assert zipfile.ZipFile(tmp_path / "x.tdz").testzip() is None


def test_unpacking_over_a_dataset_replaces_it(tmp_path: Path, small: TensorDict) -> None:
    TensorDict({"a": torch.zeros(9), "old": torch.zeros(9)}, [9]).memmap(tmp_path / "d")
    small.memmap(tmp_path / "x.tdz")
    unpack_memmap(tmp_path / "x.tdz", tmp_path / "d")
    assert_same(TensorDict.load_memmap(tmp_path / "d").exclude("s"), small.exclude("s"))
    with zipfile.ZipFile(tmp_path / "x.tdz", "a") as archive:
        archive.writestr("extra/deep/file.txt", "hello")
    for name in ("d", "fresh"):
        unpack_memmap(tmp_path / "x.tdz", tmp_path / name)
        assert (tmp_path / name / "extra" / "deep" / "file.txt").read_text() == "hello"


def test_what_cannot_be_packed_is_named(tmp_path: Path, small: TensorDict) -> None:
    small.memmap(tmp_path / "d")
    for folder in (tmp_path, tmp_path / "nothing", tmp_path / "d" / "a.memmap"):
        with pytest.raises(ValueError, match=r"no meta\.json"):
            pack_memmap(folder, tmp_path / "x.tdz")
    for inside in (tmp_path / "d" / "x.tdz", tmp_path / "d" / "a.memmap", tmp_path / "d" / "b" / "new" / "x.tdz"):
        with pytest.raises(ValueError, match="outside"):
            pack_memmap(tmp_path / "d", inside)
    with pytest.raises(ValueError, match="is a folder"):
        pack_memmap(tmp_path / "d", tmp_path)
    for level in (10, -1, "9", True):
        with pytest.raises(ValueError, match="level"):
            pack_memmap(tmp_path / "d", tmp_path / "x.tdz", compression="deflate", compresslevel=level)
    os.symlink("/etc/passwd", tmp_path / "d" / "secret")
    with pytest.raises(DatasetError, match="secret.*link"):
        pack_memmap(tmp_path / "d", tmp_path / "x.tdz")
    assert sorted(os.listdir(tmp_path)) == ["d"]


def test_missing_archives_are_named(tmp_path: Path, small: TensorDict) -> None:
    for call in (lambda p: unpack_memmap(p, tmp_path / "out"), refresh_archive_checksums):
        with pytest.raises(ArchiveNotFoundError, match="does not exist") as caught:
            call(tmp_path / "none.tdz")
        assert isinstance(caught.value, (ValueError, FileNotFoundError))
    with pytest.raises(DatasetNotFoundError):
        TensorDict.load_memmap(tmp_path / "none.tdz")
    small.memmap(tmp_path / "d")
    for call in (lambda p: unpack_memmap(p, tmp_path / "out"), refresh_archive_checksums):
        with pytest.raises(ValueError, match="is a folder"):
            call(tmp_path / "d")


# -- checksums -----------------------------------------------------------------------------------------------------


def test_verify_and_store_know_archives(tmp_path: Path) -> None:
    saved = entries("ours")
    for compression in (None, "deflate"):
        path = tmp_path / f"{compression}.tdz"
        saved.memmap(path, compression=compression)
        report = verify(path, num_threads=3)
        assert report.ok and report.files == len(zipfile.ZipFile(path).namelist()) and report.nbytes > 1_080_000
    path = tmp_path / "None.tdz"
    TensorDict.load_memmap(path, mode="r+")["large"][1, 5] = -1
    [problem] = verify(path).problems
    assert problem.file == "large.memmap" and "checksum differs" in problem.reason
    with pytest.raises(DatasetError, match="large"):
        verify(path).raise_if_corrupt()
    assert len(store(path)) == len(zipfile.ZipFile(path).namelist()) and verify(path).ok
    content = bytearray((tmp_path / "deflate.tdz").read_bytes())
    at = zipfile.ZipFile(tmp_path / "deflate.tdz").getinfo("large.memmap").header_offset + 300
    content[at] ^= 0xFF
    (tmp_path / "deflate.tdz").write_bytes(content)
    [problem] = verify(tmp_path / "deflate.tdz").problems
    assert problem.file == "large.memmap"
    with pytest.raises(ArchiveError, match="large"):
        TensorDict.load_memmap(tmp_path / "deflate.tdz")


@pytest.mark.parametrize("lengths", [(0, 0), (0, 5), (5, 0), (1, 1), (1000, 3), (3, 100_003)])
def test_checksums_of_parts_are_put_together(lengths: tuple[int, int]) -> None:
    first, second = (torch.randint(0, 256, (n,), dtype=torch.uint8).numpy().tobytes() for n in lengths)
    assert crc.combine(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)
    assert crc.of_zeros(lengths[1]) == zlib.crc32(bytes(lengths[1]))


# -- large archives ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "deflate"])
def test_sizes_and_offsets_of_64_bits(tmp_path: Path, compression: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With lower limits, so that a small file uses the extension; readers that know nothing of it read it."""
    saved = entries("ours")
    path = tmp_path / "x.tdz"
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 50_000)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 5)
    saved.memmap(path, compression=compression)
    raw = path.read_bytes()
    assert b"PK\6\6" in raw and b"PK\6\7" in raw
    at = zipfile.ZipFile(path).getinfo("large.memmap").header_offset
    assert raw[at + 18 : at + 26] == b"\xff" * 8  # both sizes are in the extension
    assert zipfile.ZipFile(path).testzip() is None
    assert_entries(TensorDict.load_memmap(path), saved)
    assert_entries(reference.TensorDict.load_memmap(path), saved, "theirs")
    TensorDict.load_memmap(path, num_threads=2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_archive_of_more_than_four_gigabytes(tmp_path: Path) -> None:
    rows = 5 << 10
    td = TensorDict({"a": torch.zeros(1, 1 << 20, dtype=torch.uint8), "b": torch.tensor([3])}, [1]).expand(rows)
    room = td.memmap_like(tmp_path / "x.tdz")
    room["a"][-1, -1], room["b"][-1] = 9, 7
    refresh_archive_checksums(tmp_path / "x.tdz")
    for lib in (TensorDict, reference.TensorDict):
        loaded = lib.load_memmap(tmp_path / "x.tdz")
        assert loaded["a"][-1, -1] == 9 and loaded["b"][-1] == 7 and loaded["a"].shape == (rows, 1 << 20)
    td.memmap(tmp_path / "y.tdz", num_threads=4)
    assert zipfile.ZipFile(tmp_path / "y.tdz").testzip() is None


@pytest.mark.parametrize("lacking", ["nothing", "fallocate"])
def test_data_is_written_in_parts_of_any_size(lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacking == "fallocate":
        monkeypatch.setattr(mapping, "_fallocate", lambda: None)
    saved = entries("ours")
    sizes = {"small": 1000, "part": 7000, "thread_part": 11_000, "deflate": 9000}
    parts = {f"{name}_bytes": size for name, size in sizes.items()}
    for threads in (0, 2):
        for compression in COMPRESSIONS if lacking == "nothing" else [None]:
            with tuning.use(**parts):
                saved.memmap(tmp_path / "x.tdz", num_threads=threads, compression=compression)
            assert zipfile.ZipFile(tmp_path / "x.tdz").testzip() is None
            assert_entries(TensorDict.load_memmap(tmp_path / "x.tdz"), saved)
        saved.memmap(tmp_path / f"d{threads}")
        with tuning.use(**parts):
            pack_memmap(tmp_path / f"d{threads}", tmp_path / "y.tdz", num_threads=threads)
        assert_entries(TensorDict.load_memmap(tmp_path / "y.tdz"), saved)


@pytest.mark.parametrize("rows", [50, 400_000], ids=["pages", "large"])
def test_an_archive_holds_what_was_there_at_one_moment(
    tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saves that exchange one file leave the metadata as they are: nothing else tells of them."""
    path, real, others = tmp_path / "d", write.FileData.read, ["x", "y"]
    TensorDict({key: torch.full((rows,), 1) for key in ("x", "y")}, [rows]).memmap(path)

    def read(self: write.FileData, start: int, stop: int) -> memoryview:
        part = real(self, start, stop)
        if self.path.endswith("x.memmap"):
            while others:
                data = TensorDict.load_memmap(path).unlock_()
                data[others.pop(0)] = torch.full((rows,), 2)
                data.memmap_(path)
        return part

    monkeypatch.setattr(write.FileData, "read", read)
    pack_memmap(path, tmp_path / "d.tdz")
    archive = TensorDict.load_memmap(tmp_path / "d.tdz")
    assert not others
    assert [archive[key].unique().tolist() for key in ("x", "y")] == [[2], [2]]
