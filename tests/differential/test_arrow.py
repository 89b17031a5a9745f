"""Tables of Arrow as collections and back, beside the reference."""

import datetime
import decimal
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensordict
import torch

import tensordict_lite
from tests.differential.harness.namespace import build
from tests.differential.harness.snapshot import snapshot

pa = pytest.importorskip("pyarrow")

JAGGED = "torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)"
ROWS = "torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)"

COLLECTIONS = {
    "numbers": "TD({'a': torch.arange(3), 'f': torch.ones(3), 'b': Mask, 'h': torch.ones(3).half()}, [3])",
    "wide": "TD({'a': torch.arange(12.).view(3, 4), 'b': torch.ones(3, 2, 2, dtype=torch.bool)}, [3])",
    "strided": "TD({'a': torch.arange(6)[::2], 'w': torch.arange(12.).view(4, 3).T}, [3])",
    "negated": "TD({'a': torch.ones(3).cfloat().conj().imag}, [3])",
    "gradients": "TD({'a': torch.ones(3, requires_grad=True)}, [3])",
    "nested": "TD({'n': {'b': torch.arange(3), 'm': {'c': torch.ones(3, 2)}}, 'e': {}}, [3])",
    "nested batch": "TD({'n': TD({'b': torch.ones(3, 4)}, [3, 4])}, [3])",
    "no entries": "TD({}, [3])",
    "no rows": "TD({'a': torch.ones(0), 'w': torch.ones(0, 2)}, [0])",
    "text": "TD({'s': ['x', 'y', 'z'], 'o': NonTensorData('one', batch_size=[3])}, [3])",
    "objects": "TD({'o': NonTensorStack({'a': 1}, {'a': 2})}, [2])",
    "mixed objects": "TD({'o': NonTensorStack(1, 'a')}, [2])",
    "sets": "TD({'o': NonTensorStack({1}, {2})}, [2])",
    "jagged": f"TD({{'j': {JAGGED}}}, [2])",
    "jagged rows": f"TD({{'j': {ROWS}}}, [2])",
    "ragged dim 2": f"TD({{'j': {ROWS}.transpose(1, 2)}}, [2])",
    "strided nested": "TD({'j': torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}, [2])",
    "bfloat16": "TD({'a': torch.ones(3).bfloat16()}, [3])",
    "complex": "TD({'a': torch.ones(3).cfloat()}, [3])",
    "empty tensors": "TD({'a': torch.ones(3, 0)}, [3])",
    "lazy": "lazy_stack([TD({'a': torch.ones(2)}) for i in range(3)])",
    "ragged": "lazy_stack([TD({'a': torch.ones(i + 1)}) for i in range(3)])",
    "ragged, jagged": "lazy_stack([TD({'a': torch.ones(i + 1)}) for i in range(3)]).densify(layout=torch.jagged)",
    "tensorclass": "c",
    "nested tensorclass": "TD({'p': c}, [3])",
    "parameters": "Params(TD({'a': torch.ones(3)}, [3]))",
    "two batch dimensions": "TD({'a': torch.ones(2, 3)}, [2, 3])",
    "no batch dimension": "TD({'a': torch.tensor(1)})",
    "objects alone": "NonTensorStack('a', 'b')",
}


def answer(ask: Any) -> Any:
    try:
        return ask()
    except Exception as error:
        return error


def same_error(found: Any, expected: Any) -> bool:
    """Whether both refuse, by one type of error; Arrow has types of its own, of which the built-in ones count."""
    if not isinstance(expected, Exception) or not isinstance(found, Exception):
        return False
    return isinstance(expected, type(found)) or isinstance(expected, pa.ArrowNotImplementedError)


@pytest.mark.parametrize("kind", COLLECTIONS)
def test_a_collection_becomes_the_table_of_the_reference_and_comes_back(kind: str) -> None:
    tables = []
    for library in (tensordict_lite, tensordict):
        data = eval(COLLECTIONS[kind], build(library.__name__, {"c"}))
        tables.append(answer(lambda library=library, data=data: library.to_arrow(data)))
    found, expected = tables
    if isinstance(expected, Exception):
        assert same_error(found, expected), (found, expected)
        return
    assert found.schema == expected.schema and found.equals(expected)
    back = [snapshot(library.from_arrow(found)) for library in (tensordict_lite, tensordict)]
    assert repr(back[0]) == repr(back[1])


def test_what_the_reference_writes_wrongly_is_refused() -> None:
    shared = tensordict_lite.TensorDict({"u": tensordict_lite.UnbatchedTensor(torch.ones(2))}, [3])
    with pytest.raises(ValueError, match="'u' is a tensor shared by all rows"):
        tensordict_lite.to_arrow(shared)
    with pytest.raises(TypeError, match="got a dict"):
        tensordict_lite.to_arrow({"a": torch.ones(3)})
    one = pa.array([1])
    with pytest.raises(ValueError, match="two columns have the name 'a'"):
        tensordict_lite.from_arrow(pa.table([one, one], names=["a", "a"]))


INT = pa.int64()
COLUMNS = {
    "int": pa.array([1, None]), "float": pa.array([1.0, None]), "bool": pa.array([True, None]),
    "uint8": pa.array([1, 2], pa.uint8()), "uint64": pa.array([1, 2], pa.uint64()),
    "half": pa.array(np.ones(2, np.float16), pa.float16()), "text": pa.array(["a", None]),
    "bytes": pa.array([b"a", b""]), "nulls": pa.array([None, None]), "no rows": pa.array([], INT),
    "lists": pa.array([[1, 2], []]), "lists, null": pa.array([[1, 2], None]), "no lists": pa.array([], pa.list_(INT)),
    "null in a list": pa.array([[1, None], []]), "lists of bools": pa.array([[True], [False, True]]),
    "large lists": pa.array([[1], [2]], pa.large_list(pa.float32())), "no text": pa.array([], pa.string()),
    "fixed lists": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)),
    "fixed lists, null": pa.array([[1, 2], None], pa.list_(pa.int32(), 2)),
    "null in a fixed list": pa.array([[1, None]], pa.list_(INT, 2)),
    "fixed lists of bools": pa.array([[True, False], [True, True]], pa.list_(pa.bool_(), 2)),
    "fixed lists of them": pa.array([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(INT, 2), 1)),
    "fixed lists of text": pa.array([["a"], ["b"]], pa.list_(pa.string(), 1)),
    "lists of fixed lists": pa.array([[[1, 2]], [[3, 4], [5, 6]]], pa.list_(pa.list_(INT, 2))),
    "struct": pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]), "struct, null": pa.array([{"a": 1}, None]),
    "null in a struct": pa.array([{"a": None}, {"a": 1}]), "bare struct": pa.array([{}, {}], pa.struct([])),
    "lists of lists": pa.array([[[1]], [[2, 3]]]), "lists of text": pa.array([["a"], ["b", "c"]]),
    "null in lists of text": pa.array([["a", None]]), "categories": pa.array(["a", "b"]).dictionary_encode(),
    "times": pa.array([datetime.datetime(2020, 1, 1)] * 2), "dates": pa.array([datetime.date(2020, 1, 1)] * 2),
    "decimals": pa.array([decimal.Decimal("1.0")] * 2),
    "maps": pa.array([[("a", 1)], [("b", 2)]], pa.map_(pa.string(), INT)),
    "tensors": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(INT, (3, 4), permutation=[1, 0]),
        pa.FixedSizeListArray.from_arrays(pa.array(range(24)), 12),
    ),
}  # fmt: skip


@pytest.mark.parametrize("nulls", ["raise", "fill", "mask"])
@pytest.mark.parametrize("kind", COLUMNS)
def test_a_column_becomes_the_entry_of_the_reference(kind: str, nulls: str) -> None:
    column = COLUMNS[kind]
    whole = pa.table({"x": column, "n": np.arange(len(column))})
    for table in (whole, whole.slice(1), pa.concat_tables([whole, whole]), whole.slice(0, 1)):
        found, expected = (
            answer(lambda library=library, table=table: snapshot(library.from_arrow(table, nulls=nulls)))
            for library in (tensordict_lite, tensordict)
        )
        assert repr(found) == repr(expected) or (type(found) is type(expected) and str(found) == str(expected))


OTHERS: dict[str, Any] = {
    "batch": lambda library: library.from_arrow(pa.record_batch({"a": [1, 2]})),
    "dict": lambda library: library.from_arrow({"a": [1, 2]}),
    "list": lambda library: library.from_arrow([1, 2]),
    "path": lambda library: library.from_arrow("x.parquet"),
    "none": lambda library: library.from_arrow(None),
    "no columns": lambda library: library.from_arrow(pa.table({})),
    "nulls=": lambda library: library.from_arrow(pa.table({"a": [1]}), nulls="zero"),
    "mask_key without masks": lambda library: library.from_arrow(pa.table({"a": [1]}), mask_key="m"),
    "mask_key": lambda library: library.from_arrow(pa.table({"a": [1, None]}), nulls="mask", mask_key=("x", "m")),
    "taken mask_key": lambda library: library.from_arrow(pa.table({"a": [1, None], "_mask": [1, 2]}), nulls="mask"),
    "device": lambda library: library.from_arrow(pa.table({"a": [1]}), device="cpu"),
    "copy": lambda library: library.from_arrow(pa.table({"a": [1]}), copy=True),
}


@pytest.mark.parametrize("what", OTHERS)
def test_arguments_mean_what_they_do_in_the_reference(what: str) -> None:
    found, expected = (
        answer(lambda library=library: snapshot(OTHERS[what](library))) for library in (tensordict_lite, tensordict)
    )
    assert repr(found) == repr(expected) or (type(found) is type(expected) and str(found) == str(expected))


@pytest.mark.parametrize("copy", [None, True, False])
def test_memory_is_shared_where_the_reference_shares_it(copy: bool | None) -> None:
    def shared(library: ModuleType, source: Any) -> bool:
        tensor = library.from_arrow(pa.table({"a": source}), copy=copy)["a"]
        return bool(tensor.data_ptr() == source.buffers()[1].address)

    numbers = np.arange(4)
    mutable = pa.Array.from_buffers(pa.int64(), 4, [None, pa.py_buffer(numbers)])
    immutable = pa.Array.from_buffers(pa.int64(), 4, [None, pa.py_buffer(bytes(32))])
    for source in (mutable, immutable, pa.array([1, 2])):
        assert shared(tensordict_lite, source) == shared(tensordict, source)
    data = tensordict_lite.TensorDict({"a": torch.arange(3)}, [3])
    assert tensordict_lite.to_arrow(data)["a"].chunk(0).buffers()[1].address == data["a"].data_ptr()
