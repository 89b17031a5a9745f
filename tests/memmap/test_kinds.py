"""Collections other than TensorDict on disk: tensorclasses, lazy stacks, non-tensor data, parameters."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tensordict as reference
import torch

from tensordict_lite import (
    DatasetError,
    LazyStackedTensorDict,
    MemoryMappedTensor,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    lazy_stack,
)


class Inner(TensorClass):
    x: torch.Tensor


class Record(TensorClass):
    image: torch.Tensor
    note: str
    inner: Inner | None = None
    extra: Any = None


def _reference_class() -> Any:
    """The same two classes, as a program that uses the reference would define them in this module."""
    made = {}
    for name, hints in (
        ("Inner", {"x": torch.Tensor}),
        ("Record", {"image": torch.Tensor, "note": str, "inner": Any, "extra": Any}),
    ):
        body = {"__annotations__": hints, "__module__": __name__, "__qualname__": name}
        if name == "Record":
            body |= {"inner": None, "extra": None}
        made[name] = reference.tensorclass(type(name, (), body))
    return made["Inner"], made["Record"]


RefInner, RefRecord = _reference_class()
PAIRS = {
    "ours to theirs": (TensorDict, Inner, Record, reference.TensorDict, RefRecord),
    "theirs to ours": (reference.TensorDict, RefInner, RefRecord, TensorDict, Record),
    "ours to ours": (TensorDict, Inner, Record, TensorDict, Record),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_tensorclass_keeps_its_identity(tmp_path: Path, pair: str) -> None:
    td, inner, record, loader, wanted = PAIRS[pair]
    value = record(
        torch.arange(6.0).view(3, 2),
        "a note",
        inner=inner(torch.ones(3), batch_size=[3]),
        extra={"k": [1, None]},
        batch_size=[3],
    )
    value.memmap(tmp_path / "top")
    td({"r": value}, [3]).memmap(tmp_path / "nested")
    for out in (loader.load_memmap(tmp_path / "top"), loader.load_memmap(tmp_path / "nested")["r"]):
        assert type(out) is wanted
        assert torch.equal(out.image, torch.arange(6.0).view(3, 2)) and out.note == "a note"
        assert type(out.inner).__name__ == "Inner" and out.inner.x.sum() == 3
        assert out.extra == {"k": [1, None]} and tuple(out.batch_size) == (3,)


def test_mapped_tensorclass(tmp_path: Path) -> None:
    value = Record(torch.zeros(3), "n", batch_size=[3])
    mapped = value.memmap(tmp_path / "a")
    assert type(mapped) is Record and mapped.is_memmap() and mapped.note == "n"
    assert isinstance(mapped.image, MemoryMappedTensor) and mapped.saved_path == tmp_path / "a"
    assert value.memmap_(tmp_path / "b") is value and isinstance(value.image, MemoryMappedTensor)
    like = Record(torch.zeros(3), "n", batch_size=[3]).memmap_like(tmp_path / "c")
    assert type(like) is Record and like.image.shape == (3,)
    made = mapped.make_memmap("extra", (3, 2))
    made.fill_(2)
    assert TensorDict.load_memmap(tmp_path / "a").extra.sum() == 12


def test_unknown_tensorclass_is_named_opens_as_a_tensordict_and_is_not_imported(tmp_path: Path) -> None:
    Record(torch.zeros(3), "n", batch_size=[3]).memmap(tmp_path)
    meta = json.loads((tmp_path / "meta.json").read_text())
    for name in ("antigravity.Flight", "os.PathLike", "subprocess.Popen", "tests.nowhere.Record"):
        (tmp_path / "meta.json").write_text(json.dumps(meta | {"_type": f"<class '{name}'>"}))
        with pytest.warns(UserWarning, match=f"a {name} was saved".replace(".", r"\.")) as caught:
            loaded = TensorDict.load_memmap(tmp_path)
        assert [warning.filename for warning in caught] == [__file__]
        assert type(loaded) is TensorDict and loaded["image"].shape == (3,) and loaded["note"] == "n"
    import sys

    assert "antigravity" not in sys.modules
    assert TensorDict.load_memmap(tmp_path / "_tensordict")["image"].shape == (3,)


def test_many_members_of_an_unknown_class_warn_once(tmp_path: Path) -> None:
    lazy_stack([Record(torch.zeros(i), str(i), batch_size=[]) for i in range(5)]).memmap(tmp_path / "top")
    TensorDict({"x": TensorDict({"r": Record(torch.zeros(3), "n", batch_size=[3])}, [3])}).memmap(tmp_path / "deep")
    for meta in tmp_path.rglob("meta.json"):
        meta.write_text(meta.read_text().replace(f"{__name__}.Record", "elsewhere.Record"))
    with pytest.warns(UserWarning, match=r"elsewhere\.Record") as caught:
        top = TensorDict.load_memmap(tmp_path / "top")
    assert len(caught) == 1 and type(top[3]) is TensorDict and top[3]["image"].shape == (3,)
    with pytest.warns(UserWarning, match=r"deep/x/r.*elsewhere\.Record"):
        assert TensorDict.load_memmap(tmp_path / "deep")["x", "r", "note"] == "n"


class Special(TensorDict):
    """A subclass that this program has."""


def test_class_of_a_dense_collection_is_found_or_named(tmp_path: Path) -> None:
    """The reference writes the name of a subclass; the project writes TensorDict, which both can open."""
    TensorDict({"a": torch.arange(3)}, [3]).memmap(tmp_path)
    meta = json.loads((tmp_path / "meta.json").read_text())
    known = f"{Special.__module__}.{Special.__qualname__}"
    (tmp_path / "meta.json").write_text(json.dumps(meta | {"_type": f"<class '{known}'>", "_class": known}))
    loaded = TensorDict.load_memmap(tmp_path)
    assert type(loaded) is Special and loaded["a"].tolist() == [0, 1, 2]
    (tmp_path / "meta.json").write_text(json.dumps(meta | {"_type": "<class 'mine.Sub'>", "_class": "mine:Sub"}))
    with pytest.warns(UserWarning, match=r"a mine\.Sub was saved"):
        assert type(TensorDict.load_memmap(tmp_path)) is TensorDict


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("pair", ["ours to theirs", "theirs to ours", "ours to ours"])
def test_lazy_stacks_cross_over(tmp_path: Path, pair: str, dim: int) -> None:
    td, _, _, loader, _ = PAIRS[pair]
    stack = td.lazy_stack([td({"a": torch.full((3, i + 1), i), f"k{i}": torch.zeros(3)}, [3]) for i in range(12)], dim)
    stack.memmap(tmp_path / "top")
    td({"s": stack}, []).memmap(tmp_path / "nested")
    for out in (loader.load_memmap(tmp_path / "top"), loader.load_memmap(tmp_path / "nested")["s"]):
        assert type(out).__name__ == "LazyStackedTensorDict"
        assert out.stack_dim == dim and tuple(out.batch_size) == ((12, 3) if dim == 0 else (3, 12))
        for i, member in enumerate(out.unbind(dim)):
            assert member["a"].shape == (3, i + 1) and member["a"].eq(i).all() and f"k{i}" in member.keys()


def test_mapped_lazy_stack(tmp_path: Path) -> None:
    stack = lazy_stack([TensorDict({"a": torch.ones(i + 1)}) for i in range(2)])
    mapped = stack.memmap(tmp_path)
    assert isinstance(mapped, LazyStackedTensorDict) and mapped.is_memmap() and mapped[1].is_memmap()
    assert mapped[1].saved_path == tmp_path / "1" and isinstance(mapped[1]["a"], MemoryMappedTensor)
    assert TensorDict.load_memmap(tmp_path).batch_size == (2,)
    stack.memmap_(tmp_path, copy_existing=True)
    assert isinstance(stack[0]["a"], MemoryMappedTensor)


def test_missing_members_are_found(tmp_path: Path) -> None:
    lazy_stack([TensorDict({"a": torch.ones(1)}) for i in range(3)]).memmap(tmp_path)
    os.rename(tmp_path / "2", tmp_path / "away")
    with pytest.raises(DatasetError, match="stack of 3 members.*first missing one is 2"):
        TensorDict.load_memmap(tmp_path)


def test_lazy_stack_of_tensorclasses_crosses_over(tmp_path: Path) -> None:
    members = [Record(torch.full((2,), i), f"n{i}", batch_size=[2]) for i in range(3)]
    lazy_stack(members).memmap(tmp_path / "a")
    theirs = reference.TensorDict.load_memmap(tmp_path / "a")
    assert type(theirs) is RefRecord and theirs.image.shape == (3, 2) and theirs[1].note == "n1"
    reference.LazyStackedTensorDict.lazy_stack(
        [RefRecord(torch.full((2,), i), f"n{i}", batch_size=[2]) for i in range(3)]
    ).memmap(tmp_path / "b")
    for folder in ("a", "b"):
        ours = TensorDict.load_memmap(tmp_path / folder)
        assert tuple(ours.batch_size) == (3, 2)
        assert [type(m) for m in ours.unbind(0)] == [Record] * 3 and ours[1].note == "n1"


def test_stacks_of_stacks_of_tensorclasses(tmp_path: Path) -> None:
    inner = [
        lazy_stack([Record(torch.full((i + 1,), i), f"n{i}{j}", batch_size=[]) for i in range(2)]) for j in range(3)
    ]
    stack = lazy_stack(inner)
    stack.memmap(tmp_path)
    out = TensorDict.load_memmap(tmp_path)
    assert type(out) is type(stack) and out.batch_size == (3, 2)
    assert type(out[2][1]) is Record and out[2][1].note == "n12" and out[2][1].image.tolist() == [1, 1]


OBJECTS = ["text", 3, 2.5, True, None, [1, [2, None]], {"k": {"x": [1]}}, "", "ünï\ud800", float("inf")]


@pytest.mark.parametrize("value", OBJECTS, ids=str)
def test_objects_cross_over_as_json(tmp_path: Path, value: Any) -> None:
    for save, data, load in (
        (TensorDict, NonTensorData, reference.TensorDict),
        (reference.TensorDict, reference.NonTensorData, TensorDict),
    ):
        folder = tmp_path / save.__module__
        save({"o": data(value, batch_size=[3]), "x": torch.zeros(3)}, [3]).memmap(folder)
        assert not list(folder.rglob("*.p*kl*"))
        out = load.load_memmap(folder)
        got = out.get("o")
        assert got.data == value and tuple(got.batch_size) == (3,)


STACKS = [["a", "b", "c"], [{"k": 1}, 2, None], [["a", "b"], ["c", "d"], ["e", "f"]]]


@pytest.mark.parametrize("values", STACKS, ids=str)
def test_stacks_of_objects_cross_over(tmp_path: Path, values: list[Any]) -> None:
    for save, kind, load in (
        (TensorDict, NonTensorStack, reference.TensorDict),
        (reference.TensorDict, reference.NonTensorStack, TensorDict),
    ):
        folder = tmp_path / save.__module__
        save({"o": kind.from_list(values)}, [3]).memmap(folder)
        out = load.load_memmap(folder)
        assert out.get("o").tolist() == values
        assert type(out.get("o")).__name__ == "NonTensorStack"


def test_lists_as_objects_keep_their_batch_size(tmp_path: Path) -> None:
    stack = NonTensorStack(NonTensorData([1, 2]), NonTensorData([3, 4]))
    TensorDict({"o": stack}, [2]).memmap(tmp_path)
    out = TensorDict.load_memmap(tmp_path).get("o")
    assert out.batch_size == (2,) and out.tolist() == [[1, 2], [3, 4]]


class Unpickled:
    opened = 0

    def __reduce__(self) -> Any:
        return _count_open, ()


def _count_open() -> int:
    Unpickled.opened += 1
    return Unpickled.opened


@pytest.mark.parametrize("name", ["d", "d.tdz"])
@pytest.mark.parametrize("wrap", [lambda o: NonTensorData(o, batch_size=[2]), lambda o: NonTensorStack(o, "x")])
def test_pickle_needs_permission_twice(tmp_path: Path, wrap: Any, name: str) -> None:
    td = TensorDict({"o": wrap(Unpickled()), "x": torch.zeros(2)}, [2])
    with pytest.raises(RuntimeError, match=r"\('o',\).*allow_pickle=True"):
        td.memmap(tmp_path / name)
    assert os.listdir(tmp_path) == []
    td.memmap(tmp_path / name, allow_pickle=True)
    before = Unpickled.opened
    with pytest.raises(DatasetError, match="run any code"):
        TensorDict.load_memmap(tmp_path / name)
    assert Unpickled.opened == before
    TensorDict.load_memmap(tmp_path / name, allow_pickle=True)
    assert Unpickled.opened == before + 1


def test_pickled_objects_of_the_reference_load_when_trusted(tmp_path: Path) -> None:
    reference.TensorDict(
        {"o": reference.NonTensorData(b"bytes"), "s": reference.NonTensorStack({1}, {2}), "x": torch.zeros(2)}, []
    ).memmap(tmp_path)
    out = TensorDict.load_memmap(tmp_path, allow_pickle=True)
    assert out["o"] == b"bytes" and out.get("s").tolist() == [{1}, {2}]


def test_parameters(tmp_path: Path) -> None:
    from tensordict_lite.nn import TensorDictParams

    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    params = TensorDictParams(TensorDict.from_module(module))
    mapped = params.memmap(tmp_path)
    assert type(mapped) is TensorDict and isinstance(mapped["0", "weight"], MemoryMappedTensor)
    assert not mapped["0", "weight"].requires_grad
    theirs = reference.TensorDict.load_memmap(tmp_path)
    assert torch.equal(theirs["0", "weight"], module[0].weight)
    one = TensorDict.load_memmap(tmp_path / "0")
    assert sorted(one.keys()) == ["bias", "weight"]
    with pytest.raises(RuntimeError, match="memmap"):
        params.memmap_(tmp_path)
