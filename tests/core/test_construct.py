"""Collections from dicts, lists, tuples, dataclasses, arrays and schemas."""

from __future__ import annotations

import collections
import dataclasses
import warnings

import numpy as np
import pytest
import torch

import tensordict_lite as tdl
from tensordict_lite import (
    LazyStackedTensorDict,
    MemoryMappedTensor,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    TensorDictBase,
    lazy_stack,
    make_tensordict,
    tensorclass,
)

Pair = collections.namedtuple("Pair", ["first", "second"])
DATA = {"a": torch.zeros(3, 4), "b": {"c": torch.zeros(3, 4, 5)}}


@dataclasses.dataclass
class Record:
    image: torch.Tensor
    label: str = "none"
    inner: object = None


def test_from_dict_infers_batch_sizes_only_when_asked():
    assert TensorDict.from_dict(DATA).batch_size == ()
    td = TensorDict.from_dict(DATA, auto_batch_size=True)
    assert td.batch_size == (3, 4) and td["b"].batch_size == (3, 4, 5)
    assert TensorDict.from_dict(DATA, batch_dims=1)["b"].batch_size == (3,)
    assert TensorDict.from_dict(DATA, batch_size=[3], names=["row"]).names == ["row"]
    with pytest.raises(ValueError, match="not both"):
        TensorDict.from_dict(DATA, batch_size=[3], batch_dims=1)
    with pytest.raises(RuntimeError, match="'c'"):
        TensorDict.from_dict({"b": {"c": torch.zeros(2)}}, batch_size=[3])


def test_from_dict_converts_containers_and_keeps_numbers_with_a_batch_size():
    td = TensorDict.from_dict(
        {"n": 1, "pair": (torch.zeros(3), torch.ones(3)), ("u", "v"): torch.ones(3)}, batch_size=[3]
    )
    assert isinstance(td.get("n"), NonTensorData) and td["n"] == 1
    assert td["pair", "1"].sum() == 3 and td["u", "v"].sum() == 3
    merged = TensorDict.from_dict({("a", "b"): torch.zeros(1), "a": {"c": torch.ones(1)}})
    assert set(merged["a"].keys()) == {"b", "c"}


def test_from_dict_instance_restores_tensorclasses():
    @tensorclass
    class Point:
        x: torch.Tensor

    td = TensorDict({"p": Point(x=torch.zeros(3), batch_size=[3]), "q": {"r": torch.zeros(3)}}, [3])
    again = td.from_dict_instance(td.to_dict(), batch_size=[3])
    assert type(again["p"]) is Point and type(again["q"]) is TensorDict


def test_from_list_stacks_densely_or_lazily():
    rows = [{"a": torch.zeros(3)}, {"a": torch.ones(3)}]
    td = TensorDict.from_list(rows, batch_size=[2, 3], names=["x", "y"])
    assert td["a"].shape == (2, 3) and td.names == ["x", "y"]
    assert TensorDict.from_list(rows, batch_dims=2).batch_size == (2, 3)
    assert type(TensorDict.from_list(rows, lazy=True)).__name__ == "LazyStackedTensorDict"
    assert (
        type(TensorDict.from_list([{"a": torch.zeros(1)}, {"b": torch.zeros(1)}])).__name__ == "LazyStackedTensorDict"
    )
    with pytest.raises(ValueError, match="length of the list, 2"):
        TensorDict.from_list(rows, batch_size=[5])
    with pytest.raises(RuntimeError, match="empty"):
        TensorDict.from_list([])


def test_tuples_and_named_tuples():
    td = tdl.from_namedtuple(Pair(torch.zeros(3), Pair(torch.ones(3), "text")), auto_batch_size=True)
    assert td.batch_size == (3,) and td["second", "second"] == "text"
    assert list(tdl.from_tuple((torch.zeros(3), (1, 2))).keys(True, True)) == ["0", ("1", "0"), ("1", "1")]
    assert tdl.from_namedtuple(torch.tensor([[2, 0, 1]]).max(dim=1))["indices"].item() == 0
    with pytest.raises(TypeError, match="not both"):
        tdl.from_namedtuple(Pair(torch.zeros(3), 1), auto_batch_size=True, batch_size=[3])


def test_from_any_converts_containers_and_nothing_else():
    assert type(tdl.from_any({"a": 1})) is TensorDict
    assert tdl.from_any([1, 2]).tolist() == [1, 2]
    assert tdl.from_any(["a", "b"]).tolist() == ["a", "b"]
    for value in (1, "s", None, np.zeros(3), {1, 2}):
        assert tdl.from_any(value) is value
    assert tdl.from_any(Record(torch.zeros(3), inner={"k": 1}))["inner", "k"] == 1


def test_from_dataclass_is_recursive():
    td = TensorDict.from_dataclass(Record(torch.zeros(3), "cat", Record(torch.ones(3))), batch_size=[3])
    assert td["label"] == "cat" and td["inner", "image"].sum() == 3 and td["inner", "inner"] is None
    with pytest.raises(TypeError, match="dataclass"):
        TensorDict.from_dataclass(3)
    made = TensorDict.from_dataclass(Record(torch.zeros(3)), as_tensorclass=True)
    assert tdl.is_tensorclass(made) and made.label == "none"


def test_struct_arrays_share_memory_and_round_trip():
    array = np.array([("Rex", 9, 81.0), ("Fido", 3, 27.0)], dtype=[("name", "U10"), ("age", "i4"), ("weight", "f4")])
    td = tdl.from_struct_array(array)
    array["age"] += 1
    assert td.batch_size == (2,) and td["age"].tolist() == [10, 4]
    assert (td.to_struct_array() == array).all()
    nested = np.zeros((2, 3), dtype=[("a", "f4", (2,)), ("n", [("u", "i8"), ("v", "?")])])
    assert tdl.from_struct_array(nested)["n", "u"].shape == (2, 3)


class Foreign:
    """An array of a library that shares it by DLPack, and by nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_arrays_of_other_libraries_share_their_memory(dtype, rows):
    wide = np.ones((rows, 4)).astype(dtype)
    strided = np.zeros((2 * rows, 3)).astype(dtype)[::2, ::-1][:, ::-1]
    td = TensorDict.from_dlpack({"x": Foreign(wide), ("n", "s"): Foreign(strided), "m": {"y": wide}}, batch_size=[rows])
    assert td["m"].batch_size == (rows,)
    for key, array in (("x", wide), (("n", "s"), strided), (("m", "y"), wide)):
        assert (td[key].numpy() == array).all() and td[key].dtype == torch.from_numpy(array[:0].copy()).dtype
        array[...] = 0
        assert not td[key].any() and (not rows or np.shares_memory(td[key].numpy(), array))
        assert np.shares_memory(np.from_dlpack(td[key]), array) or not rows


def test_from_dlpack_makes_the_class_that_is_asked_and_infers_sizes():
    @tdl.tensorclass
    class Pair:
        a: torch.Tensor
        b: torch.Tensor

    pair = Pair.from_dlpack({"a": Foreign(np.ones((2, 3))), "b": torch.zeros(2, 3)}, auto_batch_size=True, batch_dims=1)
    assert type(pair) is Pair and pair.batch_size == (2,) and pair.a.sum() == 6
    assert TensorDict.from_dlpack({"a": np.full((), 3.0)}, device="meta")["a"].device.type == "meta"


def test_what_dlpack_cannot_share_is_named():
    with pytest.raises(TypeError, match=r"\('n', 'a'\) is a list, which has no __dlpack__: use from_dict"):
        TensorDict.from_dlpack({"n": {"a": [1, 2]}})
    with pytest.raises(ValueError, match=r"the entry \('s',\), a ndarray, cannot be shared: .*DLPack"):
        TensorDict.from_dlpack({"s": np.array(["text"])})
    with pytest.raises(TypeError, match=r"got a ndarray: from_dlpack\(\{'x': array\}\)"):
        TensorDict.from_dlpack(np.ones(3))


def test_arrow_columns_come_by_dlpack_and_mapped_tensors_go(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    column = arrow.array([1.5, 2.5])
    assert TensorDict.from_dlpack({"a": column}, batch_size=[2])["a"].tolist() == [1.5, 2.5]
    with pytest.raises(ValueError, match="nulls"):
        TensorDict.from_dlpack({"a": arrow.array([1, None])})
    mapped = TensorDict({"a": torch.zeros(3)}, [3]).memmap(tmp_path / "data")
    np.from_dlpack(mapped["a"])[:] = 1
    assert TensorDict.load_memmap(tmp_path / "data")["a"].sum() == 3


def test_from_schema_allocates(tmp_path):
    schema = {"obs": ([4], torch.uint8), ("n", "reward"): ([], torch.float32)}
    td = TensorDict.from_schema(schema, batch_size=[5])
    assert td["obs"].shape == (5, 4) and td["obs"].dtype is torch.uint8 and td["n", "reward"].shape == (5,)
    assert TensorDict.from_schema(schema, storage="shared").is_shared()
    mapped = TensorDict.from_schema(schema, batch_size=[5], storage="memmap", prefix=tmp_path)
    assert mapped.is_memmap() and mapped["obs"].sum() == 0
    with pytest.raises(ValueError, match="'tape'"):
        TensorDict.from_schema(schema, storage="tape")


def test_make_tensordict_and_fromkeys():
    td = make_tensordict({"a": torch.zeros(3)}, a=torch.ones(1), b={"c": torch.zeros(3, 2)}, auto_batch_size=True)
    assert td.batch_size == (3,) and td["a"].sum() == 0 and td["b"].batch_size == (3, 2)
    assert TensorDict.fromkeys(["a", ("b", "c")], 2)["b", "c"] == 2


@pytest.mark.parametrize("name", ["new_zeros", "new_ones", "new_empty"])
def test_new_like_changes_the_batch_size(name):
    td = TensorDict({"a": torch.ones(3, 2), "n": TensorDict({"b": torch.ones(3, 4, 5)}, [3, 4]), "s": "x"}, [3])
    for size in ((2, 2), ([2, 2],), (torch.Size([2, 2]),)):
        new = getattr(td, name)(*size)
        assert new.batch_size == (2, 2) and new["a"].shape == (2, 2, 2) and new.get("s").batch_size == (2, 2)
        assert new["n"].batch_size == (2, 2, 4) and new["n", "b"].shape == (2, 2, 4, 5)
    meta = getattr(td, name)(7, dtype=torch.int32, device="meta", requires_grad=False)
    assert (
        meta.device == meta["n"].device == meta["a"].device == torch.device("meta") and meta["a"].dtype is torch.int32
    )


def test_new_full_and_new_tensor():
    td = TensorDict({"a": torch.ones(3), "b": torch.ones(3, dtype=torch.int64)}, [3])
    assert td.new_full(2, 7)["b"].tolist() == [7, 7]
    new = td.new_tensor([1, 2])
    assert new.batch_size == (2,) and new["a"].dtype is torch.float32 and new["b"].tolist() == [1, 2]
    with pytest.warns(UserWarning, match="copy construct"):
        assert td.new_tensor(td + 1)["a"].sum() == 6


def test_stacking_class_methods():
    td = TensorDict({"a": torch.zeros(3)}, [3])
    assert TensorDict.stack([td, td], 1).batch_size == (3, 2) and TensorDict.cat([td, td]).batch_size == (6,)
    assert type(TensorDict.lazy_stack([td, td])).__name__ == "LazyStackedTensorDict"
    assert type(TensorDict.maybe_dense_stack([td, td])) is TensorDict
    assert type(tdl.dense_stack_tds(TensorDict.lazy_stack([td, td]))) is TensorDict
    with pytest.raises(ValueError, match="dim="):
        tdl.dense_stack_tds([td, td])


def test_attrs_describe_and_cast():
    td = TensorDict({"a": torch.zeros(3), "n": {"b": torch.zeros(3, 2, dtype=torch.int32)}}, [3])
    attrs = td.attrs()
    assert attrs["n", "b"].tgt_dtype is torch.int32 and attrs["n", "b"].tgt_shape == (3, 2)
    assert td.attrs(fields=["dtype"])["a"].tgt_device is None


def test_group_by_splits_rows():
    td = TensorDict({"label": torch.tensor([1, 0, 1]), "name": ["x", "y", "x"], "v": torch.arange(3)}, [3])
    values, groups = tdl.group_by(td, "label")
    assert values.tolist() == [0, 1] and groups[1]["v"].tolist() == [0, 2]
    names, parts = tdl.group_by(td, "name")
    assert names == ["x", "y"] and parts[0]["v"].tolist() == [0, 2]


def test_new_ones_with_empty_lazy_keep_lazy_stacks_to_be_filled():
    ragged = lazy_stack([TensorDict({"b": torch.ones(n + 1)}) for n in range(2)])
    td = TensorDict({"a": torch.zeros(2, 3), "l": ragged, "s": NonTensorStack(["x"], ["y"])}, [2])
    new = td.new_empty(4, empty_lazy=True)
    assert isinstance(new["l"], LazyStackedTensorDict) and new["l"].batch_size == (4,) and new["l"][0].is_empty()
    assert new["s"] == [["x"]] * 4 and new["a"].shape == (4, 3)
    new[:2] = td
    new[2:] = td
    assert [b.shape[0] for b in new["l"].get("b", as_list=True)] == [1, 2, 1, 2]
    assert new["s"] == [["x"], ["y"], ["x"], ["y"]]
    assert td.new_zeros((4, 5), empty_lazy=True)["l"].batch_size == (4, 5)
    assert isinstance(lazy_stack([td, td]).new_zeros(3, 2, empty_lazy=True), LazyStackedTensorDict)


def test_new_ones_have_no_objects_for_new_rows():
    td = TensorDict({"s": NonTensorStack(["x"], ["y"]), "one": NonTensorData("q", batch_size=[2])}, [2])
    new = td.new_zeros(4)
    assert new["s"] == [None] * 4 and new["one"] == "q"
    new[:2] = td
    new[2:] = td
    assert new["s"] == [["x"], ["y"], ["x"], ["y"]]


def test_new_tensor_of_a_tensor_warns_as_torch_does():
    td = TensorDict({"a": torch.zeros(3), "n": {"b": torch.zeros(3)}}, [3])
    for data in (td, torch.ones(3)):
        with pytest.warns(UserWarning, match="To copy construct from a tensor") as caught:
            td.new_tensor(data)
        assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        td.new_tensor([1, 2, 3])


def test_classes_can_be_subscribed_in_annotations():
    assert TensorDict[str, torch.Tensor].__origin__ is TensorDict
    assert TensorDictBase.from_schema({"a": ((3,), torch.float32)}, batch_size=[2])["a"].shape == (2, 3)

    class Tensors(TensorClass, tensor_only=True):
        x: TensorDict[str, torch.Tensor]
        y: TensorDict[str, torch.Tensor] | torch.Tensor = None

    assert Tensors(x=TensorDict(a=torch.ones(2)), y=torch.ones(2)).x["a"].sum() == 2


def test_a_mapped_tensor_is_not_made_from_a_list():
    with pytest.raises(TypeError, match=r"from_tensor\(torch.as_tensor"):
        MemoryMappedTensor([3, 4])
