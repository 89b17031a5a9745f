"""Values in a log: what is written can be read, and untrusted bytes run nothing."""

import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import fractions
import io
import os
import pathlib
import re
import uuid
import zipfile
from typing import NamedTuple

import numpy as np
import pytest
import torch

import tdmap
from tdmap import reducers as r
from tdmap.errors import SerializationError
from tdmap.run.values import modules_of, pack, unpack
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


class Frame(dict):
    pass


class Color(enum.Enum):
    RED = 1


@tensorclass
class Sample:
    image: torch.Tensor
    label: torch.Tensor


PACKED = {getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in range(1, 8)}


def there_and_back(value, modules=HERE):
    found = unpack(pack(value, modules, check=True), modules)
    assert type(found) is type(value)
    return found


SLOTS = Slots()
SLOTS.a, SLOTS.b = 1, "b"

VALUES = [
    2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**500, -1.5, 1 + 2j, "half a character \ud800", b"\0\xff",
    bytearray(b"x"), [], [1, 2, 2**70], [1.0, -0.0, float("inf")], ["a", ""], [True, 1, 1.0, None, "x"], (),
    ((1,), [2]), {1: "a", "b": [1, {2: (3,)}], (4, 5): None}, {1, 2}, frozenset("ab"), torch.Size([2, 3]),
    range(1, 9, 2), slice(None, 3), datetime.datetime(2020, 1, 2, 3, 4, 5, 6, datetime.UTC),
    datetime.date(2020, 1, 2), datetime.timedelta(1, 2, 3), decimal.Decimal("1.50"), fractions.Fraction(1, 3),
    uuid.UUID(int=7), pathlib.Path("a/b"), collections.Counter("aab"), collections.OrderedDict([("b", 1), ("a", 2)]),
    collections.defaultdict(int, {"a": 1}), collections.deque([1, 2], 5), torch.float32, torch.device("cpu"),
    np.float32(3), np.datetime64("2020-01-01"), Point(1, "a"), Frozen(1, [2]), SLOTS, Color.RED,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_come_back(value):
    assert there_and_back(value) == value
    assert there_and_back([value, value]) == [value, value]


@pytest.mark.parametrize("dtype", sorted(name for name in DTYPES if not name.startswith(("torch.q", "torch.bits"))))
def test_tensors_of_every_dtype(dtype):
    if DTYPES[dtype] in PACKED:
        pytest.skip("torch.save has no storage for it")
    tensor = torch.zeros(64, dtype=torch.uint8).view(DTYPES[dtype]).reshape(2, -1)
    found = there_and_back(tensor)
    assert found.dtype is tensor.dtype and found.shape == tensor.shape


@pytest.mark.parametrize("rows", [slice(2), slice(None, None, 3), slice(0, 0)])
def test_rows_of_a_tensor_are_kept_without_the_others(rows, tmp_path):
    for whole in (torch.arange(1 << 20), TensorDict({"x": torch.arange(1 << 20)}, [1 << 20]).memmap(tmp_path)["x"]):
        packed = pack(whole[rows][:9])
        assert len(packed) < 4096 and torch.equal(unpack(packed), whole[rows][:9])


def test_collections():
    for value in (
        TensorDict({"x": torch.ones(2), "in": {"y": torch.zeros(2, 3)}}, [2]),
        TensorDict({"word": ["a", "b"], "one": NonTensorData(3, batch_size=[2])}, [2]),
        lazy_stack([TensorDict({"x": torch.zeros(n)}, []) for n in (1, 2)]),
        Sample(image=torch.ones(2, 3), label=torch.zeros(2), batch_size=[2]),
    ):
        found = there_and_back(value)
        assert found.batch_size == value.batch_size and str(found) == str(value)


class Runs:
    """A program in place of data."""

    def __init__(self, what):
        self.what = what

    def __reduce__(self):
        return self.what


@pytest.mark.parametrize("what", [(runs, ()), (os.system, ("true",)), (eval, ("1",)), (getattr, (Own, "__init__"))])
def test_programs_are_refused(what):
    with pytest.raises(SerializationError, match="add_safe_globals"):
        pack(Runs(what), HERE, check=True)
    with pytest.raises(ValueError, match="is not accepted"):
        unpack(pack(Runs(what)), HERE)


@pytest.mark.parametrize(
    "what",
    [
        (range, (10**9,)),
        (bytes, (10**9,)),
        (decimal.Decimal, ("1e30000000",)),
        (fractions.Fraction, ("1e30000000",)),
        (np.ndarray, ((10**10,), "u1")),
    ],
    ids=["range", "bytes", "decimal", "fraction", "array"],
)
def test_nothing_larger_than_its_data_is_made(what):
    try:
        found = unpack(pack(Runs(what)), HERE)
    except ValueError:
        return
    assert found.nbytes == 0  # an array without its elements


def test_compressed_data_is_refused():
    plain, packed = pack("x" * 10**6), io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(plain)) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(ValueError, match="compressed"):
        unpack(packed.getvalue())


@pytest.mark.parametrize("kind", [Own, Frame, Sample])
@pytest.mark.parametrize("name", HOOKS)
def test_classes_whose_methods_data_would_call_are_refused(name, kind, monkeypatch):
    value = Own(open) if kind is Own else Frame(a=1) if kind is Frame else Sample(torch.ones(1), torch.ones(1))
    packed = pack(value)
    monkeypatch.setattr(kind, name, runs, raising=False)
    try:
        with pytest.raises(ValueError, match=f"{kind.__name__} is not accepted"):
            unpack(packed, HERE)
    finally:
        monkeypatch.undo()


@pytest.mark.parametrize("value", [Words([1, 2]), Frame(a=1)])
def test_subclasses_of_containers_come_back_or_are_refused(value):
    try:
        packed = pack(value, HERE, check=True)
    except SerializationError as error:  # torch 2.13 fills no lists but `list`
        assert re.search(rf"but got .*{type(value).__name__}.*Use tensors", str(error))
    else:
        found = unpack(packed, HERE)
        assert type(found) is type(value) and found == value


def test_classes_of_other_modules_are_refused():
    with pytest.raises(ValueError, match=r"test_log_values\.Frozen is not accepted"):
        unpack(pack(Frozen(1, [])))
    with torch.serialization.safe_globals([Frozen]):
        for _ in range(2):  # reading leaves what is declared as it is
            assert unpack(pack(Frozen(1, []))) == Frozen(1, [])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
def test_bytes_that_were_cut_or_changed_are_a_value_or_an_error(share):
    packed = pack({"a": [1, 2.0, "x"], "b": torch.arange(9)})
    at = int(len(packed) * share)
    for changed in (packed[:at], packed[:at] + bytes([packed[at] ^ 255]) + packed[at + 1 :], b"", bytes(99)):
        with contextlib.suppress(ValueError):
            unpack(changed)


# -- states of reducers ---------------------------------------------------------------------------------------

REDUCERS = {
    "count": r.Count(),
    "sum": r.Sum("x"),
    "mean": r.Mean("x"),
    "var": r.Var("x"),
    "std": r.Std("x"),
    "min": r.Min("x"),
    "max": r.Max("x"),
    "min and max": r.MinMax("x"),
    "histogram": r.Histogram("x", 4, (0.0, 1.0)),
    "quantile": r.Quantile("x", 0.5),
    "values": r.ValueCounts("k"),
    "unique": r.Unique("k"),
    "top": r.TopK("x", 3),
    "checksum": r.Checksum("k"),
    "covariance": r.CovarianceMatrix("m"),
    "several": {"n": r.Count(), "mean": r.Mean("x"), "var": r.Var("x")},
}


@pytest.mark.parametrize("name", REDUCERS)
def test_a_reduction_goes_on_from_its_states_with_the_same_bits(tmp_path, name):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(50, generator=generator)
    data = TensorDict({"x": x, "k": (x * 5).long(), "m": torch.rand(50, 3, generator=generator)}, [50])

    class Stop(tdmap.events.Callback):
        leases = 0

        def on_lease_done(self, event):
            self.leases += 1
            if self.leases == 3:
                raise InterruptedError

    options = {"chunksize": 7, "num_workers": 0}
    wanted = tdmap.reduce(data, REDUCERS[name], **options)
    with pytest.raises(InterruptedError):
        tdmap.reduce(data, REDUCERS[name], resume=tmp_path, callbacks=[Stop()], **options)
    assert (tmp_path / ".tdmap" / "states-0").stat().st_size > 20
    found = tdmap.reduce(data, REDUCERS[name], resume=tmp_path, **options)
    again = tdmap.reduce(data, REDUCERS[name], resume=tmp_path / "other", **options)
    for other in (found, again):
        assert pack(other) == pack(wanted)


class Handle(r.Reducer):
    """A state that is no data."""

    def init(self):
        return open

    def update(self, state, chunk, start=0):
        return state

    def merge(self, a, b):
        return a


def test_a_state_that_is_no_data_is_an_error_with_what_to_do(tmp_path):
    with pytest.raises(SerializationError, match=r"cannot be kept as data.*io.open is not accepted"):
        tdmap.reduce(torch.arange(9), Handle(), chunksize=3, num_workers=0, resume=tmp_path)
    assert tdmap.reduce(torch.arange(9), Handle(), chunksize=3, num_workers=0) is open


@pytest.mark.parametrize("kept", [True, False])
def test_pieces_are_kept_or_their_chunks_are_done_again(tmp_path, kept, monkeypatch):
    data, log = TensorDict({"x": torch.arange(12)}, [12]), str(tmp_path / "log")

    class Stop(tdmap.events.Callback):
        def on_lease_done(self, event):
            raise InterruptedError

    def fn(chunk):
        with open(log, "a") as file:
            file.write(".")
        rows = chunk.clone()
        rows["word"] = [f"row {number}" for number in chunk["x"].tolist()]
        return rows

    def run(**options):
        return tdmap.flat_map(data, fn, out=tmp_path / "out", chunksize=3, num_workers=0, resume=True, **options)

    def refuse(*arguments):
        raise SerializationError("a file cannot be kept as data")

    with monkeypatch.context() as patch:
        if not kept:
            patch.setattr("tdmap.run.log.pack", refuse)
        with contextlib.nullcontext() if kept else pytest.warns(RuntimeWarning, match="run again.*a file"):
            with pytest.raises(InterruptedError):
                run(callbacks=[Stop()])
    done = len(open(log).read())
    assert run()["word"] == [f"row {number}" for number in range(12)]
    assert 0 < done < 4 and len(open(log).read()) == (4 if kept else 4 + done)


def test_modules_of_what_an_operation_puts_around_a_function():
    import functools
    import json

    from tdmap.ops.reduce import FoldChunk
    from tdmap.reducers.base import Associative, Several

    assert modules_of(FoldChunk(Several({"a": Handle()}), functools.partial(json.dumps, indent=1))) == {
        __name__,
        "json",
    }
    assert modules_of(Associative(runs)) == {__name__}
    assert modules_of(r.Mean("x"), None, 3, "x") == frozenset()
