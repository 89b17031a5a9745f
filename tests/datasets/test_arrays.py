"""HDF5 and Zarr: against h5py and zarr themselves."""

import io
import math
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.datasets import arrays as arrays_module
from tdmap.datasets import read, write
from tdmap.errors import UnreadableFile
from tensordict_lite import Ragged, TensorDict
from tests.datasets.listing import listed
from tests.mounts import mounted, needs_root
from tests.processes import in_child
from tests.products import sampled


def data(rows: int = 50) -> TensorDict:
    return TensorDict(
        {"x": torch.arange(rows), "image": torch.randint(0, 255, (rows, 3, 4), dtype=torch.uint8),
         "deep": TensorDict({"flag": torch.arange(rows) % 2 == 0, "f": torch.randn(rows)}, [rows])},
        [rows],
    )  # fmt: skip


@pytest.mark.parametrize("ending", ["h5", "zarr"])
@tuning.use(read_bytes=300)  # some rows at a time
def test_tensors_go_out_and_come_back(tmp_path: Path, ending: str) -> None:
    pytest.importorskip({"h5": "h5py", "zarr": "zarr"}[ending])
    rows = data()
    write(rows, tmp_path / f"d.{ending}", batch_rows=17)
    write(rows, tmp_path / f"d.{ending}", batch_rows=23)  # in the place of the first
    found = read(tmp_path / f"d.{ending}", tmp_path / "out")
    for key in ("x", "image", ("deep", "flag"), ("deep", "f")):
        assert torch.equal(found[key], rows[key]), key
    assert list(read(tmp_path / f"d.{ending}", columns=["x"]).keys()) == ["x"]
    with pytest.raises(ValueError, match="no column 'y'"):
        read(tmp_path / f"d.{ending}", columns=["y"])
    assert {path.name for path in tmp_path.iterdir()} == {f"d.{ending}", "out"}


def test_hdf5_has_text_and_rows_of_different_lengths(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    columns = {"x": torch.arange(3), "word": ["größer", "", "ant"], "ids": Ragged.from_list([[1, 2], [], [3]])}
    write(columns, tmp_path / "d.h5", batch_rows=2)
    with h5py.File(tmp_path / "d.h5") as file:
        assert [word.decode() for word in file["word"]] == ["größer", "", "ant"]
        assert [row.tolist() for row in file["ids"]] == [[1, 2], [], [3]]
    found = read(tmp_path / "d.h5", tmp_path / "out")
    assert found["word"] == ["größer", "", "ant"] and found["ids"].tolist() == [[1, 2], [], [3]]
    with pytest.raises(TypeError, match="bytes"):
        write({"b": Ragged.from_list([b"a\0"])}, tmp_path / "e.h5")
    assert not list(tmp_path.glob("e.h5*"))


@needs_root
@pytest.mark.parametrize("how", ["write", "to_h5", "chunks"])
def test_hdf5_on_a_full_disk_is_an_error_that_leaves_nothing(tmp_path: Path, how: str) -> None:
    pytest.importorskip("h5py")
    rows = TensorDict({"x": torch.randn(60_000, 16), "word": [f"word {n}" for n in range(60_000)]}, [60_000])
    with mounted(tmp_path / "full", "-t", "tmpfs", "-o", "size=2m", "tmpfs") as disk:

        def work() -> None:
            for _ in range(2):
                with pytest.raises(OSError, match=r"No space left on device: '.*/full/a\.h5'"):
                    if how == "write":
                        write(rows, disk / "a.h5", batch_rows=5_000)
                    else:
                        rows.to_h5(disk / "a.h5", **({"chunks": True} if how == "chunks" else {}))
                assert [path.name for path in disk.iterdir()] == ["b.h5"]
            write({"x": torch.arange(3)}, disk / "b.h5")

        write({"x": torch.arange(4)}, disk / "b.h5")
        assert in_child(work) == 0  # HDF5 ended the process, not before the next file was open
        assert read(disk / "b.h5")["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("ending", ["h5", "zarr"])
@pytest.mark.parametrize("name", ["a/b", "../x", "/"])
def test_names_that_would_lead_elsewhere_are_refused(tmp_path: Path, ending: str, name: str) -> None:
    pytest.importorskip({"h5": "h5py", "zarr": "zarr"}.get(ending, "pyarrow"))
    with pytest.raises(ValueError, match=f"{name!r} .*slash"):
        write({name: torch.arange(2)}, tmp_path / f"d.{ending}")
    if ending == "h5":
        with pytest.raises(ValueError, match="slash"):
            write({name: ["a", "b"]}, tmp_path / "d.h5")
        with pytest.raises(ValueError, match="slash"):
            write({"": torch.arange(2)}, tmp_path / "d.h5")


def test_numpy_takes_every_name_and_says_what_it_would_cut(tmp_path: Path) -> None:
    names = ["file", "allow_pickle", "a/b", "arr_0", "größe"]
    write({name: torch.arange(2) for name in names}, tmp_path / "d.npz")
    assert list(np.load(tmp_path / "d.npz")) == list(read(tmp_path / "d.npz").keys()) == names
    for row in ("a\0", b"\0"):
        with pytest.raises(ValueError, match="'word' end in zeros"):
            write({"word": [row]}, tmp_path / "e.npz")
    write({"word": ["a\0b"]}, tmp_path / "e.npz")
    assert read(tmp_path / "e.npz")["word"] == ["a\0b"]
    for rows, kind in ((["a"], "str"), ([b"a"], "bytes")):
        write({"word": Ragged.from_list(rows)[:0]}, tmp_path / "f.npz")
        assert read(tmp_path / "f.npz").get("word").kind == kind
    pytest.importorskip("h5py")
    with pytest.raises(ValueError, match="'word' .* zero characters"):
        write({"word": ["a\0b"]}, tmp_path / "e.h5")


def test_hdf5_of_other_programs(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["big"] = np.arange(4, dtype=">i4")
        file["group/half"] = np.arange(4, dtype=np.float16)
    found = read(tmp_path / "d.h5")
    assert found["big"].tolist() == [0, 1, 2, 3] and found["group", "half"].dtype is torch.float16
    for name, change in {
        "lengths": lambda file: file.create_dataset("longer", data=np.arange(5)),
        "is a link": lambda file: file.__setitem__("away", h5py.ExternalLink("/etc/other.h5", "/x")),
        "other files": lambda file: file.create_dataset("raw", (4,), "u1", external=[(str(tmp_path / "raw"), 0, 4)]),
    }.items():
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = np.arange(4)
            change(file)
        match = "different numbers" if name == "lengths" else name
        with pytest.raises(ValueError, match=match):
            read(tmp_path / f"{name}.h5")


def test_zarr_of_other_programs(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    for version in (2, 3):
        group: Any = zarr.open_group(str(tmp_path / f"v{version}.zarr"), mode="w", zarr_format=version)
        group.create_array("a/b", shape=(10, 2), chunks=(3, 1), dtype="f4")[:] = np.arange(20).reshape(10, 2)
        found = read(tmp_path / f"v{version}.zarr", tmp_path / f"out{version}")
        assert found["a", "b"].tolist() == np.arange(20).reshape(10, 2).tolist()
    for rows, match in (([b"a"], "'s'.* bytes, which Zarr"), ([[1], [2, 3]], "'s'.* different lengths, which Zarr")):
        with pytest.raises(TypeError, match=match):
            write({"s": Ragged.from_list(rows)}, tmp_path / "s.zarr")
    with pytest.raises(ValueError, match="local disks"):
        write(data(3), "s3://there/s.zarr")


@pytest.mark.parametrize("how", ["write", "to_zarr", "named", "zarr 2", "without rows"])
def test_arrays_of_zarr_name_their_dimensions_for_xarray(tmp_path: Path, how: str) -> None:
    zarr = pytest.importorskip("zarr")
    rows = TensorDict({"image": torch.zeros(5, 3, 4), "word": ["a"] * 5, "deep": {"y": torch.zeros(5, 3)}}, [5])
    first: Any = ["dim_0"]
    if how == "write":
        write(rows, tmp_path / "a.zarr", batch_rows=2)
    elif how == "zarr 2":
        zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=2)
        stored = TensorDict.from_zarr(tmp_path / "a.zarr", mode="r+", batch_size=[])
        stored.update({"image": torch.zeros(5, 3, 4), "deep": {"y": torch.zeros(5, 3)}})
        first = None
    else:
        if how == "without rows":
            rows, first = rows.exclude("word"), None
            rows["deep"].batch_size = rows.batch_size = []
        if how == "named":
            rows.names = first = ["time"]
        rows.to_zarr(tmp_path / "a.zarr")
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="r")
    for name in ["image", "deep/y", *["word"] * (first is not None)]:
        array = group[name]
        own = [f"{name.rpartition('/')[2]}_dim_{dim}" for dim in range(array.ndim)]
        found = array.attrs["_ARRAY_DIMENSIONS"] if how == "zarr 2" else array.metadata.dimension_names
        assert [*found] == [*(first or own[:1]), *own[1:]]
    if first is not None:
        assert read(tmp_path / "a.zarr")["word"] == ["a"] * 5 and tdmap.open(tmp_path / "a.zarr")[1]["word"] == "a"


# -- equal, or refused by name -----------------------------------------------------------------------------------------

DTYPES = "? i1 u1 <i2 >i2 <u4 >i8 <u8 >u8 f2 >f4 f8 c8 >c16 g S3 U2 >U2 V3".split() + [
    "M8[D]", "M8[Y]", "M8[M]", "M8[W]", "M8[h]", "M8[25s]", ">M8[s]", "M8[ms]", "M8[ns]", "M8[ps]", "M8",
    "m8[D]", "m8[W]", "m8[h]", "m8[7us]", ">m8[ns]", "m8[Y]", "m8",
]  # fmt: skip
SHAPES: list[tuple[int, ...]] = [(5,), (5, 1), (5, 2, 3), (5, 0), (0,), (0, 2), ()]


def array(dtype: str, shape: tuple[int, ...]) -> Any:
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return numbers.astype("i8").astype(dtype) if np.dtype(dtype).kind in "mM" else numbers.astype(dtype)


def same(column: Any, kind: str, found: Any) -> bool:
    """Whether a column is what NumPy has."""
    if isinstance(column, Ragged):
        return bool(column.tolist() == (found.astype(str) if column.kind == "str" else found).tolist())
    if kind:
        unit = {"date32[day]": "D"}.get(kind, kind.partition("[")[2][:-1])
        times = column.numpy().astype("i8").view(f"{found.dtype.kind}8[{unit}]")
        return bool((times == found).all())
    native = found.astype(found.dtype.newbyteorder("="))
    return bool(column.numpy().dtype == native.dtype and np.array_equal(column.numpy(), native))


def put(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays with what their format is of."""
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            for name, one in arrays.items():
                file[name] = one.astype(h5py.opaque_dtype(one.dtype)) if one.dtype.kind in "mM" else one
    elif path.suffix == ".zarr":
        group = zarr.open_group(str(path), mode="w")
        for name, one in arrays.items():
            group.create_array(name, shape=one.shape, chunks=tuple(max(n, 1) for n in one.shape), dtype=one.dtype)[
                ...
            ] = one
    else:
        with open(path, "wb") as file:
            np.savez_compressed(file, **arrays) if path.suffix == ".NPZ" else np.save(file, arrays["values"])


@pytest.mark.filterwarnings("ignore:The data type")
@pytest.mark.parametrize("dtype, ending, half", sampled(2, DTYPES, ["npy", "NPZ", "h5", "zarr"], [0, 1]))
def test_an_array_is_read_as_it_is_or_refused_by_name(tmp_path: Path, ending: str, dtype: str, half: int) -> None:
    name = "values" if ending == "npy" else "col"
    for number, shape in enumerate(SHAPES[half::2]):
        path = tmp_path / f"{number}.{ending}"
        wanted = np.asarray(array(dtype, shape), order="F" if number % 2 else "C")
        others = {"other": np.arange(5)} if ending != "npy" and shape == (5,) else {}
        try:
            put(path, {name: wanted, **others})
        except (TypeError, ValueError, NotImplementedError):
            continue  # the format has no such array
        for columns, out in ((None, None), ([name], tmp_path / f"out{number}")):
            try:
                found = read(path, out, columns=columns)
            except (TypeError, ValueError) as error:
                assert str(path) in str(error) and (repr(name) in str(error) or (dtype, ending) == ("M8", "zarr"))
                assert not out or not out.exists()
                is_flat = np.dtype(dtype).kind in "SUmM"
                assert dtype in ("g", "V3", "M8", "m8", "M8[ps]", "m8[Y]") or not shape or (is_flat and len(shape) > 1)
                continue
            assert list(found.keys()) == ([name] if columns else [name, *others])
            assert same(found.get(name), found.arrow_types.get(name, ""), wanted), (shape, out)
            assert not others or columns or found["other"].tolist() == others["other"].tolist()


@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_times_that_are_too_large_are_refused_and_nat_is_null(tmp_path: Path, ending: str) -> None:
    name = "values" if ending == "npy" else "d"

    def saved(days: Any) -> Path:
        np.save(tmp_path / "x.npy", days) if ending == "npy" else np.savez(tmp_path / "x.npz", d=days)
        return tmp_path / f"x.{ending}"

    for large in (np.array([1, 2**40], "M8[D]"), np.array([1, 2**62], "M8[25s]"), np.array([1, 2**62], "m8[D]")):
        with pytest.raises(ValueError, match=rf"x\.{ending}: the array '{name}' .*row 1"):
            read(saved(large))
    with pytest.raises(ValueError, match=rf"'{name}' has nulls, the first in row 1"):
        read(saved(np.array(["2020-01-01", "NaT"], "M8[D]")))
    found = read(tmp_path / f"x.{ending}", nulls="mask")
    assert found[f"{name}.valid"].tolist() == [True, False] and found.arrow_types[name] == "date32[day]"


@pytest.mark.parametrize("order", ["C", "F"])
@tuning.use(read_bytes=1 << 18)
def test_an_npz_file_is_read_some_rows_at_a_time(tmp_path: Path, order: Any) -> None:
    rows = np.arange(1 << 14, dtype=np.int64).reshape(-1, 1) + np.zeros((1, 64), np.int64)
    np.savez_compressed(tmp_path / "x.npz", x=np.asarray(rows, order=order), y=rows[:, 0].astype(str))
    size, start = rows.nbytes, 0
    del rows
    tracemalloc.start()
    try:
        for part in arrays_module.read_numpy(str(tmp_path / "x.npz"), None):
            stop = start + part.num_rows
            assert torch.equal(part.columns["x",], torch.arange(start, stop).reshape(-1, 1).expand(-1, 64))
            assert part.columns["y",].tolist() == [str(row) for row in range(start, stop)]
            start = stop
        assert start == 1 << 14 and tracemalloc.get_traced_memory()[1] < size // 4
    finally:
        tracemalloc.stop()


def numpy_files() -> dict[str, bytes]:
    rows, text = np.arange(300).reshape(100, 3), np.array(["a", "b"])
    found = {}
    for name, one in {"c": rows, "f": np.asfortranarray(rows), "u": text}.items():
        file = io.BytesIO()
        np.save(file, one)
        found[f"{name}.npy"] = file.getvalue()
        for save in (np.savez, np.savez_compressed):
            file = io.BytesIO()
            save(file, x=one)
            found[f"{name}.{save.__name__}"] = file.getvalue()
    return found


@pytest.mark.parametrize("name", numpy_files())
def test_a_damaged_file_of_numpy_is_refused(tmp_path: Path, name: str) -> None:
    content = numpy_files()[name]
    path = tmp_path / ("x.npy" if name.endswith("npy") else "x.npz")
    path.write_bytes(content)
    wanted = list(listed(read(path)).values())
    others = [content[:cut] for cut in range(0, len(content), max(len(content) // 50, 1))]
    if name.endswith("npy"):
        others += [content + b"\0", content + content]
    for other in others:
        path.write_bytes(other)
        with pytest.raises(UnreadableFile, match=str(path)):
            read(path)
    if name.endswith("npy"):
        return
    for at in range(0, len(content), 3):  # any byte: noticed, or it is of no consequence
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        try:
            found = read(path)
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            assert str(path) in "".join([str(error), *getattr(error, "__notes__", [])])
        else:
            assert list(listed(found).values()) == wanted, at


def test_names_tell_nothing_of_what_numpy_has_written(tmp_path: Path) -> None:
    write({"x": torch.arange(3)}, tmp_path / "x.NPY")
    assert np.load(tmp_path / "x.NPY").tolist() == [0, 1, 2] == read(tmp_path / "x.NPY")["values"].tolist()
    (tmp_path / "x.NPY").rename(tmp_path / "x.npz")
    assert read(tmp_path / "x.npz")["values"].tolist() == [0, 1, 2]
    write({"x": torch.arange(3)}, tmp_path / "y.npz")
    (tmp_path / "y.npz").rename(tmp_path / "y.npy")
    assert read(tmp_path / "y.npy")["x"].tolist() == [0, 1, 2]


def test_what_is_no_array_in_an_npz_file_is_refused_unless_another_is_wanted(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(3), objects=np.array([{}, 1, 2], dtype=object), b=np.arange(4))
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        archive.writestr("readme.txt", "hello")
    assert read(tmp_path / "x.npz", columns=["a"])["a"].tolist() == [0, 1, 2]
    for name in ("objects", "readme.txt"):
        with pytest.raises((ValueError, TypeError), match=rf"x\.npz: the array '{name}'"):
            read(tmp_path / "x.npz", columns=[name])
    with zipfile.ZipFile(tmp_path / "y.npz", "w"):
        pass
    with pytest.raises(UnreadableFile, match="holds no arrays"):
        read(tmp_path / "y.npz")


HOSTILE: dict[str, Callable[[Any, Any, Path], None]] = {
    "soft": lambda h5py, file, path: file.__setitem__("s", h5py.SoftLink("/a")),
    "dangling": lambda h5py, file, path: file.__setitem__("s", h5py.SoftLink("/nowhere")),
    "external": lambda h5py, file, path: file.__setitem__("s", h5py.ExternalLink(str(path), "/a")),
    "external group": lambda h5py, file, path: file.__setitem__("s", h5py.ExternalLink(str(path), "/")),
    "raw": lambda h5py, file, path: file.create_dataset("s", (3,), "u1", external=[(str(path), 0, 3)]),
    "virtual": lambda h5py, file, path: file.create_virtual_dataset("s", virtual(h5py, path)),
    "in itself": lambda h5py, file, path: file.__setitem__("s", file["/"]),
    "in a child": lambda h5py, file, path: file.create_group("s/t").__setitem__("u", file["s"]),
    "twice": lambda h5py, file, path: (file.create_dataset("s/x", data=range(3)), file.__setitem__("t", file["s"])),
}  # fmt: skip
SINGLE: dict[str, Callable[[Any, Any], Any]] = {
    "scalar": lambda h5py, file: file.create_dataset("s", data=3),
    "null": lambda h5py, file: file.create_dataset("s", data=h5py.Empty("f")),
}
VALUES: dict[str, Callable[[Any, Any], Any]] = {
    **SINGLE,
    "matrix of text": lambda h5py, file: file.create_dataset("s", data=np.array([["a"]] * 3, h5py.string_dtype())),
    "latin-1": lambda h5py, file: file.create_dataset("s", data=np.array([b"a", b"b", b"caf\xe9"])),
    "reference": lambda h5py, file: file.create_dataset("s", data=np.array([file["a"].ref] * 3, h5py.ref_dtype)),
    "compound": lambda h5py, file: file.create_dataset("s", data=np.zeros(3, "i4,f8")),
    "lists of text": lambda h5py, file: file.create_dataset("s", (3,), h5py.vlen_dtype(h5py.string_dtype())),
}


def virtual(h5py: Any, path: Path) -> Any:
    layout = h5py.VirtualLayout((3,), "i8")
    layout[:] = h5py.VirtualSource(str(path), "a", (3,))
    return layout


@pytest.mark.parametrize("what", [*HOSTILE, *VALUES])
def test_an_entry_of_hdf5_that_is_no_column_stops_only_who_wants_it(tmp_path: Path, what: str) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["a"] = np.arange(3)
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["a"] = np.arange(3)
        (lambda: HOSTILE[what](h5py, file, tmp_path / "other.h5") if what in HOSTILE else VALUES[what](h5py, file))()
    assert read(tmp_path / "d.h5", columns=["a"])["a"].tolist() == [0, 1, 2]
    if what in SINGLE:
        assert list(read(tmp_path / "d.h5").keys()) == ["a"]
    for columns in (None,) * (what not in SINGLE) + (["s"],) * (what not in ("in a child", "twice")):
        with pytest.raises((ValueError, TypeError), match=r"d\.h5: the array '(s|t|s\.t\.u)' cannot be read"):
            read(tmp_path / "d.h5", columns=columns)


def test_deep_groups_and_text_of_latin_letters_marked_as_ascii(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "d.h5", "w") as file:
        group = file
        for _ in range(60):
            group = group.create_group("g")
        group["x"] = np.arange(2)
        file["t"] = np.array(["größe".encode(), b"a"])
    found = read(tmp_path / "d.h5")
    assert found[(*["g"] * 60, "x")].tolist() == [0, 1] and found["t"] == ["größe", "a"]
    with h5py.File(tmp_path / "d.h5", "a") as file:
        group = file
        for _ in range(1500):
            group = group.require_group("g")
        group["y"] = np.arange(2)
    with pytest.raises(ValueError, match=r"d\.h5.* is nested 1,500 levels deep, and 64 is the limit"):
        read(tmp_path / "d.h5")
    assert read(tmp_path / "d.h5", columns=["t"])["t"] == ["größe", "a"]


@tuning.use(read_bytes=100_000)
def test_long_rows_of_text_are_read_few_at_a_time(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    rows = ["x" * 400] * 2000 + ["y"] * 9000
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file.create_dataset("t", data=rows, dtype=h5py.string_dtype())
    parts = [part.columns["t",].tolist() for part in arrays_module.read_hdf5(str(tmp_path / "d.h5"), None)]
    assert sum(parts, []) == rows and len(parts[0]) == 1 << 10  # whose length is not known
    assert max(map(len, parts[1:4])) <= 250 and max(map(len, parts)) > 2000


COLUMNS: dict[str, Any] = {
    "negated": torch._neg_view(torch.arange(3.0)),
    "imaginary": torch.complex(torch.arange(3.0), torch.arange(3.0)).conj().imag,
    "conjugate": torch.tensor([1j, 2, 3]).conj(),
    "zeros": torch.tensor([-0.0, -0.0, -0.0]),
    "complex zeros": torch.complex(torch.tensor([-0.0] * 3), torch.tensor([-0.0] * 3)),
    "nothing": torch.zeros(3, 0),
    "bools": torch.ones(3, 2, dtype=torch.bool),
    "uint64": torch.tensor([2**64 - 1, 1, 2], dtype=torch.uint64),
    "bfloat16": torch.ones(3).bfloat16(),
    "float8": torch.ones(3).to(torch.float8_e5m2),
    "text": ["a", "", "größe"],
    "text with zeros": ["a", "b\0", "\0c"],
    "text with surrogates": ["a", "\ud800", "c"],
    "bytes": [b"a", b"b\0", b""],
    "lists": [[1, 2], [], [3]],
    "lists of pairs": [torch.ones(2, 2), torch.ones(1, 2), torch.ones(3, 2)],
    "lists of bfloat16": [torch.ones(2).bfloat16(), torch.ones(1).bfloat16(), torch.ones(3).bfloat16()],
}
NAMES = [
    "x",
    "x.npy",
    "",
    "/",
    "a/b",
    "..",
    "a\\b",
    "a\0b",
    "\ud800",
    " a ",
    "a.",
    ".x",
    "zarr.json",
    ".zgroup",
    "__x",
    "größe",
]


@pytest.mark.parametrize("ending", ["npz", "npy", "h5", "zarr"])
@pytest.mark.parametrize("name", [*COLUMNS, *NAMES])
def test_a_column_is_written_as_it_is_or_refused_by_name(tmp_path: Path, ending: str, name: str) -> None:
    pytest.importorskip("h5py"), pytest.importorskip("zarr")
    value = COLUMNS.get(name, torch.arange(3))
    wanted = value if isinstance(value, torch.Tensor) else Ragged.from_list(value)
    try:
        write({name: wanted}, tmp_path / f"d.{ending}", batch_rows=2)
    except (ValueError, TypeError) as error:
        assert repr(name) in str(error)
        assert not list(tmp_path.iterdir())
        return
    found = read(tmp_path / f"d.{ending}")
    assert list(found.keys()) == (["values"] if ending == "npy" else [name])
    column = found.get(next(iter(found.keys())))
    if isinstance(wanted, Ragged):
        assert column.kind == wanted.kind and column.dtype == wanted.dtype
        assert column.tolist() == wanted.tolist()
    else:
        plain = wanted.resolve_conj().resolve_neg().contiguous().numpy()
        assert (
            column.dtype == wanted.dtype
            and column.shape == wanted.shape
            and column.numpy().tobytes() == plain.tobytes()
        )


@pytest.mark.parametrize("ending", ["npz", "h5", "zarr", "csv", "parquet"])
def test_two_columns_of_one_name_are_not_written(tmp_path: Path, ending: str) -> None:
    pytest.importorskip({"h5": "h5py", "zarr": "zarr"}.get(ending, "pyarrow"))
    rows = TensorDict({"a": {"b": torch.arange(2)}, "a.b": torch.arange(2)}, [2])
    with pytest.raises(ValueError, match=r"2 columns have the name 'a\.b'"):
        write(rows, tmp_path / f"d.{ending}")
    assert not list(tmp_path.iterdir())
