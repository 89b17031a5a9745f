"""All tensors in one storage: content, state of the result, options, and when it ends."""

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensordict as reference
import torch

import tensordict_lite as project
from tensordict_lite import MemoryMappedTensor, NonTensorData, TensorDict, TensorDictFuture, lazy_stack
from tests.memmap.trees import Point, assert_entries, entries, leaves


def storages(td: Any) -> set[int]:
    found = set()
    for leaf in leaves(td):
        values = leaf._values if leaf.is_nested else leaf
        if values.numel():
            found.add(values.untyped_storage().data_ptr())
    return found


def tree() -> Any:
    return entries("ours", jagged=True, strided=False)


def pair(make: Callable[[Any], Any]) -> list[Any]:
    return [make(project), make(reference)]


# -- content -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"num_threads": 3}, {"share_memory": True}], ids=str)
def test_every_kind_of_entry_is_in_one_storage(options: dict[str, Any]) -> None:
    saved = tree()
    out = saved.consolidate(**options)
    assert_entries(out, saved)
    assert len(storages(out)) == 1 and out.is_consolidated() and out.is_locked
    assert not saved.is_consolidated() and not saved.is_locked and storages(out).isdisjoint(storages(saved))
    assert list(out.keys()) == list(saved.keys()) and out.device is None
    assert all(leaf.is_contiguous() for leaf in leaves(out) if not leaf.is_nested)
    assert out["a"].is_shared() is bool(options.get("share_memory"))


@pytest.mark.parametrize("options", [{}, {"use_buffer": True}, {"share_memory": True}, {"device": "cpu"}], ids=str)
def test_every_kind_of_entry_is_in_one_file(tmp_path: Path, options: dict[str, Any]) -> None:
    saved = tree()
    out = saved.consolidate(tmp_path / "x.bin", **options)
    assert_entries(out, saved)
    assert len(storages(out)) == 1 and out.is_consolidated() and out.is_locked and not out.is_memmap()
    loaded = TensorDict.from_consolidated(tmp_path / "x.bin")
    assert_entries(loaded, saved)
    assert len(storages(loaded)) == 1 and loaded.is_consolidated() and not loaded.is_locked
    out["a"].fill_(7)
    reached = "use_buffer" not in options
    assert bool(TensorDict.from_consolidated(tmp_path / "x.bin")["a"].eq(7).all()) is reached
    assert isinstance(out["a"], MemoryMappedTensor) is reached
    loaded["large"].fill_(9)
    assert not TensorDict.from_consolidated(tmp_path / "x.bin")["large"].eq(9).all()
    assert os.listdir(tmp_path) == ["x.bin"]


ROOTS: dict[str, Callable[[list[int]], Any]] = {
    "td": lambda size: TensorDict({"a": torch.rand(*size, 2), "n": TensorDict({"b": torch.rand(size)}, size)}, size),
    "empty": lambda size: TensorDict({}, size),
    "class": lambda size: Point(torch.rand(*size, 2), "l", batch_size=size),
    "stack": lambda size: lazy_stack([TensorDict({"a": torch.rand(*size, i + 1)}, size) for i in range(2)], len(size)),
    "stack of stacks": lambda size: lazy_stack(
        [lazy_stack([TensorDict({"a": torch.rand(*size, i + 1)}, size) for i in range(3)]) for _ in range(2)]
    ),
    "classes": lambda size: lazy_stack([Point(torch.rand(*size, i + 1), "l", batch_size=size) for i in range(2)]),
    "locked": lambda size: TensorDict({"a": torch.rand(*size, 2), "n": {"s": "x"}}, size, lock=True),
    "named": lambda size: TensorDict({"a": torch.rand(*size, 2)}, size, names=[f"d{i}" for i in range(len(size))]),
    "words": lambda size: TensorDict({"s": project.NonTensorStack("x", "y")}, []) if not size else TensorDict({}, size),
    "view": lambda size: TensorDict({"a": torch.rand(*size, 4, 3).transpose(-1, -2)[..., ::2]}, size),
    "mapped": lambda size: TensorDict({"a": torch.rand(*size, 4)}, size).memmap(),
}


@pytest.mark.parametrize("size", [[], [1], [0], [2, 3], [2, 1, 5]])
@pytest.mark.parametrize("name", ROOTS)
def test_roots_of_every_class_come_back(tmp_path: Path, name: str, size: list[int]) -> None:
    root = ROOTS[name](size)
    before = root.is_locked
    ways = {
        "memory": root.consolidate(),
        "file": root.consolidate(tmp_path / "x.bin"),
        "loaded": type(root).from_consolidated(tmp_path / "x.bin"),
        "pickle": pickle.loads(pickle.dumps(root.consolidate())),
        "pickle of a file": pickle.loads(pickle.dumps(root.consolidate(tmp_path / "x.bin"))),
    }
    assert root.is_locked is before
    for way, out in ways.items():
        assert type(out) is type(root) and out.batch_size == root.batch_size and out.names == root.names, way
        assert [leaf.tolist() for leaf in leaves(out)] == [leaf.tolist() for leaf in leaves(root)], way
        assert out.is_consolidated(), way
        assert out.is_locked is (way in ("memory", "file") or before), way


@pytest.mark.parametrize("dtype", sorted({torch.bool, torch.uint8, torch.int16, torch.float64, torch.bfloat16,
    torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.uint64}, key=str), ids=str)  # fmt: skip
def test_dtypes_are_aligned(tmp_path: Path, dtype: torch.dtype) -> None:
    parts = {f"{n}": torch.ones(n, dtype=torch.uint8) for n in (1, 3, 65)}
    td = TensorDict({k: v for n, p in parts.items() for k, v in ((n, p), (n + "x", torch.ones(int(n)).to(dtype)))}, [])
    for out in (td.consolidate(), td.consolidate(tmp_path / "x.bin"), TensorDict.from_consolidated(tmp_path / "x.bin")):
        for key, leaf in out.items():
            assert leaf.dtype is td[key].dtype and leaf.data_ptr() % 16 == 0
            assert leaf.view(torch.uint8).equal(td[key].view(torch.uint8))


def test_awkward_tensors(tmp_path: Path) -> None:
    x = torch.ones(2, requires_grad=True)
    td = TensorDict(
        {
            "grad": x,
            "computed": x * 2,
            "tied": x,
            "conj": torch.complex(torch.ones(2), torch.ones(2)).conj(),
            "neg": torch.complex(torch.ones(2), torch.ones(2)).conj().imag,
            "big": torch.ones(1).expand(2, 90_000),
        },
        [2],
    )
    for out in (td.consolidate(), td.consolidate(tmp_path / "x.bin"), td.consolidate(tmp_path / "x", use_buffer=True)):
        for key, leaf in out.items():
            assert leaf.is_leaf and not leaf.requires_grad and leaf.eq(td[key]).all(), key
        assert out["grad"].data_ptr() != out["tied"].data_ptr()
    params = project.TensorDictParams(TensorDict({"w": torch.ones(2)}, []))
    assert type(params.consolidate()) is TensorDict and params["w"].requires_grad


def test_views_do_not_disturb_each_others_gradients() -> None:
    """A change of one tensor is no change of another, as far as autograd knows."""
    td = TensorDict({"a": torch.ones(3), "b": torch.ones(3)}, [3]).consolidate()
    x = torch.ones(3, requires_grad=True)
    y = (x * td["a"]).sum()
    td["b"].add_(1)
    y.backward()
    assert x.grad.tolist() == [1, 1, 1]
    td["a"].requires_grad_().mul(2).sum().backward()
    assert td["a"].grad.tolist() == [2, 2, 2]


def test_jagged_tensors_of_one_shape_keep_it(tmp_path: Path) -> None:
    first = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    second = torch.nested.nested_tensor_from_jagged(torch.zeros(3, 3), first.offsets())
    holes = torch.nested.nested_tensor_from_jagged(
        torch.arange(10.0).view(10, 1), offsets=torch.tensor([0, 4, 10]), lengths=torch.tensor([2, 3])
    )
    turned = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3) * 2], layout=torch.jagged).transpose(1, 2)
    td = TensorDict({"x": first, "y": second, "h": holes, "t": turned}, [2])
    td.consolidate(tmp_path / "x.bin")
    ways = [
        td.consolidate(),
        pickle.loads(pickle.dumps(td.consolidate())),
        TensorDict.from_consolidated(tmp_path / "x.bin"),
    ]
    for out in ways:
        assert (out["x"] + out["y"]).values().sum() == 9  # torch only adds what has the same offsets
        assert [part.flatten().tolist() for part in out["h"].unbind()] == [[0, 1], [4, 5, 6]]
        assert [tuple(part.shape) for part in out["t"].unbind()] == [(3, 2), (3, 1)]
        assert out["t"].unbind()[1].eq(2).all() and out.is_consolidated() and len(storages(out)) == 1
    theirs = reference.TensorDict.from_consolidated(tmp_path / "x.bin")
    assert [part.flatten().tolist() for part in theirs["h"].unbind()] == [[0, 1], [4, 5, 6]]


def test_what_cannot_be_consolidated_is_named(tmp_path: Path) -> None:
    for entry, error in (
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), NotImplementedError),
        (torch.eye(3).to_sparse(), TypeError),
        (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), TypeError),
    ):
        td = TensorDict({"n": {"bad": entry}}, [])
        for path in (None, tmp_path / "x.bin"):
            with pytest.raises(error, match=r"\('n', 'bad'\)"):
                td.consolidate(path)
    assert os.listdir(tmp_path) == []


# -- when it ends --------------------------------------------------------------------------------------------------

CHANGES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "write in place": (lambda td: td.set_("a", torch.ones(3)), True),
    "update in place": (lambda td: td.update_({"b": {"c": torch.zeros(3, 2)}}), True),
    "zero": (lambda td: td.zero_(), True),
    "lock": (lambda td: td.lock_(), True),
    "names": (lambda td: setattr(td, "names", ["q"]), True),
    "batch size": (lambda td: setattr(td, "batch_size", []), True),
    "set": (lambda td: td.set("a", torch.ones(3)), False),
    "set nested": (lambda td: td.set(("b", "c"), torch.ones(3)), False),
    "add": (lambda td: td.set("z", torch.ones(3)), False),
    "add nested": (lambda td: td["b"].set("z", torch.ones(3)), False),
    "delete": (lambda td: td.del_("a"), False),
    "delete nested": (lambda td: td["b"].del_("c"), False),
    "rename": (lambda td: td.rename_key_("a", "q"), False),
    "object": (lambda td: td.set_non_tensor("s", "other"), False),
    "memmap": (lambda td: td.memmap_(), False),
    "lock and unlock": (lambda td: td.lock_().unlock_(), False),
}


def small(lib: Any = project) -> Any:
    return lib.TensorDict({"a": torch.arange(3.0), "b": {"c": torch.ones(3, 2)}, "s": "x"}, [3])


@pytest.mark.parametrize("name", CHANGES)
def test_changes_end_it_as_in_the_reference(name: str) -> None:
    change, stays = CHANGES[name]
    for td in pair(lambda lib: pickle.loads(pickle.dumps(small(lib).consolidate()))):
        assert td.is_consolidated() and not td.is_locked
        change(td)
        assert td.is_consolidated() is stays


@pytest.mark.parametrize(
    "derive",
    [
        lambda td: td.clone(), lambda td: td.clone(False), lambda td: td["b"], lambda td: td[0], lambda td: td + 1,
        lambda td: td.contiguous(), lambda td: td.to(torch.float64), lambda td: td.select("a"),
        lambda td: td.apply(torch.exp),
    ],
)  # fmt: skip
def test_what_is_derived_is_not_consolidated(derive: Callable[[Any], Any]) -> None:
    for td in pair(lambda lib: small(lib).consolidate()):
        assert derive(td).is_consolidated() is False and td.is_consolidated()


def test_unlocked_and_changed(tmp_path: Path) -> None:
    td = small().consolidate()
    with pytest.raises(RuntimeError, match="lock"):
        td["a"] = torch.zeros(3)
    td.unlock_()
    td["a"] = torch.zeros(3)
    assert not td.is_consolidated()
    again = td.consolidate()
    assert again.is_consolidated() and again["a"].sum() == 0 and len(storages(again)) == 1
    assert pickle.loads(pickle.dumps(td))["a"].sum() == 0


# -- again ---------------------------------------------------------------------------------------------------------


def test_what_is_there_already_is_returned(tmp_path: Path) -> None:
    for td in (small().consolidate(), small().consolidate(tmp_path / "x.bin")):
        assert td.consolidate() is td and td.consolidate(inplace=True) is td and td.consolidate(device="cpu") is td
    assert td.consolidate(tmp_path / "x.bin") is td


def test_another_place_is_honoured(tmp_path: Path) -> None:
    """The reference warns and returns the tree as it is: a file that was asked for would be missing."""
    td = small().consolidate()
    out = td.consolidate(tmp_path / "x.bin")
    assert out is not td and TensorDict.from_consolidated(tmp_path / "x.bin")["a"].tolist() == [0, 1, 2]
    other = out.consolidate(tmp_path / "y.bin")
    other["a"].fill_(5)
    assert TensorDict.from_consolidated(tmp_path / "x.bin")["a"].tolist() == [0, 1, 2]
    assert TensorDict.from_consolidated(tmp_path / "y.bin")["a"].tolist() == [5, 5, 5]
    assert td.consolidate(device="meta")["a"].device.type == "meta"
    assert td.consolidate(share_memory=True)["a"].is_shared() and not td["a"].is_shared()
    loaded = TensorDict.from_consolidated(tmp_path / "x.bin")
    loaded["a"].fill_(3)
    written = loaded.consolidate(tmp_path / "x.bin")
    assert written is not loaded and TensorDict.from_consolidated(tmp_path / "x.bin")["a"].tolist() == [3, 3, 3]


def test_changed_sizes_and_names_reach_the_file_when_asked(tmp_path: Path) -> None:
    td = small().consolidate(tmp_path / "x.bin")
    td.batch_size, td["b"].names = [], ["t"]
    td["a"].fill_(4)
    assert TensorDict.from_consolidated(tmp_path / "x.bin").batch_size == torch.Size([3])
    assert td.consolidate(tmp_path / "x.bin") is td and td.is_consolidated()
    loaded = TensorDict.from_consolidated(tmp_path / "x.bin")
    assert loaded.batch_size == torch.Size([]) and loaded["b"].names == ["t"] and loaded["a"].sum() == 12
    td["a"].fill_(6)  # it is the new file that is mapped now
    assert TensorDict.from_consolidated(tmp_path / "x.bin")["a"].sum() == 18


def test_file_that_another_program_has_replaced_is_written_again(tmp_path: Path) -> None:
    td = small().consolidate(tmp_path / "x.bin")
    (small() + 5).consolidate(tmp_path / "x.bin")
    assert td.consolidate(tmp_path / "x.bin") is td
    assert TensorDict.from_consolidated(tmp_path / "x.bin")["a"].tolist() == [0, 1, 2]
    os.unlink(tmp_path / "x.bin")
    assert td.consolidate(tmp_path / "x.bin") is td
    assert TensorDict.from_consolidated(tmp_path / "x.bin")["a"].tolist() == [0, 1, 2]


def test_older_file_stays_with_those_who_have_it(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    first = small().consolidate(path)
    os.chmod(path, 0o640)
    reader = TensorDict.from_consolidated(path)
    (small() + 10).select("a").consolidate(path)
    assert first["a"].tolist() == reader["a"].tolist() == [0, 1, 2]
    assert TensorDict.from_consolidated(path)["a"].tolist() == [10, 11, 12]
    assert oct(os.stat(path).st_mode & 0o777) == "0o640"


# -- options -------------------------------------------------------------------------------------------------------


def test_in_place(tmp_path: Path) -> None:
    for options in ({}, {"filename": tmp_path / "x.bin"}):
        td = small()
        inner = td["b"]
        assert td.consolidate(inplace=True, **options) is td and td["b"] is inner
        assert td.is_consolidated() and td.is_locked and len(storages(td)) == 1
    for td in pair(lambda lib: small(lib).lock_()):
        with pytest.raises(RuntimeError, match="locked"):
            td.consolidate(inplace=True)
    with pytest.raises(RuntimeError, match="parameters"):
        project.TensorDictParams(TensorDict({"w": torch.ones(2)}, [])).consolidate(inplace=True)


def test_early_return(tmp_path: Path) -> None:
    for options in ({}, {"filename": tmp_path / "x.bin"}, {"inplace": True}):
        td = small()
        future = td.consolidate(return_early=True, num_threads=2, **options)
        assert type(future) is TensorDictFuture
        out = future.result()
        assert out.is_consolidated() and out["a"].tolist() == [0, 1, 2] and (out is td) is bool(options.get("inplace"))
    assert type(small().consolidate(return_early=True)) is TensorDict  # nothing to wait for without threads
    for td in pair(small):
        with pytest.raises(NotImplementedError, match="use_buffer"):
            td.consolidate(tmp_path / "y.bin", return_early=True, num_threads=2, use_buffer=True)
        with pytest.raises(NotImplementedError, match="non_blocking"):
            td.consolidate(return_early=True, num_threads=2, non_blocking=True)
        with pytest.raises(RuntimeError, match="device and filename are mutually exclusive"):
            td.consolidate(tmp_path / "y.bin", device="meta")
    assert not (tmp_path / "y.bin").exists()
    bad = TensorDict({"bad": torch.eye(2).to_sparse()}, [])
    with pytest.raises(TypeError):
        bad.consolidate(return_early=True, num_threads=2)


def test_devices() -> None:
    for td in pair(lambda lib: small(lib).consolidate()):
        for moved in (td.to("meta"), td.to(device="meta"), td.to("meta", non_blocking=True)):
            assert moved.is_consolidated() and moved["b", "c"].device.type == "meta" and moved.is_locked
            assert moved.device == torch.device("meta")
        here = td.to("cpu")
        assert here.is_consolidated() and here.device == torch.device("cpu")
        assert here["a"].data_ptr() == td["a"].data_ptr()
    out = small().to("meta").consolidate()
    assert out["a"].device.type == "meta" and out.device == torch.device("meta")
    assert small().consolidate(device="meta").device is None  # no rule before, none afterwards


def test_one_copy_moves_a_consolidated_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    td = TensorDict({f"k{i}": torch.ones(3) for i in range(50)}, [3])
    copies = []
    real = torch.Tensor.to

    def counted(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        copies.append(self.shape)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", counted)
    td.to("meta")
    assert len(copies) == 50
    copies.clear()
    whole = td.consolidate()
    copies.clear()
    assert whole.to("meta")["k7"].device.type == "meta" and len(copies) == 1
    stale = pickle.loads(pickle.dumps(whole))
    stale["k3"] = torch.zeros(3)
    copies.clear()
    assert stale.to("meta")["k3"].device.type == "meta" and len(copies) == 50


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator is there")
def test_pinned_memory_needs_an_accelerator() -> None:
    with pytest.raises(RuntimeError) as of_torch:  # it depends on what torch was built for
        torch.empty(1, pin_memory=True)
    for td in pair(small):
        with pytest.raises(RuntimeError, match=re.escape(str(of_torch.value).partition("\n")[0])):
            td.consolidate(pin_memory=True)


def test_objects_alone(tmp_path: Path) -> None:
    assert NonTensorData("x").consolidate().data == "x"
    with pytest.raises(RuntimeError, match="put it in a TensorDict"):
        NonTensorData("x").consolidate(tmp_path / "x.bin")
    stack = project.NonTensorStack("x", "y").consolidate(tmp_path / "x.bin")
    assert stack.tolist() == TensorDict.from_consolidated(tmp_path / "x.bin").tolist() == ["x", "y"]
