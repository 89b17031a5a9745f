"""Bad input is a clear error, and what was written stays."""

import pickle
import socket
import threading

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict


class Unusual(Exception):
    """An exception whose constructor does not take what it stores."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")
        self.pair = (a, b)


def test_an_exception_keeps_type_and_names_rows_and_worker(run, data):
    def fail(td):
        if td["x"][0, 0] == 60:
            raise ZeroDivisionError("no such pixel")
        return td

    with pytest.raises(ZeroDivisionError, match="no such pixel") as caught:
        run(data, fail, chunksize=5)
    note = "\n".join(caught.value.__notes__)
    assert "fail" in note and "rows 20:25" in note
    assert any(word in note for word in ("process", "thread"))


def test_the_workers_traceback_is_the_cause(data):
    def fail(td):
        return td["no such key"]

    with pytest.raises(KeyError) as caught:
        tdmap.map(data, fail, num_workers=2, chunksize=5)
    assert isinstance(caught.value.__cause__, tdmap.errors.RemoteTraceback)
    assert "in fail" in str(caught.value.__cause__)
    assert "chunkloop" not in str(caught.value.__cause__)


def test_an_exception_that_cannot_travel_is_described(data):
    def fail(td):
        raise Unusual(1, threading.Lock())

    with pytest.raises(tdmap.errors.RemoteError, match=r"Unusual") as caught:
        tdmap.map(data, fail, num_workers=2, chunksize=5)
    assert caught.value.type_name.endswith("Unusual")


def test_rows_written_before_an_exception_stay(run, data):
    out = TensorDict({"x": torch.zeros(40, 3)}, [40])

    def fail_at_the_end(td):
        if td["x"][-1, -1] == 119:
            raise ValueError("the last rows")
        return td

    with pytest.raises(ValueError, match="the last rows"):
        run(data, fail_at_the_end, out=out, chunksize=5, num_workers=1)
    written = (out["x"] == data["x"]).all(1)
    assert written[:35].all()
    assert not written[35:].any()


def test_a_function_that_cannot_be_serialised_names_the_object(data):
    connection = socket.socket()
    try:
        with pytest.raises(tdmap.errors.SerializationError, match=r"variable 'connection', a socket") as caught:
            tdmap.map(data, lambda td: connection and td, num_workers=2)
        assert isinstance(caught.value, TypeError)
    finally:
        connection.close()


class LibraryError(Exception):
    pass


class Handle:
    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        raise self.error("this handle cannot be pickled")


@pytest.mark.parametrize(
    "error", [TypeError, pickle.PickleError, AssertionError, BufferError, EOFError, StopIteration, LibraryError]
)
def test_whatever_pickling_raises_names_the_object(data, error):
    handle = Handle(error)
    for fn in (lambda td, handle=handle: td, lambda td: handle and td):
        with pytest.raises(tdmap.errors.SerializationError, match="'handle', a Handle, .*cannot be pickled"):
            tdmap.map(data, fn, num_workers=2)
    with pytest.raises(tdmap.errors.SerializationError, match="the data cannot be sent"):
        tdmap.map(data.clone().set("y", [handle] * len(data)), lambda td: td, num_workers=2)
    with pytest.raises(tdmap.errors.SerializationError, match="returned a Handle"):
        list(tdmap.map_iter(data, lambda td: Handle(error), num_workers=2))


def test_functions_of_torch_that_cannot_be_serialised_are_named(data):
    scripted = torch.jit.script(doubled)
    with pytest.raises(tdmap.errors.SerializationError, match="default of 'fn', a .*ScriptFunction"):
        tdmap.map(data, lambda td, fn=scripted: fn(td["x"]), num_workers=2)
    compiled = torch.compile(lambda td: td["x"], backend="eager")
    for fn in (compiled, lambda td: compiled(td)):
        with pytest.raises(
            tdmap.errors.SerializationError, match="compiled by torch.compile. Compile it in the worker"
        ):
            tdmap.map(data, fn, num_workers=2)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_an_attribute_that_cannot_be_serialised_is_named(data):
    class Transform:
        def __init__(self):
            self.settings = {"log": socket.socket()}

        def __call__(self, td):
            return td

    transform = Transform()
    with pytest.raises(tdmap.errors.SerializationError, match=r"\.settings\['log'\]"):
        tdmap.map(data, transform, num_workers=2)
    transform.settings["log"].close()


def test_a_result_that_cannot_travel_is_an_error(data):
    def make_socket(td):
        return socket.socket()

    with pytest.raises(tdmap.errors.SerializationError, match="returned a socket"):
        list(tdmap.map_iter(data, make_socket, num_workers=2, chunksize=10))


def changed(td):
    td["x"].add_(1)


def returned(td):
    return TensorDict({"x": td["x"] + 1}, td.batch_size)


WORKERS = [{"num_workers": 0}, {"num_workers": 2, "executor": "thread"}, {"num_workers": 2}]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("fn", [changed, returned])
@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("out", ["the data", "a part of the data", "other rows"])
def test_no_result_goes_into_files_that_may_only_be_read(out, resume, fn, workers, tmp_path):
    TensorDict({"x": torch.arange(10.0)}, [10]).memmap(tmp_path)
    data = TensorDict.load_memmap(tmp_path, mode="r")
    source = TensorDict({"x": torch.zeros(10)}, [10]) if out == "other rows" else data
    if out == "a part of the data":
        source = data = data[2:8]
    with pytest.raises(PermissionError, match="is read-only"):
        tdmap.map(source, fn, out=data, resume=resume, chunksize=2, **workers)
    for rows in (data, TensorDict.load_memmap(tmp_path)[: len(data)]):
        assert rows["x"].max() - rows["x"].min() == len(data) - 1, rows["x"]
    assert not (tmp_path / ".tdmap").exists()


@pytest.mark.parametrize("workers", WORKERS)
def test_a_function_that_changes_rows_of_files_that_may_only_be_read(workers, tmp_path):
    TensorDict({"x": torch.arange(10.0)}, [10]).memmap(tmp_path)
    data = TensorDict.load_memmap(tmp_path, mode="r")
    with pytest.raises(PermissionError, match="in place"):
        tdmap.map(data, changed, chunksize=2, **workers)
    assert TensorDict.load_memmap(tmp_path)["x"].tolist() == list(range(10))
