"""Collections over arrays of other libraries, from schemas, and like others."""

import collections

import numpy as np
import pytest
import torch

import tensordict_lite as tdl
from tensordict_lite import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    TensorDictBase,
    lazy_stack,
)

Pair = collections.namedtuple("Pair", ["first", "second"])


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


def test_arrow_columns_come_by_dlpack_and_mapped_tensors_go(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    column = arrow.array([1.5, 2.5])
    assert TensorDict.from_dlpack({"a": column}, batch_size=[2])["a"].tolist() == [1.5, 2.5]
    with pytest.raises(ValueError, match="nulls"):
        TensorDict.from_dlpack({"a": arrow.array([1, None])})
    mapped = TensorDict({"a": torch.zeros(3)}, [3]).memmap(tmp_path / "data")
    np.from_dlpack(mapped["a"])[:] = 1
    assert TensorDict.load_memmap(tmp_path / "data")["a"].sum() == 3


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


def test_classes_can_be_subscribed_in_annotations():
    assert TensorDict[str, torch.Tensor].__origin__ is TensorDict
    assert TensorDictBase.from_schema({"a": ((3,), torch.float32)}, batch_size=[2])["a"].shape == (2, 3)

    class Tensors(TensorClass, tensor_only=True):
        x: TensorDict[str, torch.Tensor]
        y: TensorDict[str, torch.Tensor] | torch.Tensor = None

    assert Tensors(x=TensorDict(a=torch.ones(2)), y=torch.ones(2)).x["a"].sum() == 2
