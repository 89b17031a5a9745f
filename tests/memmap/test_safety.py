"""Data from outside is data: whatever a folder holds, loading gives a whole dataset or a DatasetError."""

import contextlib
import functools
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensordict_lite import DatasetWriter, MetaData, NonTensorData, NonTensorStack, TensorClass, TensorDict, lazy_stack
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tensordict_lite.memmap import tuning
from tests.memmap.trees import touch


def build(folder: Path) -> TensorDict:
    td = TensorDict(
        {
            "a": torch.arange(4),
            "b": {"c": torch.ones(4, 3), "weird/key": torch.zeros(4, dtype=torch.bool)},
            "note": NonTensorData({"k": [1, "x"]}, batch_size=[4]),
            "lazy": lazy_stack([TensorDict({"r": torch.ones(4, i + 1)}, [4]) for i in range(2)], 1),
            "ragged": torch.nested.nested_tensor([torch.ones(i + 1, 2) for i in range(4)], layout=torch.jagged),
            "strided": torch.nested.nested_tensor([torch.ones(i + 1, 5 - i) for i in range(4)]),
        },
        [4],
    )
    return td.memmap(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build(tmp_path / "data")
    return tmp_path / "data"


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    meta = json.loads(path.read_text())
    change(meta)
    path.write_text(json.dumps(meta))


EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "longer shape": (lambda m: m["a"].update(shape=[4, 100]), "a.memmap.*truncated.*3,200 bytes.*32"),
    "shorter shape": (lambda m: (m["a"].update(shape=[4, 0]),), "a.memmap.*does not fit"),
    "other batch": (lambda m: m["a"].update(shape=[3]), "does not start with the batch size"),
    "negative": (lambda m: m["a"].update(shape=[-4]), "impossible shape"),
    "float dim": (lambda m: m["a"].update(shape=[4.0]), "impossible shape"),
    "bool dim": (lambda m: m["a"].update(shape=[True]), "impossible shape"),
    "huge dim": (lambda m: m["a"].update(shape=[4, 1 << 60]), "would have"),
    "product overflow": (lambda m: m["a"].update(shape=[4, 1 << 40, 1 << 40]), "would have"),
    "many dims": (lambda m: m["a"].update(shape=[4] + [1] * 1000), "list of dimensions"),
    "shape text": (lambda m: m["a"].update(shape="4"), "list of dimensions"),
    "dtype code": (lambda m: m["a"].update(dtype="torch.hub.load"), "unknown dtype"),
    "dtype object": (lambda m: m["a"].update(dtype="object"), "unknown dtype"),
    "dtype list": (lambda m: m["a"].update(dtype=["torch.int64"]), "unknown dtype"),
    "dtype gone": (lambda m: m["a"].pop("dtype"), "unknown dtype"),
    "nested text": (lambda m: m["a"].update(is_nested="no"), "is_nested"),
    "nested flat": (lambda m: m["ragged"].update(is_nested=False), "does not start|ragged"),
    "batch text": (lambda m: m.update(shape="x"), "batch size"),
    "batch gone": (lambda m: m.pop("shape"), "batch size|tensorclass|defined no"),
    "names": (lambda m: m.update(_names=["a", "b"]), "_names"),
    "same names": (lambda m: m.update(_names=[3]), "_names"),
    "device": (lambda m: m.update(device="../../etc"), "device"),
    "version": (lambda m: m.update(_format_version=2), "format version 2"),
    "version text": (lambda m: m.update(_format_version="1"), "format version"),
    "type": (lambda m: m.update(_type=None), "_type"),
    "type gone": (lambda m: m.pop("_type"), "_type"),
    "class": (lambda m: (m.update(_type="<class 'os.system'>"), m.pop("_class"), m.pop("device")), "os.system"),
    "missing leaf": (lambda m: m.update(zz=m["a"]), "zz.memmap.*missing"),
    "missing node": (lambda m: m.update(zz={"type": "TensorDict"}), "zz.*missing"),
    "escaping leaf": (lambda m: m.update({"../../x": m["a"]}), r"%2F.*missing"),
    "absolute leaf": (lambda m: m.update({"/etc/passwd": m["a"]}), "missing"),
    "escaping node": (lambda m: m.update({"..": {"type": "TensorDict"}}), "missing"),
    "nul": (lambda m: m.update({"a\0b": m["a"]}), "missing"),
    "capacity": (lambda m: m["a"].update(capacity=-1), "capacity"),
    "layout": (lambda m: m["ragged"].update(layout="csr"), "layout"),
    "entries": (lambda m: m.update(_entries=[1]), "_entries"),
    "half a character": (lambda m: m.update({"\ud800": m["a"]}), "not text"),
    "half a character, node": (lambda m: m.update({"x\ud800": {"type": "TensorDict"}}), "not text"),
    "empty and huge": (lambda m: m.update(e={**m["a"], "shape": [4, 0, 1 << 61, 1 << 61]}), "would have"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_metadata_is_found(folder: Path, name: str) -> None:
    change, message = EDITS[name]
    edit(folder / "meta.json", change)
    sizes = {p: p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(DatasetError, match=message) as caught:
        TensorDict.load_memmap(folder)
    assert str(folder) in str(caught.value)
    assert {p: p.stat().st_size for p in folder.rglob("*") if p.is_file()} == sizes  # nothing grew, nothing was made


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"{", "not valid JSON"),
        (b"[1]", "is an object"),
        (b"null", "is an object"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": 1e999999}', "_type"),
        (b"9" * 10_000, "not valid JSON|object"),
    ],
)
def test_truncated_or_foreign_metadata(folder: Path, content: bytes, message: str) -> None:
    (folder / "meta.json").write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        TensorDict.load_memmap(folder)


def test_every_prefix_of_the_metadata_is_an_error(folder: Path) -> None:
    whole = (folder / "b" / "meta.json").read_bytes()
    for length in range(len(whole)):
        (folder / "b" / "meta.json").write_bytes(whole[:length])
        with pytest.raises(DatasetError, match="b/meta.json"):
            TensorDict.load_memmap(folder)


def test_truncated_and_longer_data_is_found(folder: Path) -> None:
    for name in ("a.memmap", "b/c.memmap", "ragged.memmap", "ragged.shape.memmap", "lazy/1/r.memmap"):
        path = folder / name
        content = path.read_bytes()
        for wrong in (b"", content[:-1], content + b"\0"):
            path.write_bytes(wrong)
            with pytest.raises(DatasetError, match=path.name.replace(".", r"\.")):
                TensorDict.load_memmap(folder)
        path.write_bytes(content)
    TensorDict.load_memmap(folder)


def test_shapes_of_a_nested_tensor_are_checked(folder: Path) -> None:
    for row in ([-1, 2], [1 << 62, 4], [5, 5], [0, 1 << 61]):
        (folder / "ragged.shape.memmap").write_bytes(torch.tensor([row, [2, 2], [3, 2], [4, 2]]).numpy().tobytes())
        with pytest.raises(DatasetError):
            TensorDict.load_memmap(folder)


@pytest.mark.parametrize("target", ["a.memmap", "b", "b/meta.json", "meta.json", "ragged.shape.memmap", "lazy/1"])
def test_links_are_not_followed(folder: Path, tmp_path: Path, target: str) -> None:
    outside = tmp_path / "outside"
    os.rename(folder / target, outside)
    os.symlink(outside, folder / target)
    with pytest.raises(DatasetError, match="link|cannot be read"):
        TensorDict.load_memmap(folder)


@pytest.mark.parametrize("subpath", ["b", ("lazy", "1")])
def test_links_are_not_followed_to_a_subpath(folder: Path, tmp_path: Path, subpath: Any) -> None:
    inner = folder.joinpath(*subpath) if isinstance(subpath, tuple) else folder / subpath
    os.rename(inner, tmp_path / "outside")
    os.symlink(tmp_path / "outside", inner)
    with pytest.raises(DatasetError, match="symbolic link"):
        TensorDict.load_memmap(folder, subpath=subpath)


@pytest.mark.parametrize("target", ["b", "meta.json", "a.memmap"])
def test_writer_does_not_follow_links_either(tmp_path: Path, target: str) -> None:
    row = TensorDict({"a": torch.tensor(1), "b": {"c": torch.ones(3)}})
    DatasetWriter(tmp_path / "d", row, capacity=4).close()
    os.rename(tmp_path / "d" / target, tmp_path / "outside")
    os.symlink(tmp_path / "outside", tmp_path / "d" / target)
    with pytest.raises((DatasetError, OSError), match="link"), DatasetWriter(tmp_path / "d") as writer:
        writer.append(row)


@pytest.mark.parametrize("change", [{"shape": [-1]}, {"_growing": "4"}, {"shape": "x"}, {"shape": [1 << 70]}], ids=str)
def test_writer_checks_the_counts_again_at_every_flush(tmp_path: Path, change: dict[str, Any]) -> None:
    row = TensorDict({"a": torch.tensor(1)})
    writer = DatasetWriter(tmp_path, row, capacity=4)
    writer.append(row)
    edit(tmp_path / "meta.json", lambda m: m.update(change))
    with pytest.raises(DatasetError, match=r"meta\.json"):
        writer.flush()


def test_keys_cannot_leave_the_folder_with_robust_key_false(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.memmap").write_bytes(bytes(32))
    edit(folder / "meta.json", lambda m: m.update({"../secret": m["a"]}))
    for robust in (True, False):
        with pytest.raises(DatasetError):
            TensorDict.load_memmap(folder, robust_key=robust)


def test_no_dataset_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="does not exist"):
        TensorDict.load_memmap(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"has no meta\.json"):
        TensorDict.load_memmap(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DatasetError, match="is a file"):
        TensorDict.load_memmap(tmp_path / "file")
    with pytest.raises(NotADirectoryError, match="is a file"):
        TensorDict({"a": torch.ones(1)}).memmap(tmp_path / "file")


def test_deeply_nested_folders_are_an_error_not_a_crash(tmp_path: Path) -> None:
    meta = (
        '{"b": {"type": "TensorDict"}, "shape": [], "device": "cpu", "_type": "<class \'tensordict._td.TensorDict\'>"}'
    )
    here = os.getcwd()
    try:
        for _ in range(1900):
            os.chdir(tmp_path) if _ == 0 else None
            Path("meta.json").write_text(meta)
            os.mkdir("b")
            os.chdir("b")
    finally:
        os.chdir(here)
    with pytest.raises(DatasetError):
        TensorDict.load_memmap(tmp_path)
    subprocess.run(["rm", "-rf", str(tmp_path / "b")], check=True)


class Spot(TensorClass):
    """A class of the program."""

    x: torch.Tensor
    label: str = "p"


def kinds() -> dict[str, TensorDict]:
    """Entries of every kind that has metadata of its own."""
    words = NonTensorStack(NonTensorStack("a", "b"), NonTensorStack("c", "d"))
    rows = [torch.ones(i + 1, 2) for i in range(3)]
    return {
        "dense": TensorDict({"n": {"odd/key": torch.zeros(3)}, "shape": torch.zeros(3)}, [3], names=["time"]),
        "jagged": TensorDict({"j": torch.nested.nested_tensor(rows, layout=torch.jagged)}, [3]),
        "strided": TensorDict({"j": torch.nested.nested_tensor(rows)}, [3]),
        "object": TensorDict({"o": NonTensorData({"k": [1, None]}, batch_size=[3]), "m": MetaData([1])}, [3]),
        "words": TensorDict({"w": words}, [2]),
        "text": TensorDict({"w": [str(i) for i in range(4)]}, [4]),
        "bytes": TensorDict({"w": [b"a", b"b"]}, [2]),
        "lazy": TensorDict({"l": lazy_stack([TensorDict({"r": torch.ones(i + 1)}) for i in range(2)])}, [2]),
        "class": TensorDict({"p": Spot(x=torch.zeros(2), label="q", batch_size=[2])}, [2]),
    }


WRONG = [None, True, -1, 1 << 30, 1 << 70, 0.5, "x", [], ["str"], [[1]], {}, {"a": 1}, {"type": "TensorDict"}, "DEEP"]


@pytest.mark.parametrize("kind", kinds())
def test_every_field_of_metadata_that_is_something_else_is_an_error_or_no_matter(tmp_path: Path, kind: str) -> None:
    with tuning.use(text_rows=1) if kind == "text" else contextlib.nullcontext():
        kinds()[kind].memmap(tmp_path / "data")
    for file in sorted((tmp_path / "data").rglob("meta.json")):
        saved = file.read_text()
        for *parents, last in filter(None, nodes(json.loads(saved))):
            for value in WRONG:
                meta = json.loads(saved)
                parent = functools.reduce(lambda value, step: value[step], parents, meta)
                parent[last] = value
                file.write_text(json.dumps(meta).replace('"DEEP"', "[" * 900 + "]" * 900))
                with contextlib.suppress(DatasetError):
                    touch(TensorDict.load_memmap(tmp_path / "data"))
                with contextlib.suppress(DatasetError):
                    TensorDict.load_memmap(tmp_path / "data", device="meta")
                with contextlib.suppress(DatasetError, ValueError):  # of what does not grow
                    DatasetWriter(tmp_path / "data").finalize()
        file.write_text(saved)


# -- fuzzing ---------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=8)
    | st.sampled_from(["torch.int64", "torch.float32", "TensorDict", "cpu", "meta", "..", "/", "<class 'x.y'>"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything inside a JSON value."""
    out = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        out += nodes(inner, (*path, key))
    return out


def mutate_json(data: st.DataObject, path: Path) -> None:
    meta = json.loads(path.read_text())
    where = data.draw(st.sampled_from(nodes(meta)))
    if not where:
        meta = data.draw(VALUES)
    else:
        parent = meta
        for step in where[:-1]:
            parent = parent[step]
        action = data.draw(st.sampled_from(["set", "delete", "rename"]))
        if action == "set" or isinstance(parent, list):
            parent[where[-1]] = data.draw(VALUES)
        elif action == "delete":
            del parent[where[-1]]
        else:
            parent[data.draw(st.text(max_size=8))] = parent.pop(where[-1])
    path.write_text(json.dumps(meta))


def mutate_bytes(data: st.DataObject, path: Path) -> None:
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content)))
    content[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    path.write_bytes(bytes(content))


def mutate_tree(data: st.DataObject, path: Path) -> None:
    action = data.draw(st.sampled_from(["delete", "folder", "link", "swap"]))
    if action == "swap":
        other = data.draw(st.sampled_from(sorted(p for p in path.parents[0].iterdir() if p.is_file())))
        content = other.read_bytes()
        other.write_bytes(path.read_bytes())
        path.write_bytes(content)
        return
    path.unlink()
    if action == "folder":
        path.mkdir()
    elif action == "link":
        path.symlink_to("/etc/passwd")


FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def fuzz(data: st.DataObject, root: Path) -> None:
    try:
        build(root / "data")
        for _ in range(data.draw(st.integers(1, 3))):
            files = sorted(p for p in (root / "data").rglob("*") if p.is_file() and not p.is_symlink())
            path = data.draw(st.sampled_from(files))
            mutate = mutate_bytes
            if data.draw(st.booleans()):
                mutate = mutate_tree
            elif path.suffix == ".json" and data.draw(st.booleans()):
                mutate = mutate_json
            try:
                mutate(data, path)
            except (ValueError, KeyError, IndexError, OSError, UnicodeError):
                continue
        before = sorted(str(p) for p in root.rglob("*"))
        try:
            loaded = TensorDict.load_memmap(root / "data")
        except DatasetError:
            pass
        else:
            touch(loaded)
        assert sorted(str(p) for p in root.rglob("*")) == before  # nothing was created
    finally:
        shutil.rmtree(root, ignore_errors=True)


@settings(FUZZ, max_examples=60)
@given(data=st.data())
def test_fuzzed_folders_load_whole_or_not_at_all(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    fuzz(data, tmp_path_factory.mktemp("fuzz"))


@pytest.mark.soak
@settings(FUZZ, max_examples=20_000, derandomize=False)
@given(data=st.data())
def test_fuzzed_folders_for_longer(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    fuzz(data, tmp_path_factory.mktemp("fuzz"))
