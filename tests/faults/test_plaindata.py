"""Values as data: what is written comes back, and bytes of anybody's run nothing."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import fractions
import io
import pathlib
import pickle
import uuid
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tdmap
from tdmap.errors import SerializationError
from tdmap.plaindata import dump, load, modules_of
from tdmap.reducers import (
    Checksum,
    Count,
    CovarianceMatrix,
    Histogram,
    Max,
    Mean,
    Min,
    MinMax,
    Quantile,
    Reducer,
    Std,
    Sum,
    TopK,
    Unique,
    ValueCounts,
    Var,
)
from tensordict_lite import NonTensorData, TensorDict, lazy_stack, tensorclass
from tensordict_lite.memmap.load import DTYPES

HERE = (__name__,)


class Point(NamedTuple):
    x: int
    y: str


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int
    y: list


class Slots:
    __slots__ = ("a", "b")

    def __eq__(self, other):
        return (self.a, self.b) == (other.a, other.b)


class Own:
    """Says itself what is kept."""

    handle = None

    def __init__(self, handle):
        self.handle, self.total = handle, 3

    def __getstate__(self):
        return {"total": self.total}


def runs(*arguments):
    raise AssertionError("a method of a class was called by data")


HOOKS = ["__setstate__", "__del__", "__getattr__", "__getattribute__"]


class Words(list):
    pass


class Table(dict):
    pass


class Color(enum.Enum):
    RED = 1


@tensorclass
class Sample:
    image: torch.Tensor
    label: torch.Tensor


def there_and_back(value, modules=HERE):
    found = load(dump(value, modules), modules)
    assert type(found) is type(value)
    return found


SLOTS = Slots()
SLOTS.a, SLOTS.b = 1, "b"

VALUES = [
    2**63 - 1,
    2**63,
    -(2**63),
    -(2**63) - 1,
    2**500,
    -1.5,
    1 + 2j,
    "half a character \ud800",
    b"\0\xff",
    bytearray(b"x"),
    [],
    [1, 2, 2**70],
    [1.0, -0.0, float("inf")],
    ["a", ""],
    [True, 1, 1.0, None, "x"],
    (),
    ((1,), [2]),
    {1: "a", "b": [1, {2: (3,)}], (4, 5): None},
    {1, 2},
    frozenset("ab"),
    torch.Size([2, 3]),
    range(1, 9, 2),
    slice(None, 3),
    datetime.datetime(2020, 1, 2, 3, 4, 5, 6, datetime.UTC),
    datetime.date(2020, 1, 2),
    datetime.timedelta(1, 2, 3),
    decimal.Decimal("1.50"),
    fractions.Fraction(1, 3),
    uuid.UUID(int=7),
    pathlib.Path("a/b"),
    collections.Counter("aab"),
    collections.OrderedDict([("b", 1), ("a", 2)]),
    collections.defaultdict(int, {"a": 1}),
    collections.deque([1, 2], 5),
    torch.float32,
    torch.device("cpu"),
    np.float32(3),
    np.datetime64("2020-01-01"),
    Point(1, "a"),
    Frozen(1, [2]),
    SLOTS,
    Words([1, 2]),
    Table(a=1),
    Color.RED,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_come_back(value):
    assert there_and_back(value) == value
    assert there_and_back([value, value]) == [value, value]


@pytest.mark.parametrize("dtype", sorted(name for name in DTYPES if not name.startswith(("torch.q", "torch.bits"))))
def test_tensors_of_every_dtype(dtype):
    kind = DTYPES[dtype]
    try:
        value = torch.arange(24, dtype=torch.uint8).view(kind)
    except (RuntimeError, NotImplementedError):
        pytest.skip("torch cannot make one")
    found = there_and_back(value)
    assert found.dtype is kind and torch.equal(found.view(torch.uint8), value.view(torch.uint8))


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(3),
        torch.empty(0, 3),
        torch.arange(12).view(3, 4).t(),
        torch.arange(12)[::3],
        torch.zeros(2).expand(1_000_000_000, 2),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.ones(2, requires_grad=True),
    ],
)
def test_tensors_of_every_layout(value):
    data = dump(value)
    assert len(data) < 1000
    found = load(data)
    assert found.shape == value.shape and found.dtype is value.dtype and found.requires_grad == value.requires_grad
    assert torch.equal(found[:9] if found.ndim else found, value[:9] if value.ndim else value)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(5),
        np.empty((0, 2)),
        np.array(["a", "bb"]),
        np.array([b"a"]),
        np.arange(3).astype("M8[ns]"),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8", (2,))]),
        np.arange(3, dtype=">i4"),
        np.array([1, "x", None, [2]], dtype=object),
    ],
)
def test_arrays(value):
    found = there_and_back(value)
    assert found.dtype == value.dtype and found.shape == value.shape and (found == value).all()


def test_collections():
    nested = TensorDict(
        {"a": torch.ones(3), "n": {"b": torch.zeros(3, 2)}, "word": ["x", "y", "z"]}, [3], names=["row"]
    )
    nested["one"] = NonTensorData({"k": (1, 2)}, batch_size=[3])
    found = there_and_back(nested)
    assert (found == nested).all() and found.names == ["row"] and found["word"] == ["x", "y", "z"]
    ragged = lazy_stack([TensorDict({"r": torch.ones(size)}, []) for size in (1, 2)])
    assert (there_and_back(ragged) == ragged).all()
    sample = Sample(image=torch.ones(2, 3), label=torch.zeros(2), batch_size=[2])
    assert (there_and_back(sample) == sample).all()
    assert there_and_back(TensorDict({"a": torch.ones(3)}, [3]).lock_()).is_locked
    assert type(there_and_back(lazy_stack([sample, sample]))[0]) is Sample


def test_one_object_in_two_places_stays_one():
    shared = [1]
    found = load(dump({"a": shared, "b": (shared, shared)}))
    assert found["a"] is found["b"][0] is found["b"][1]
    shared.append(shared)
    found = load(dump(shared))
    assert found[1] is found


def test_own_classes_keep_what_they_say():
    found = there_and_back(Own(open))
    assert (found.total, found.handle) == (3, None)


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(st.characters()),
    st.binary(),
    st.dates(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.builds(Point, st.integers(), st.text()),
)
keys = st.one_of(st.text(), st.integers(), st.tuples(st.integers(), st.text()))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner), st.dictionaries(keys, inner), st.tuples(inner, inner), st.sets(st.integers())
    ),
    max_leaves=20,
)


@given(value=values)
@settings(max_examples=150, deadline=None)
def test_any_value_comes_back(value):
    assert there_and_back(value) == value


# -- what is no data ---------------------------------------------------------------------------------------


class Reduced:
    def __reduce__(self):
        return print, ("run",)


class New:
    def __new__(cls, *arguments):
        raise AssertionError("run")


def local_class():
    class Local:
        pass

    return Local()


REFUSED = [
    print,
    lambda: 0,
    Point,
    object(),
    Reduced(),
    object.__new__(New),
    local_class(),
    torch.zeros(2, 2).to_sparse(),
    torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
    torch.empty(2, device="meta"),
    torch.nn.Linear(1, 1),
    np.ma.array([1]),
    collections.defaultdict(lambda: 0),
    io.BytesIO(),
    datetime.datetime.now(datetime.timezone(datetime.timedelta(hours=1))).astimezone(None).tzinfo,
    iter([1]),
    Exception("x"),
    torch.Generator(),
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_what_is_no_data_is_refused_with_what_to_do(value):
    with pytest.raises(SerializationError, match=r"cannot be kept as data.*Keep tensors.*leave out resume="):
        dump({"a": [value]}, HERE)


def test_classes_of_other_modules_are_refused_both_ways():
    with pytest.raises(SerializationError, match=r"test_plaindata\.Frozen cannot be kept"):
        dump(Frozen(1, []), ("elsewhere",))
    with pytest.raises(ValueError, match="define no such class"):
        load(dump(Frozen(1, []), HERE), ("elsewhere",))


@pytest.mark.parametrize("name", ["New", "Point.__new__", "pytest", "np.ndarray", "test_any_value_comes_back", "Own.x"])
def test_names_lead_nowhere_else(name):
    """A name is looked up class by class, within the module, and `__init__` and `__new__` do not run."""
    data = dump(Words([1]), HERE)
    forged = data.replace(
        b"s" + (5).to_bytes(8, "little") + b"Words", b"s" + len(name).to_bytes(8, "little") + name.encode()
    )
    assert forged != data
    with pytest.raises(ValueError, match="no such class|__new__ of its own"):
        load(forged, HERE)


@pytest.mark.parametrize("kind", [Own, Table, Sample])
@pytest.mark.parametrize("name", HOOKS)
def test_classes_whose_methods_data_would_call_are_refused_both_ways(name, kind, monkeypatch):
    """A forged file names such a class, and the attributes that its method finds."""
    value = Sample(torch.ones(2), torch.ones(2), batch_size=[2]) if kind is Sample else kind({})
    data = dump([value], HERE)
    monkeypatch.setattr(kind, name, runs, raising=False)
    with pytest.raises(ValueError, match=f"defines {name}"):
        load(data, HERE)
    if name in HOOKS[:2]:  # the others would run when the value is looked at, too
        monkeypatch.setattr(kind, name, lambda *arguments: None)
        with pytest.raises(SerializationError, match=f"defines {name}"):
            dump([value], HERE)


@pytest.mark.parametrize("name", ["__hash__", "__eq__"])
@pytest.mark.parametrize("within", [lambda key: {key}, lambda key: frozenset([key]), lambda key: {key: 1}])
def test_keys_whose_methods_data_would_call_are_refused_both_ways(name, within, monkeypatch):
    value = within(Own(open))
    data = dump(value, HERE)
    monkeypatch.setattr(Own, "__hash__", object.__hash__)
    monkeypatch.setattr(Own, name, runs)
    with pytest.raises(ValueError, match=f"defines {name}"):
        load(data, HERE)
    with pytest.raises(SerializationError, match=f"as a key, whose class defines {name}"):
        dump(value, HERE)


def test_values_too_deep_are_an_error_both_ways():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(SerializationError, match="so deep"):
        dump(deep)
    with pytest.raises(ValueError, match="too deep"):
        load((b"lv" + (1).to_bytes(8, "little")) * 100_000)


def test_a_value_that_holds_itself_where_it_cannot():
    inner: list = []
    loop = (inner,)
    inner.append(loop)
    with pytest.raises(SerializationError, match="holds itself"):
        dump(loop)


EXAMPLE = dump(
    {
        "a": [1, 2.0, "x", None, 2**70],
        "t": torch.arange(6.0).view(2, 3),
        "n": np.arange(3),
        "o": Frozen(1, [2]),
        "d": TensorDict({"x": torch.ones(2), "w": ["a", "b"]}, [2]),
        "w": datetime.date(2020, 1, 1),
    },
    HERE,
)


@given(at=st.integers(0, len(EXAMPLE) - 1), byte=st.integers(0, 255))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_bytes_that_have_changed_are_a_value_or_an_error(at, byte):
    forged = EXAMPLE[:at] + bytes([byte]) + EXAMPLE[at + 1 :]
    try:
        load(forged, HERE)
    except (ValueError, MemoryError):
        pass


def test_every_prefix_is_an_error():
    for stop in range(len(EXAMPLE)):
        with pytest.raises(ValueError, match="."):
            load(EXAMPLE[:stop], HERE)
    with pytest.raises(ValueError, match="more behind"):
        load(EXAMPLE + b"N", HERE)


def test_pickles_are_no_data():
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(ValueError, match="."):
            load(pickle.dumps(Reduced(), protocol), HERE)


# -- states of reducers ---------------------------------------------------------------------------------------

REDUCERS = {
    "count": Count(),
    "sum": Sum("x"),
    "mean": Mean("x"),
    "var": Var("x"),
    "std": Std("x"),
    "min": Min("x"),
    "max": Max("x"),
    "min and max": MinMax("x"),
    "histogram": Histogram("x", 4, (0.0, 1.0)),
    "quantile": Quantile("x", 0.5),
    "values": ValueCounts("k"),
    "unique": Unique("k"),
    "top": TopK("x", 3),
    "checksum": Checksum("k"),
    "covariance": CovarianceMatrix("m"),
    "several": {"n": Count(), "mean": Mean("x"), "var": Var("x")},
}


@pytest.mark.parametrize("name", REDUCERS)
def test_a_reduction_goes_on_from_its_states_with_the_same_bits(tmp_path, name):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(50, generator=generator)
    data = TensorDict({"x": x, "k": (x * 5).long(), "m": torch.rand(50, 3, generator=generator)}, [50])

    class Stop(tdmap.Callback):
        leases = 0

        def on_lease_done(self, event):
            self.leases += 1
            if self.leases == 3:
                raise InterruptedError

    options = {"chunksize": 7, "num_workers": 0}
    wanted = tdmap.reduce(data, REDUCERS[name], **options)
    with pytest.raises(InterruptedError):
        tdmap.reduce(data, REDUCERS[name], resume=tmp_path, callbacks=[Stop()], **options)
    assert (tmp_path / ".tdmap" / "states").stat().st_size > 20
    found = tdmap.reduce(data, REDUCERS[name], resume=tmp_path, **options)
    again = tdmap.reduce(data, REDUCERS[name], resume=tmp_path / "other", **options)
    for other in (found, again):
        assert dump(other) == dump(wanted)


class Handle(Reducer):
    """A state that is no data."""

    def init(self):
        return open

    def update(self, state, chunk, start=0):
        return state

    def merge(self, a, b):
        return a


def test_a_state_that_is_no_data_is_an_error_with_what_to_do(tmp_path):
    with pytest.raises(SerializationError, match=r"cannot be kept as data.*test_plaindata"):
        tdmap.reduce(torch.arange(9), Handle(), chunksize=3, num_workers=0, resume=tmp_path)
    assert tdmap.reduce(torch.arange(9), Handle(), chunksize=3, num_workers=0) is open


@pytest.mark.parametrize("kept", [True, False])
def test_pieces_are_kept_or_their_chunks_are_done_again(tmp_path, kept, monkeypatch):
    data, log = TensorDict({"x": torch.arange(12)}, [12]), str(tmp_path / "log")

    class Stop(tdmap.Callback):
        def on_lease_done(self, event):
            raise InterruptedError

    def fn(chunk):
        with open(log, "a") as file:
            file.write(".")
        rows = chunk.clone()
        rows["word"] = [f"row {number}" for number in chunk["x"].tolist()]
        return rows

    def run(**options):
        return tdmap.flat_map(data, fn, tmp_path / "out", chunksize=3, num_workers=0, resume=True, **options)

    def refuse(value, modules):
        raise SerializationError("a file cannot be kept as data")

    with monkeypatch.context() as patch:
        if not kept:
            patch.setattr("tdmap.resume.rowlog.dump", refuse)
        with contextlib.nullcontext() if kept else pytest.warns(RuntimeWarning, match="done again.*a file"):
            with pytest.raises(InterruptedError):
                run(callbacks=[Stop()])
    done = len(open(log).read())
    assert run()["word"] == [f"row {number}" for number in range(12)]
    assert 0 < done < 4 and len(open(log).read()) == (4 if kept else 4 + done)


def test_modules_of_what_an_operation_puts_around_a_function():
    import functools
    import json

    from tdmap.operations.reduce import FoldChunk
    from tdmap.reducers.base import Associative, Several

    assert modules_of(FoldChunk(Several({"a": Handle()}), functools.partial(json.dumps, indent=1))) == {
        __name__,
        "json",
    }
    assert modules_of(Associative(local_class)) == {__name__}
    assert modules_of(Mean("x"), None, 3, "x") == frozenset()
