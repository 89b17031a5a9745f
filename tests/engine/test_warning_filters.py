"""Filters of warnings belong to the whole process: operations of several threads leave them alone."""

import threading
import warnings

import pytest
import torch

import tdmap
from tdmap.errors import AlreadyComplete
from tensordict_lite import TensorDict
from tensordict_lite.memmap import nested

X = TensorDict({"x": torch.arange(6)}, [6])


def cached(fn, folder):
    X.pipeline().map(fn).cache(folder).collect(num_workers=0)  # without a seed: no wait for random streams


def test_operations_that_overlap_leave_the_filters_alone(tmp_path):
    inside, leave = [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]
    errors = []

    def begin(number):
        def fn(td):
            inside[number].set()
            assert leave[number].wait(300)
            return td + number

        def work():
            try:
                cached(fn, tmp_path / str(number))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert inside[number].wait(300)
        return thread

    with warnings.catch_warnings():
        before = list(warnings.filters)
        threads = [begin(0), begin(1)]
        seen = list(warnings.filters)
        for number in range(2):  # who began first ends first: it would put back filters that the other one has copied
            leave[number].set()
            threads[number].join()
        assert not errors
        assert seen == before == warnings.filters


def test_a_complete_run_in_another_thread_is_still_told_of(tmp_path):
    tdmap.map(X, torch.neg, out=tmp_path / "out", resume=True, num_workers=0)

    def fn(td):
        thread = threading.Thread(target=again)
        thread.start()
        thread.join()
        return td

    def again():
        tdmap.map(X, torch.neg, out=tmp_path / "out", resume=True, num_workers=0)

    with pytest.warns(AlreadyComplete):
        cached(fn, tmp_path / "cache")


def test_nested_tensors_of_a_folder_are_made_without_a_change_of_filters(tmp_path, monkeypatch):
    made = torch.nested.nested_tensor([torch.ones(3), torch.ones(2)])
    TensorDict({"x": made}, [2]).memmap(tmp_path)
    TensorDict.load_memmap(tmp_path)["x"]  # the first one in this process hides what torch says once
    with warnings.catch_warnings():
        filters, seen, view = warnings.filters, [], torch._nested_view_from_buffer

        def look(*args):
            seen.append(warnings.filters is filters)
            return view(*args)

        monkeypatch.setattr(nested.torch, "_nested_view_from_buffer", look)
        assert TensorDict.load_memmap(tmp_path)["x"].is_nested
    assert seen and all(seen)
