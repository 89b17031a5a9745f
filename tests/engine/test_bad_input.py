"""Bad input is a clear error, and what was written stays."""

from __future__ import annotations

import socket
import threading

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict, lazy_stack

EXECUTORS = ["serial", "thread", "process"]


@pytest.fixture(params=EXECUTORS)
def run(request):
    def call(data, fn, *args, **options):
        return tdmap.map(data, fn, *args, executor=request.param, **{"num_workers": 2, **options})

    return call


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


def test_wrong_shape_names_key_wanted_and_got(run, data):
    out = TensorDict({"meta": {"y": torch.zeros(40, 4)}}, [40])
    with pytest.raises(tdmap.errors.OutputMismatch, match=r"\('meta', 'y'\).*\(5, 4\).*\(5, 3\)"):
        run(data, lambda td: TensorDict({"meta": {"y": td["x"]}}, td.batch_size), out=out, chunksize=5)


def test_a_broadcastable_shape_is_refused_too(run, data):
    out = TensorDict({"y": torch.zeros(40, 3)}, [40])
    with pytest.raises(tdmap.errors.OutputMismatch, match="'y'"):
        run(data, lambda td: TensorDict({"y": td["x"][:, :1]}, td.batch_size), out=out, chunksize=5)


def test_wrong_dtype_names_key_wanted_and_got(run, data):
    out = TensorDict({"y": torch.zeros(40, 3, dtype=torch.int32)}, [40])
    with pytest.raises(tdmap.errors.OutputMismatch, match=r"'y'.*int32.*float32"):
        run(data, lambda td: TensorDict({"y": td["x"]}, td.batch_size), out=out, chunksize=5)


def test_tensor_for_collection_is_refused(run, data):
    out = TensorDict({"y": torch.zeros(40, 3)}, [40])
    with pytest.raises(tdmap.errors.OutputMismatch, match="TensorDict.*Tensor"):
        run(data, lambda td: td["x"], out=out, chunksize=5)


def test_out_of_another_length_is_refused_before_any_work(run, data):
    out = TensorDict({"x": torch.zeros(30, 3)}, [30])
    with pytest.raises(tdmap.errors.OutputMismatch, match=r"40 rows.*\(30,\)"):
        run(data, lambda td: td, out=out, chunksize=5)


def test_values_that_cannot_be_joined(run, data):
    with pytest.raises(TypeError, match="returned a int"):
        run(data, lambda td: 3, chunksize=5)


@pytest.mark.parametrize("dim", [1, -2, 7])
def test_dim_out_of_range(run, data, dim):
    with pytest.raises(IndexError, match=rf"dim={dim}.*\(40,\)"):
        run(data, lambda td: td, dim)


def test_data_without_dimensions(run):
    with pytest.raises(IndexError, match="no dimension"):
        run(TensorDict({"x": torch.zeros(3)}, []), lambda td: td)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunksize": 2, "num_chunks": 2}, "not both"),
        ({"num_workers": -1}, "num_workers"),
        ({"num_workers": 1.5}, "num_workers"),
        ({"worker_threads": 0}, "worker_threads"),
        ({"max_tasks_per_child": 0}, "max_tasks_per_child"),
        ({"mp_start_method": "teleport"}, "teleport"),
        ({"executor": "gpu"}, "gpu"),
        ({"seed": 1, "generator": torch.Generator()}, "not both"),
        ({"retries": -1}, "retries"),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_options_out_of_range_are_value_errors(data, options, message):
    with pytest.raises(ValueError, match=message):
        tdmap.map(data, lambda td: td, **options)
    if "chunksize" in options:
        with pytest.raises(ValueError, match=message):
            tdmap.map_iter(data, lambda td: td, **options)


def test_wrong_types_are_type_errors(data):
    with pytest.raises(TypeError, match="a list"):
        tdmap.map([1, 2], lambda td: td)
    with pytest.raises(TypeError, match="function"):
        tdmap.map(data, "normalise")
    with pytest.raises(TypeError, match="pool"):
        tdmap.map(data, lambda td: td, pool="eight")
    with pytest.raises(TypeError, match="out"):
        tdmap.map(data, lambda td: td, out=[1])


def test_in_place_on_files_that_may_only_be_read(tmp_path):
    TensorDict({"x": torch.arange(10.0)}, [10]).memmap_(tmp_path)
    for file in tmp_path.rglob("*.memmap"):
        file.chmod(0o444)
    loaded = TensorDict.load_memmap(tmp_path)
    if not _is_read_only(loaded["x"]):
        pytest.skip("this user may write read-only files")
    with pytest.raises(PermissionError, match="in place"):
        tdmap.map(loaded, lambda td: td["x"].add_(1), num_workers=2, chunksize=2)


def _is_read_only(tensor) -> bool:
    from tensordict_lite.memmap.disk.mapping import region_of

    region = region_of(tensor)
    return region is not None and not region.writable


def test_a_result_without_any_entry_of_out_is_refused(run, data):
    out = TensorDict({"y": torch.zeros(40, 3), "n": torch.zeros(40)}, [40])
    with pytest.raises(tdmap.errors.OutputMismatch, match=r"\['Y'\].*none of them is in out.*\['n', 'y'\]"):
        run(data, lambda td: TensorDict({"Y": td["x"] * 1.0}, td.batch_size), out=out)
    nested = TensorDict({"meta": {"y": torch.zeros(40, 3)}}, [40])
    with pytest.raises(tdmap.errors.OutputMismatch, match="none of them is in out"):
        run(data, lambda td: TensorDict({"Y": td["x"] * 1.0}, td.batch_size), out=nested)
    with pytest.raises(tdmap.errors.OutputMismatch, match="the new entry 'Y', and out=data changes a dataset in place"):
        run(data, lambda td: TensorDict({"Y": td["x"] * 1.0}, td.batch_size), out=data)


def test_results_that_a_folder_cannot_hold_name_the_entry_and_why(data, tmp_path):
    words = lambda td: TensorDict({"meta": {"word": [{i} for i in range(td.shape[0])]}}, td.batch_size)  # noqa: E731
    with pytest.raises(
        tdmap.errors.OutputMismatch, match=r"\('meta', 'word'\) holds a set, and a folder holds strings"
    ):
        tdmap.map(data, words, num_workers=1, out=tmp_path / "words")
    with pytest.raises(
        tdmap.errors.OutputMismatch, match=r"as many rows as its chunk \(5\), and the result has the shape \(1,\)"
    ):
        tdmap.map(data, lambda td: td[:1], num_workers=1, chunksize=5, out=tmp_path / "fewer")
    ragged = lambda td: lazy_stack([TensorDict({"x": torch.zeros(n)}, []) for n in range(td.shape[0])])  # noqa: E731
    with pytest.raises(tdmap.errors.OutputMismatch, match="LazyStackedTensorDict, whose rows may differ in shape"):
        tdmap.map(data, ragged, num_workers=1, out=tmp_path / "ragged")


def test_nested_tensors_cannot_be_cut_into_rows():
    ragged = torch.nested.nested_tensor([torch.arange(2), torch.arange(3)], layout=torch.jagged)
    with pytest.raises(TypeError, match="the entry 'tokens' is a nested tensor.*lazy stack"):
        tdmap.map(TensorDict({"tokens": ragged}, [2]), lambda td: td, num_workers=1)
    with pytest.raises(TypeError, match="the data is a nested tensor"):
        tdmap.map(ragged, lambda td: td, num_workers=1)


@pytest.mark.parametrize("first", [True, False], ids=["written", "joined"])
def test_results_that_do_not_go_together_name_their_rows(first):
    data = TensorDict({"x": torch.arange(1000)}, [1000])

    def fn(chunk):
        rows = len(chunk) if first else 3
        return TensorDict({"y": torch.zeros(rows, 4 if chunk["x"][0] < 500 else 5)}, [rows])

    with pytest.raises(tdmap.errors.OutputMismatch, match=r"rows 500:600: .*'y' is float32 \(1, 5\) where .* \(1, 4\)"):
        tdmap.map(data, fn, num_workers=2, chunksize=100)
