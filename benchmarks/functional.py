"""Functional parameters, modules and messages between ranks: this project, `tensordict` and plain torch in turn.

    python -m benchmarks.functional                     # every case, some minutes
    python -m benchmarks.functional --filter to_module --quick

Each case runs once a round, in changing order, and a ratio is the median of the ratios within the rounds. Times of
parameters and modules are those of this thread (torch has one here); messages go between two processes on this
machine, and their times are those of the clock. The ratios are "time over time": at most so much is wanted.

"new tensors" are entries that are no parameters, what a meta-learner or an optimiser of its own puts into a model: each
becomes a parameter for the block, as ``model.parameters()`` has it. ``functional_call`` leaves them as they are.

A compiled call has a fixed price besides, about 20 microseconds, for the checks that its tensordict is as before.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing, nn

from benchmarks._harness import RESULTS, Benchmark, per_call

OURS, REFERENCE = "tensordict_lite", "tensordict"
Call = Callable[[], Any]

LEAVES = 1000
COLLECTIVES = ("broadcast", "all_gather", "all_reduce", "send and recv", "init_remote")


def main() -> int:
    """Run the benchmark from the command line; the exit status says whether every promise was kept."""
    parser = argparse.ArgumentParser(description="Functional parameters, modules and messages beside the reference.")
    parser.add_argument("--filter", default=None, help="regular expression on the names of cases")
    parser.add_argument("--quick", action="store_true", help="fewer, shorter rounds")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    bench = Benchmark("functional", unit="calls", title="Functional parameters, modules, ranks")
    with Ranks() as ranks:
        add_all(bench, ranks, budget=0.005 if options.quick else 0.02)
        bench.run(options.rounds or (7 if options.quick else 25), only=options.filter, quiet=True)
    bench.report(options.results)
    return 0 if all(result.met is not False for result in bench.results.values()) else 1


def add_all(bench: Benchmark, ranks: Ranks | None, budget: float) -> None:
    """Adds every case; those of ranks only where there are ranks."""
    for name, calls, wanted in (*parameter_calls(), *module_calls(), *compiled_calls()):
        _add(
            bench,
            name,
            {label: per_call(call, budget=budget, clock=time.thread_time) for label, call in calls.items()},
            wanted,
        )
    if ranks is not None:
        for operation in COLLECTIVES:
            runs = {label: ranks.timed(label, operation) for label in (OURS, REFERENCE)}
            wanted = 0.3 if operation in ("broadcast", "all_gather") else 1.0
            _add(bench, f"{operation} of {LEAVES} leaves", runs, {REFERENCE: wanted})


def _add(bench: Benchmark, name: str, runs: dict[str, Callable[[], float]], wanted: dict[str, float | None]) -> None:
    """A case for each library, and one of ours for each that it is compared with."""
    for label, run in runs.items():
        if label != OURS:
            kind = "reference" if label == REFERENCE else "floor"
            bench.add(f"{name}: {label}", run, units=1, kind=kind)
    for label, share in wanted.items():
        bench.add(
            f"{name} / {label}", runs[OURS], units=1, against=f"{name}: {label}", wanted=share, measure="time"
        )  # fmt: skip


# -- parameters ----------------------------------------------------------------------------------------------------

Cases = Iterator[tuple[str, dict[str, Call], dict[str, "float | None"]]]


def deep_model(layers: int = 100, width: int = 8) -> nn.Module:
    """Many small layers, whose forward costs little."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def parameter_calls() -> Cases:
    """Parameters into a model, its forward, and the old ones back."""
    model, x = deep_model(), torch.randn(4, 8)
    marks: dict[str, float | None] = {REFERENCE: 0.7, "functional_call": 1.2}
    for kind in ("", ", new tensors"):
        given = dict(model.named_parameters())
        if kind:
            given = {name: value.detach().clone() for name, value in given.items()}
        calls: dict[str, Call] = {}
        for label in (OURS, REFERENCE):
            params = importlib.import_module(label).TensorDict.from_module(model)
            params = params.data.clone().lock_() if kind else params
            calls[label] = lambda params=params: _with(params, model, x)
        calls["functional_call"] = lambda given=given: torch.func.functional_call(model, given, (x,))
        yield f"to_module, 100 layers{kind}", calls, marks
    transformer, source = nn.Transformer(16, 2, 2, 2, 32, batch_first=True).eval(), torch.randn(2, 4, 16)
    calls = {}
    for label in (OURS, REFERENCE):
        params = importlib.import_module(label).TensorDict.from_module(transformer)
        calls[label] = lambda params=params: _with(params, transformer, source, source)
    yield "to_module, a transformer", calls, {REFERENCE: 1.0}
    for count in (2, 10):
        yield (
            f"to_module under vmap, {count} models",
            _ensemble_calls(count),
            {REFERENCE: 1.05, "functional_call": None},
        )
    calls = {
        label: partial(importlib.import_module(label).TensorDict.from_module, model) for label in (OURS, REFERENCE)
    }
    yield "from_module, 100 layers", calls, {REFERENCE: 0.7}


def _ensemble_calls(count: int) -> dict[str, Call]:
    """Several models of one shape on one input, mapped over their parameters."""
    model, x = deep_model(layers=4, width=64), torch.randn(8, 64)
    calls: dict[str, Call] = {}
    for label in (OURS, REFERENCE):
        params = importlib.import_module(label).TensorDict.from_module(model).data.expand(count).clone()
        mapped = torch.vmap(lambda params, x: _with(params, model, x), (0, None))
        calls[label] = partial(mapped, params, x)
    given = {name: value.detach().expand(count, *value.shape).clone() for name, value in model.named_parameters()}
    plain = torch.vmap(lambda given, x: torch.func.functional_call(model, given, (x,)), (0, None))
    calls["functional_call"] = partial(plain, given, x)
    return calls


def _with(params: Any, model: nn.Module, *args: Any) -> Any:
    with params.to_module(model):
        return model(*args)


# -- modules -------------------------------------------------------------------------------------------------------


def module_calls() -> Cases:
    """What it costs to read, call and write; a Linear layer shows how much that is beside some work."""
    makes = {
        "TensorDictModule": _module, "nested keys": _nested, "two inputs, two outputs": _several,
        "of a Linear": _linear, "Sequential of 10": _sequence, "selected outputs": _selected,
        "dispatch": _dispatched, "a method with @dispatch": _decorated,
    }  # fmt: skip
    for name, make in makes.items():
        yield name, {label: make(importlib.import_module(label)) for label in (OURS, REFERENCE)}, {REFERENCE: 0.7}


def _input(lib: Any) -> Any:
    return lib.TensorDict({"x": torch.randn(4, 8), "n": {"y": torch.randn(4, 8)}}, [4])


def _module(lib: Any) -> Call:
    module, td = lib.nn.TensorDictModule(torch.neg, ["x"], ["o"]), _input(lib)
    return lambda: module(td)


def _nested(lib: Any) -> Call:
    module, td = lib.nn.TensorDictModule(torch.neg, [("n", "y")], [("n", "o")]), _input(lib)
    return lambda: module(td)


def _several(lib: Any) -> Call:
    module = lib.nn.TensorDictModule(lambda x, y: (x, y), ["x", ("n", "y")], ["o", ("n", "o")])
    td = _input(lib)
    return lambda: module(td)


def _linear(lib: Any) -> Call:
    module, td = lib.nn.TensorDictModule(nn.Linear(8, 8), ["x"], ["o"]), _input(lib)
    return lambda: module(td)


def _sequence(lib: Any) -> Call:
    steps = [lib.nn.TensorDictModule(torch.neg, [f"h{i}" if i else "x"], [f"h{i + 1}"]) for i in range(10)]
    module, td = lib.nn.TensorDictSequential(*steps), _input(lib)
    return lambda: module(td)


def _selected(lib: Any) -> Call:
    module = lib.nn.TensorDictModule(lambda x: (x, x), ["x"], ["o", "p"]).select_out_keys("p")
    td = _input(lib)
    return lambda: module(td)


def _dispatched(lib: Any) -> Call:
    module, x = lib.nn.TensorDictModule(torch.neg, ["x"], ["o"]), torch.randn(4, 8)
    return lambda: module(x=x)


def _decorated(lib: Any) -> Call:
    class Negative(nn.Module):
        in_keys = ("x",)
        out_keys = ("o",)

        @lib.nn.dispatch
        def forward(self, tensordict: Any) -> Any:
            return tensordict.set("o", -tensordict.get("x"))

    module, x = Negative(), torch.randn(4, 8)
    return lambda: module(x)


def compiled_calls() -> Cases:
    """Modules and functional calls under torch.compile, beside the same model compiled without a tensordict.

    A sequence keeps what each of its modules has written, so the plain one returns the same tensors.
    """
    width = 512
    torch.manual_seed(0)
    net = nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(width, width), nn.ReLU()))).eval()
    net.requires_grad_(False)
    x = torch.randn(width, width)
    for name, make, floor in (
        ("module", _compiled_module, net),
        ("Sequential", _compiled_sequence, _AllSteps(net)),
        ("to_module", _compiled_call, net),
    ):
        # A model of its own each: what one case does to its modules is checked anew by the graphs of others.
        calls: dict[str, Call] = {
            label: make(importlib.import_module(label), deepcopy(net), x) for label in (OURS, REFERENCE)
        }
        plain = torch.compile(deepcopy(floor), fullgraph=True, dynamic=False)
        calls["plain"] = lambda plain=plain, x=x: plain(x)
        yield f"compiled {name}, {width} wide", calls, {REFERENCE: None, "plain": 1.05}


class _AllSteps(nn.Module):
    """A sequence that returns what each of its parts does."""

    def __init__(self, parts: nn.Sequential) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for part in self.parts:
            x = part(x)
            results.append(x)
        return results


def _compiled_module(lib: Any, net: nn.Module, x: torch.Tensor) -> Call:
    compiled = torch.compile(lib.nn.TensorDictModule(net, ["x"], ["o"]), fullgraph=True, dynamic=False)
    return lambda: compiled(lib.TensorDict({"x": x}, x.shape[:1]))


def _compiled_sequence(lib: Any, net: Any, x: torch.Tensor) -> Call:
    steps = [lib.nn.TensorDictModule(part, [f"h{i}" if i else "x"], [f"h{i + 1}"]) for i, part in enumerate(net)]
    compiled = torch.compile(lib.nn.TensorDictSequential(*steps), fullgraph=True, dynamic=False)
    return lambda: compiled(lib.TensorDict({"x": x}, x.shape[:1]))


def _compiled_call(lib: Any, net: nn.Module, x: torch.Tensor) -> Call:
    params = lib.TensorDict.from_module(net)
    compiled = torch.compile(_with, fullgraph=True, dynamic=False)
    return lambda: compiled(params, net, x)


# -- ranks ---------------------------------------------------------------------------------------------------------


class Ranks:
    """Two processes in a gloo group, which run an operation when they are told to."""

    def __enter__(self) -> Ranks:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._pipes, self._processes = [], []
        for rank in range(2):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, f"{self._folder.name}/group"), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
        return self

    def __exit__(self, *error: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(10)
        self._folder.cleanup()

    def timed(self, library: str, operation: str) -> Callable[[], float]:
        """A case: seconds of an operation, on the rank where it took longer."""

        def run() -> float:
            for pipe in self._pipes:
                pipe.send((library, operation))
            answers = [pipe.recv() for pipe in self._pipes]
            for answer in answers:
                if not isinstance(answer, float):
                    raise RuntimeError(answer)
            return max(answers)

        return run


def _serve(pipe: Any, rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    inputs: dict[str, Any] = {}
    with _until_closed():
        while True:
            library, operation = pipe.recv()
            if library not in inputs:
                entries = {f"k{i}": torch.full((8, 4), float(rank + i)) for i in range(LEAVES)}
                inputs[library] = importlib.import_module(library).TensorDict(entries, [8])
            try:
                pipe.send(_seconds(inputs[library], operation, rank))
            except RuntimeError as error:
                pipe.send(f"{error}")


@contextmanager
def _until_closed() -> Iterator[None]:
    try:
        yield
    except EOFError:
        torch.distributed.destroy_process_group()


def _seconds(td: Any, operation: str, rank: int) -> float:
    torch.distributed.barrier()
    start = time.perf_counter()
    if operation == "broadcast":
        td.broadcast(0)
    elif operation == "all_gather":
        td.all_gather()
    elif operation == "all_reduce":
        td.all_reduce(op=torch.distributed.ReduceOp.MAX)
    elif operation == "send and recv":
        td.send(1) if rank == 0 else td.recv(0)
    else:
        td.init_remote(1) if rank == 0 else type(td).from_remote_init(0)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
