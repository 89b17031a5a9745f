"""Consolidated files: in both directions with the reference, and from outside, where they are data."""

import copy
import json
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensordict as reference
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensordict_lite import NonTensorData, TensorDict, from_consolidated, lazy_stack
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tests.memmap.test_safety import VALUES, nodes
from tests.memmap.trees import CROSSINGS, LIBRARIES, Point, assert_entries, entries, leaves


def read(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Data and metadata of a file."""
    content = path.read_bytes()
    (length,) = struct.unpack("<q", content[-8:])
    return content[: -8 - length], json.loads(content[-8 - length : -8])


def write(path: Path, data: bytes, meta: Any) -> Path:
    text = json.dumps(meta).encode()
    path.write_bytes(data + text + struct.pack("<q", len(text)))
    return path


@pytest.mark.parametrize(("writer", "reader"), CROSSINGS)
def test_every_kind_of_entry_crosses_over(tmp_path: Path, writer: str, reader: str) -> None:
    saved = entries(writer, jagged=True, strided=False)
    saved.consolidate(tmp_path / "x.bin")
    loaded = LIBRARIES[reader].td.from_consolidated(tmp_path / "x.bin")
    assert_entries(loaded, saved, reader)
    assert loaded.is_consolidated() and not loaded.is_locked


@pytest.mark.parametrize(("writer", "reader"), CROSSINGS)
def test_classes_and_locks_cross_over(tmp_path: Path, writer: str, reader: str) -> None:
    out, back = LIBRARIES[writer], LIBRARIES[reader]
    out.point(torch.ones(2, 2), "q", batch_size=[2]).consolidate(tmp_path / "class.bin")
    loaded = back.point.from_consolidated(tmp_path / "class.bin")
    assert type(loaded) is back.point and loaded.label == "q" and loaded.is_consolidated()
    out.td({"a": torch.ones(2), "n": {"b": torch.ones(1)}}, [], lock=True).consolidate(tmp_path / "locked.bin")
    locked = back.td.from_consolidated(tmp_path / "locked.bin")
    assert locked.is_locked and locked["n"].is_locked
    stack = out.lib.lazy_stack([out.td({"a": torch.ones(2) * i}, [2], names=["q"]) for i in range(12)], 1)
    stack.consolidate(tmp_path / "stack.bin")
    loaded = back.td.from_consolidated(tmp_path / "stack.bin")
    assert loaded.stack_dim == 1 and loaded["a"][0].tolist() == list(range(12)) and loaded.names == ["q", None]


def test_root_class_is_in_the_file(tmp_path: Path) -> None:
    Point(torch.ones(2, 2), "q", batch_size=[2]).consolidate(tmp_path / "x.bin")
    assert type(TensorDict.from_consolidated(tmp_path / "x.bin")) is Point
    data, meta = read(tmp_path / "x.bin")
    write(tmp_path / "x.bin", data, {**meta, "cls": "<class 'antigravity.Flight'>"})
    with pytest.warns(UserWarning, match=r"antigravity\.Flight was saved") as caught:
        loaded = TensorDict.from_consolidated(tmp_path / "x.bin")
    assert type(loaded) is TensorDict and loaded["label"] == "q" and loaded.is_consolidated()
    assert caught[0].filename == __file__ and "antigravity" not in sys.modules


def test_stack_of_classes_as_the_reference_writes_it(tmp_path: Path) -> None:
    """Its own loader does not read it."""
    ns = LIBRARIES["theirs"]
    stack = ns.lib.lazy_stack([ns.point(torch.ones(2) * i, "q", batch_size=[2]) for i in range(3)])
    ns.td({"s": stack}, []).consolidate(tmp_path / "x.bin")
    loaded = TensorDict.from_consolidated(tmp_path / "x.bin")
    assert type(loaded["s"][1]) is Point and loaded["s"][2].xy.tolist() == [2, 2]


def test_keys_that_the_format_uses_are_refused_when_saved(tmp_path: Path) -> None:
    for key in ("cls", "leaves", "non_tensors", "cls_metadata"):
        TensorDict({key: torch.ones(2), "n": {key: "x"}}, []).consolidate(tmp_path / "x.bin")
        assert TensorDict.from_consolidated(tmp_path / "x.bin")[key].sum() == 2
        td = TensorDict({"n": {key: {"a": torch.ones(1)}}}, [])
        assert td.consolidate()["n", key, "a"].sum() == 1
        with pytest.raises(RuntimeError, match=f"'n', '{key}'.*rename"):
            td.consolidate(tmp_path / "y.bin")
    with pytest.raises(RuntimeError, match="NJT"):
        TensorDict({"<NJT_VALUES>a": torch.ones(2)}, []).consolidate(tmp_path / "y.bin")
    with pytest.raises(RuntimeError, match=r"\('n', 's'\).*a set"):
        TensorDict({"n": {"s": {1}}}, []).consolidate(tmp_path / "y.bin")
    assert os.listdir(tmp_path) == ["x.bin"]


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        from_consolidated(tmp_path / "none.bin")
    assert isinstance(caught.value, DatasetNotFoundError)
    with pytest.raises(DatasetError, match="is a folder"):
        from_consolidated(tmp_path)
    with pytest.raises(ValueError, match="is a folder"):
        TensorDict({"a": torch.ones(1)}).consolidate(tmp_path)
    TensorDict({"a": torch.ones(1)}).memmap(tmp_path / "x.tdz")
    with pytest.raises(DatasetError, match="is an archive: load it with load_memmap"):
        from_consolidated(tmp_path / "x.tdz")
    TensorDict({"a": torch.ones(1)}).consolidate(tmp_path / "made" / "on" / "the way.bin")
    with pytest.raises(ValueError, match="from_consolidated"):
        TensorDict.load_memmap(tmp_path / "made" / "on" / "the way.bin")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(DatasetError, match="special file"):
        from_consolidated(tmp_path / "fifo")


# -- from outside --------------------------------------------------------------------------------------------------


def sample(path: Path) -> tuple[bytes, dict[str, Any]]:
    TensorDict(
        {
            "a": torch.arange(4),
            "b": {"c": torch.ones(4, 3), "s": "x"},
            "lazy": lazy_stack([TensorDict({"r": torch.ones(4, i + 1)}, [4]) for i in range(2)], 1),
            "words": ["a", "b", "c", "d"],
            "note": NonTensorData({"k": 1}, batch_size=[4]),
            "j": torch.nested.nested_tensor([torch.ones(i + 1, 2) for i in range(4)], layout=torch.jagged),
            "p": Point(torch.ones(4, 2), "q", batch_size=[4]),
        },
        [4],
    ).consolidate(path)
    return read(path)


A, C = ("leaves", "a"), ("b", "leaves", "c")
OFFSETS, VALUES_OF_J = ("leaves", "<NJT_OFFSETS>j"), ("leaves", "<NJT_VALUES>j")


def put(meta: Any, path: tuple[Any, ...], value: Any) -> None:
    for step in path[:-1]:
        meta = meta[step]
    if value is DELETE:
        del meta[path[-1]]
    else:
        meta[path[-1]] = value


def stack_of_none(size: list[int], dim: int) -> dict[str, Any]:
    about = {"stack_dim": dim, "stack_dim_name": None, "batch_size": size}
    return {"cls": "NonTensorStack", "non_tensors": {}, "leaves": {}, "cls_metadata": about}


DELETE = object()
EDITS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "dtype": (lambda m: put(m, (*A, 0), "torch.hub.load"), "dtype"),
    "dtype object": (lambda m: put(m, (*A, 0), ["torch.int64"]), "dtype"),
    "shape": (lambda m: put(m, (*A, 1), [4, 100]), "not within"),
    "huge shape": (lambda m: put(m, (*A, 1), [4, 1 << 61]), "would have"),
    "negative shape": (lambda m: put(m, (*A, 1), [-4]), "impossible shape"),
    "overflow": (lambda m: put(m, (*A, 1), [4, 1 << 40, 1 << 40]), "would have"),
    "overflow beside nothing": (lambda m: put(m, (*A, 1), [4, 0, 1 << 40, 1 << 40]), "would have"),
    "start": (lambda m: put(m, (*A, 2), 1 << 40), "not within"),
    "negative start": (lambda m: put(m, (*A, 2), -8), "not within"),
    "float start": (lambda m: put(m, (*A, 2), 0.0), "not within"),
    "stop": (lambda m: put(m, (*A, 3), 1 << 40), "not within"),
    "stop before": (lambda m: put(m, (*A, 3), 8), "not within"),
    "unaligned": (lambda m: (put(m, (*A, 1), [4, 0]), put(m, (*A, 2), 3)), "aligned"),
    "short": (lambda m: put(m, A, ["torch.int64", [4]]), "first and last byte"),
    "overlap": (lambda m: put(m, C, copy.deepcopy(m["leaves"]["a"])), "overlap|batch size"),
    "same bytes": (lambda m: put(m, ("leaves", "z"), copy.deepcopy(m["leaves"]["a"])), "overlap"),
    "part of": (lambda m: put(m, ("leaves", "z"), ["torch.int8", [4], 8, 12, 0]), "overlap"),
    "batch": (lambda m: put(m, ("cls_metadata", "batch_size"), [5]), "batch size"),
    "batch text": (lambda m: put(m, ("cls_metadata", "batch_size"), "4"), "batch_size"),
    "batch gone": (lambda m: put(m, ("cls_metadata", "batch_size"), DELETE), "batch_size"),
    "child batch": (lambda m: m["b"]["cls_metadata"].update(batch_size=[], names=[]), "is within"),
    "names": (lambda m: put(m, ("cls_metadata", "names"), ["a", "b"]), "_names"),
    "device": (lambda m: put(m, ("cls_metadata", "device"), "../x"), "device"),
    "class": (lambda m: put(m, ("cls",), "os.system"), "class"),
    "class gone": (lambda m: put(m, ("cls",), DELETE), "class"),
    "leaves": (lambda m: put(m, ("leaves",), []), "should be an object"),
    "metadata gone": (lambda m: put(m, ("b", "cls_metadata"), DELETE), "should be an object"),
    "child": (lambda m: put(m, ("b",), 3), "should be an object"),
    "non tensor": (lambda m: put(m, ("non_tensors", "note"), 3), "listed with its batch size"),
    "non tensor batch": (lambda m: put(m, ("non_tensors", "note", 1), [3]), "batch size"),
    "stack dim": (lambda m: put(m, ("lazy", "cls_metadata", "stack_dim"), 70), "a stack has a dimension"),
    "stack dim beyond": (lambda m: put(m, ("lazy", "cls_metadata", "stack_dim"), 7), "fit together"),
    "member gone": (lambda m: put(m, ("lazy", "0"), DELETE), "numbered from 0"),
    "member renamed": (lambda m: put(m, ("lazy", "x"), m["lazy"]["1"]), "numbered from 0"),
    "members differ": (lambda m: m["lazy"]["1"]["cls_metadata"].update(batch_size=[], names=[]), "fit together"),
    "no members": (lambda m: m.update(z=stack_of_none([4, 2], 1)), "without members"),
    "no members, no dim": (lambda m: m.update(z=stack_of_none([4, 0], 2)), "without members"),
    "no members, size": (lambda m: m.update(z=stack_of_none([-4, 0], 1)), "batch_size"),
    "fields": (lambda m: put(m, ("p", "leaves", "xyz"), ["torch.int8", [4, 0], 0, 0, 0]), "fit together"),
    "twice": (lambda m: put(m, ("non_tensors", "a"), ["x", [4], None]), "two entries"),
    "offsets gone": (lambda m: put(m, OFFSETS, DELETE), "listed with dtype"),
    "offsets text": (lambda m: put(m, (*OFFSETS, 0), "torch.float64"), "row of integers"),
    "offsets short": (lambda m: put(m, (*OFFSETS, 1), [4]), "batch size"),
    "ragged": (lambda m: put(m, (*OFFSETS, 5), 9), "ragged dimension"),
    "values": (lambda m: put(m, (*VALUES_OF_J, 1), [9, 2]), "outside its values"),
    "lengths": (lambda m: put(m, ("leaves", "<NJT_LENGTHS>j"), ["torch.int64", [7], 0, 56, 0]), "length for each"),
    "list": (lambda m: m.clear(), "should be an object"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_edited_metadata_is_refused(tmp_path: Path, name: str) -> None:
    change, message = EDITS[name]
    data, meta = sample(tmp_path / "x.bin")
    change(meta)
    write(tmp_path / "x.bin", data, meta)
    with pytest.raises(DatasetError, match=f"x.bin.*({message})"):
        from_consolidated(tmp_path / "x.bin")


def test_offsets_of_a_file_are_not_followed_out_of_its_values(tmp_path: Path) -> None:
    data, meta = sample(tmp_path / "x.bin")
    start = meta["leaves"]["<NJT_OFFSETS>j"][2]
    for offsets in ([0, 1, 3, 6, 1 << 40], [-5, 1, 3, 6, 10], [0, 9, 3, 6, 10], [0, 1, 3, 6, 11]):
        edited = data[:start] + struct.pack("<5q", *offsets) + data[start + 40 :]
        with pytest.raises(DatasetError, match="outside its values"):
            from_consolidated(write(tmp_path / "x.bin", edited, meta))


def test_later_changes_of_the_file_do_not_move_offsets(tmp_path: Path) -> None:
    _, meta = sample(tmp_path / "x.bin")
    loaded = from_consolidated(tmp_path / "x.bin")
    with open(tmp_path / "x.bin", "r+b") as file:
        file.seek(meta["leaves"]["<NJT_OFFSETS>j"][2])
        file.write(struct.pack("<5q", 0, 1 << 40, 1 << 41, 1 << 42, 1 << 43))
    assert [part.shape[0] for part in loaded["j"].unbind()] == [1, 2, 3, 4]


@pytest.mark.parametrize("length", [-1, 0, 1, 5, 1 << 40, -(1 << 62)])
def test_length_at_the_end(tmp_path: Path, length: int) -> None:
    sample(tmp_path / "x.bin")
    content = (tmp_path / "x.bin").read_bytes()
    (tmp_path / "x.bin").write_bytes(content[:-8] + struct.pack("<q", length))
    with pytest.raises(DatasetError, match="end does not add up|not valid JSON"):
        from_consolidated(tmp_path / "x.bin")


@pytest.mark.parametrize("content", [b"", b"abc", b"12345678", b"hello world" * 20, b"{}" + struct.pack("<q", 2)])
def test_other_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(DatasetError, match="x.bin"):
        from_consolidated(tmp_path / "x.bin")


def test_depth(tmp_path: Path) -> None:
    text = '{"cls": "TensorDict", "non_tensors": {}, "leaves": {}, "cls_metadata": {"batch_size": []}, "b": '
    deep = (text * 5000 + "3" + "}" * 5000).encode()
    (tmp_path / "x.bin").write_bytes(deep + struct.pack("<q", len(deep)))
    with pytest.raises(DatasetError, match="nested too deeply"):
        from_consolidated(tmp_path / "x.bin")


def mutate(data: st.DataObject, path: Path) -> None:
    """One edit of the JSON, or of the bytes."""
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        body, meta = read(path)
        where = data.draw(st.sampled_from(nodes(meta)))
        if not where:
            write(path, body, data.draw(VALUES))
            return
        action = data.draw(st.sampled_from(["set", "number", "delete", "swap"]))
        other = data.draw(st.sampled_from([node for node in nodes(meta) if node]))
        if action == "set":
            value = data.draw(VALUES)
        elif action == "number":
            value = data.draw(st.integers(-16, 400) | st.sampled_from([1 << 31, 1 << 62, -1]))
        else:
            value = DELETE
        if action == "swap":
            value = meta
            for step in other:
                value = value[step]
            value = copy.deepcopy(value)
        put(meta, where, value)
        write(path, body, meta)
    else:
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
        path.write_bytes(bytes(content))


FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def fuzz(data: st.DataObject, path: Path) -> None:
    sample(path)
    for _ in range(data.draw(st.integers(1, 3))):
        try:
            mutate(data, path)
        except (ValueError, KeyError, IndexError, TypeError, struct.error):
            continue
    before = path.read_bytes()
    try:
        loaded = from_consolidated(path)
    except DatasetError:
        pass
    else:
        for leaf in leaves(loaded):
            for part in leaf.unbind() if leaf.is_nested else [leaf]:
                part.as_subclass(torch.Tensor).clone()
    assert path.read_bytes() == before and os.listdir(path.parent) == ["x.bin"]


@settings(FUZZ, max_examples=150)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore:.*was saved:UserWarning")
def test_fuzzed_files_load_whole_or_not_at_all(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    fuzz(data, tmp_path_factory.mktemp("fuzz") / "x.bin")


@pytest.mark.soak
@settings(FUZZ, max_examples=20_000, derandomize=False)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore:.*was saved:UserWarning")
def test_fuzzed_files_for_longer(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    fuzz(data, tmp_path_factory.mktemp("fuzz") / "x.bin")


def test_reference_reads_what_is_aligned_otherwise(tmp_path: Path) -> None:
    """Tensors of this project start at multiples of 16 or 64 bytes, those of the reference of 8."""
    td = {f"k{i}": torch.arange(i, dtype=torch.uint8) for i in range(40)}
    TensorDict(td, []).consolidate(tmp_path / "x.bin")
    theirs = reference.TensorDict.from_consolidated(tmp_path / "x.bin")
    assert all(theirs[key].equal(value) for key, value in td.items())
