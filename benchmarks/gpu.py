"""What `make gpu` runs: a checklist of experiments on a CUDA device, its tests, and how fast rows get there.

    python -m benchmarks.gpu                on a machine with a CUDA device; ends with 2 where there is none
    python -m benchmarks.gpu --fake         the experiments that a link that only pretends can play
    python -m benchmarks.gpu --only locks   one of them, here and now, with its traceback

Each experiment is a process of its own with a time limit, because what is looked for may hang, or end the process. It
prints one line: what was found, or what went wrong. The figures go into `benchmarks/results/device.json` with the
checklist. The exit status is 1 if anything failed. From a fresh clone the whole takes less than five minutes, and needs
torch with CUDA, pytest and pytest-timeout.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 45
"""An experiment may take so long."""

TESTS = ("tests/device", "tests/pipeline/test_device.py")
"""Tests marked gpu that need nothing but pytest."""


class Place:
    """Where experiments run.

    Args:
        fake: over a link that only pretends.
    """

    def __init__(self, fake: bool) -> None:
        self.fake = fake
        self.there = torch.device("cpu") if fake else torch.device("cuda", 0)
        """Where tensors of the device lie."""
        if fake:
            from tdmap.memory import links as device
            from tests.device.fakelink import FakeLink

            device.LINKS["mtia"] = FakeLink
            device.NO_FORKS.add("mtia")
        self.device = "mtia:0" if fake else "cuda:0"

    def free(self) -> int:
        """Bytes that anybody may have on the device."""
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
        free: int = torch.cuda.mem_get_info(0)[0]
        return free


class Experiment(NamedTuple):
    """One line of the checklist."""

    name: str
    run: Callable[[Place], str]
    needs_cuda: bool

    @property
    def title(self) -> str:
        """What it looks at."""
        return (self.run.__doc__ or self.name).strip().rstrip(".")


EXPERIMENTS: list[Experiment] = []


def experiment(needs_cuda: bool = False) -> Callable[[Callable[[Place], str]], Callable[[Place], str]]:
    """Put a function on the checklist: it returns what it has found, or raises."""

    def put(run: Callable[[Place], str]) -> Callable[[Place], str]:
        EXPERIMENTS.append(Experiment(run.__name__, run, needs_cuda))
        return run

    return put


def check(condition: object, otherwise: str) -> None:
    """Raise AssertionError with words."""
    if not condition:
        raise AssertionError(otherwise)


def raised(kind: type[BaseException], call: Callable[[], Any]) -> BaseException:
    """The exception of a call, which must be of a kind."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def notes(error: BaseException) -> str:
    """What was added to an exception."""
    return " / ".join(getattr(error, "__notes__", []))


# -- the experiments ---------------------------------------------------------------------------------


@experiment(needs_cuda=True)
def machine(place: Place) -> str:
    """The device and its driver."""
    free, total = torch.cuda.mem_get_info(0)
    mode = "unknown"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = ["nvidia-smi", "--query-gpu=driver_version,compute_mode,mig.mode.current", "--format=csv,noheader"]
        mode = subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.strip().splitlines()[0]
    name = torch.cuda.get_device_name(0)
    return (
        f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}, driver and modes {mode}, "
        f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free, {torch.cuda.device_count()} device(s)"
    )


@experiment()
def locks(place: Place) -> str:
    """Slots of workers can be page-locked, and a failure is survived."""
    import mmap

    from tdmap.memory.links import open_link
    from tdmap.memory.shm import anonymous_file, map_path
    from tensordict_lite.memmap.disk.mapping import release

    link, found = open_link(torch.device(place.device)), []
    for megabytes in (1, 8, 64):
        nbytes = megabytes << 20
        fd, path, unlink = anonymous_file(nbytes)
        slot = torch.frombuffer(map_path(path, nbytes), dtype=torch.uint8)
        for state in ("untouched", "written"):
            began = time.perf_counter()
            check(link.lock(slot.data_ptr(), nbytes), f"{megabytes} MiB, {state}, could not be page-locked")
            found.append(f"{megabytes} MiB {state} {(time.perf_counter() - began) * 1e3:.2f} ms")
            check(link.is_locked(slot[100:200]), "the memory does not count as page-locked")
            link.unlock(slot.data_ptr())
            check(not link.is_locked(slot), "the memory still counts as page-locked")
            slot.fill_(1)
        release(os.getpid(), fd, unlink)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(not link.lock(mmap.PAGESIZE + 1, 1 << 20), "nobody's memory was page-locked")
    if not place.fake:
        check(caught, "a failure was not told")
        check(float(torch.ones(3, device=place.there).sum()) == 3, "the failure was left for the next kernel")
    return ", ".join(found)


@experiment(needs_cuda=True)
def link_speed(place: Place) -> str:
    """Bytes a second to the device, by kind of memory and size of copy."""
    from tdmap.memory.links import CudaLink
    from tdmap.memory.shm import anonymous_file, map_path

    link, found = CudaLink(place.there), []
    for label, nbytes, count in (("8 MiB", 8 << 20, 60), ("1 MiB", 1 << 20, 200), ("256 KiB", 256 << 10, 400)):
        _, path, _ = anonymous_file(nbytes)
        slot = torch.frombuffer(map_path(path, nbytes), dtype=torch.uint8).fill_(1)
        link.lock(slot.data_ptr(), nbytes)
        rates = []
        for source in (torch.ones(nbytes, dtype=torch.uint8).pin_memory(), slot, torch.ones(nbytes, dtype=torch.uint8)):
            (there,) = link.empty_like([source])
            link.copy([(there, source)])
            link.synchronize()
            began = time.perf_counter()
            link.copy([(there, source)] * count)
            link.synchronize()
            rates.append(count * nbytes / (time.perf_counter() - began) / 1e9)
        found.append(f"{label} pinned {rates[0]:.1f}, slot {rates[1]:.1f}, pageable {rates[2]:.1f} GB/s")
        link.unlock(slot.data_ptr())
        if nbytes == 8 << 20:
            check(rates[1] >= 0.8 * rates[0], f"slots reach {rates[1]:.1f} GB/s, pinned memory {rates[0]:.1f}")
    return "; ".join(found)


@experiment()
def forked_pool(place: Place) -> str:
    """A pool whose workers were forked for a CPU job runs a function on the device."""
    import tdmap

    torch.cuda.is_available()
    with tdmap.WorkerPool(2) as pool:
        tdmap.map(torch.ones(64, 8), torch.Tensor.neg, pool=pool)
        before = [member.method for member in pool.members.values()]
        found = tdmap.map(torch.ones(64, 8), plus_one, device=place.device, pool=pool)
        check(bool((found == 2).all()), "wrong bytes")
        return f"workers were {before}, and are {[member.method for member in pool.members.values()]}"


def plus_one(x: Any) -> Any:
    """A function for workers."""
    return x + 1


@experiment()
def thread_raises(place: Place) -> str:
    """A thread whose function raises on its first chunk of data there is heard."""
    import tdmap

    there = torch.ones(64, 8, device="meta" if place.fake else place.there)
    error = raised(ZeroDivisionError, lambda: tdmap.map(there, lambda x: 1 / 0, executor="thread", num_workers=2))
    check("raised by" in notes(error), "rows are not named")
    return notes(error)[:150]


@experiment(needs_cuda=True)
def seeds(place: Place) -> str:
    """A seed gives the same bits from the device's generator, for any number of workers and any executor."""
    import tdmap

    x = torch.zeros(64, 1000)
    state = torch.cuda.get_rng_state(0)

    def draw(**options: Any) -> torch.Tensor:
        drawn: torch.Tensor = tdmap.map(x, torch.rand_like, device=place.device, seed=0, chunksize=4, **options)
        return drawn

    first = draw(num_workers=2)
    for options in ({"num_workers": 2}, {"num_workers": 1}, {"executor": "thread"}, {"executor": "serial"}):
        check(torch.equal(draw(**options), first), f"other bits with {options}")
    check(torch.equal(torch.cuda.get_rng_state(0), state), "the caller's stream was moved")
    return "the same five times; the caller's stream is where it was"


@experiment()
def conjugates(place: Place) -> str:
    """Lazily conjugated and negated results come back as they are."""
    import tdmap

    z = torch.randn(64, 50, dtype=torch.complex64)
    for fn, want in ((torch.Tensor.conj, z.conj().resolve_conj()), (lambda t: t.conj().imag, -z.imag)):
        check(torch.equal(tdmap.map(z, fn, device=place.device, executor="serial"), want), "wrong bytes")
    return "equal"


@experiment()
def sparse(place: Place) -> str:
    """Sparse values are prefetched."""
    from tdmap.ops.iteration.prefetch import prefetch_to_device

    (found,) = prefetch_to_device([torch.eye(3).to_sparse()], place.device)
    check(torch.equal(found.to_dense().cpu(), torch.eye(3)), "wrong values")
    return f"{found.layout} on {found.device}"


def breaking(row: int, fake: bool) -> Callable[[Any], Any]:
    """A function whose kernel reads out of bounds for one row."""

    def fn(td: Any) -> Any:
        rows = td["row"]
        if fake:
            from tests.device.fakelink import launch

            def kernel() -> None:
                if bool((rows == row).any()):
                    raise torch.AcceleratorError("device-side assert triggered")

            launch(kernel)
        else:
            wild = torch.where(rows == row, 1 << 30, 0)
            td["x"][:, 0].take(wild)
        return td["x"]

    return fn


@experiment()
def lost_device(place: Place) -> str:
    """A failed assertion on the device names its rows, ends its worker, and the pool goes on."""
    import tdmap
    from tensordict_lite import TensorDict

    data = TensorDict({"x": torch.rand(64, 8), "row": torch.arange(64)}, [64])
    fn, said = breaking(31, place.fake), []
    with tdmap.WorkerPool(1) as pool:
        for on_error in ("raise", "skip"):
            options: dict[str, Any] = {"device": place.device, "pool": pool, "chunksize": 2, "on_error": on_error}
            error = raised(RuntimeError, lambda options=options: tdmap.map(data, fn, **options))  # type: ignore[misc]
            check("rows 30:32" in notes(error), f"other rows were named: {notes(error)}")
            said.append(f"{on_error}: {type(error).__name__}")
            back = tdmap.map(data, lambda td: td["x"], device=place.device, pool=pool)
            check(torch.equal(back, data["x"]), "wrong bytes afterwards")
    return f"{', '.join(said)}; the next job had {pool.stats()['started'] - 1} fresh workers"


@experiment(needs_cuda=True)
def memory_comes_back(place: Place) -> str:
    """Memory of an output that workers wrote into comes back, after errors and deaths as well."""
    import tdmap

    rows, found = 1 << 18, []
    data, flag = torch.zeros(256, rows), Path(tempfile.mkdtemp()) / "killed"

    def fail(x: Any) -> Any:
        if flag.exists():
            flag.unlink()
            os.kill(os.getpid(), 9)
        return x + 1

    with tdmap.WorkerPool(2, "spawn") as pool:
        tdmap.map(data[:2], plus_one, device=place.device, pool=pool)
        before = place.free()
        for on_error, killed in (("raise", False), ("skip", False), ("raise", True)):
            if killed:
                flag.touch()
            out = torch.zeros(256, rows, device=place.there)
            tdmap.map(data, fail, device=place.device, out=out, pool=pool, on_error=on_error, chunksize=16)
            check(bool((out == 1).all()), "wrong bytes")
            del out
            missing = before - place.free()
            found.append(f"{on_error}{', killed' if killed else ''} {missing >> 20} MiB")
            check(missing < 200 << 20, f"{missing >> 20} MiB of 256 are gone after {found[-1]}")
    return "gone: " + "; ".join(found)


@experiment(needs_cuda=True)
def expandable_segments(place: Place) -> str:
    """Memory of torch's other allocator reaches workers, or results go another way."""
    import tdmap

    check("expandable_segments" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""), "the variable was not set")
    data, out = torch.rand(64, 1000), torch.zeros(64, 1000, device=place.there)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tdmap.map(data, plus_one, device=place.device, out=out, num_workers=2, chunksize=4)
    check(torch.equal(out.cpu(), data + 1), "wrong bytes")
    way = [str(one.message).partition(":")[0] for one in caught if "cannot open" in str(one.message)]
    return way[0] if way else "workers opened it"


@experiment(needs_cuda=True)
def starting(place: Place) -> str:
    """How long default workers take to start, and how much of the device they take."""
    import tdmap

    data, found = torch.rand(4096, 1000), []
    for workers in (None, 1, 4):
        torch.zeros(1, device=place.there)
        before, began = torch.cuda.mem_get_info(0)[0], time.perf_counter()
        tdmap.map(data, plus_one, device=place.device, num_workers=workers)
        cold = time.perf_counter() - began
        taken, began = before - torch.cuda.mem_get_info(0)[0], time.perf_counter()
        tdmap.map(data, plus_one, device=place.device, num_workers=workers)
        warm = time.perf_counter() - began
        found.append(f"{workers or 'default'}: {cold:.1f} s, then {warm * 1e3:.0f} ms, {taken >> 20} MiB")
        tdmap.close_pools()
    return "; ".join(found)


@experiment()
def too_large(place: Place) -> str:
    """Chunks larger than the device are refused before the first row."""
    import tdmap
    from tdmap.memory import links as links

    row = torch.zeros(1).expand(1 << 38) if not place.fake else torch.zeros(1 << 12)
    if place.fake:
        from tests.device.fakelink import FakeLink

        links.LINKS["mtia"] = lambda device: FakeLink(device, memory=1000)
    calls: list[int] = []
    error = raised(
        MemoryError,
        lambda: tdmap.map(row.expand(4, -1), calls.append, device=place.device, executor="serial", chunksize=4),
    )
    check(not calls, "the function was called")
    return str(error)[:160]


@experiment(needs_cuda=True)
def settings(place: Place) -> str:
    """Workers compute with the caller's precision and autocast."""
    import tdmap

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    a = torch.randn(64, 256)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        here = tdmap.map(a, lambda x: x @ x.T, device=place.device, executor="serial", chunksize=8)
        there = tdmap.map(a, lambda x: x @ x.T, device=place.device, num_workers=1, chunksize=8)
    check(here.dtype is there.dtype is torch.bfloat16, f"{here.dtype} here, {there.dtype} in workers")
    check(torch.equal(here, there), "other bits in workers")
    return "the same bits here and there, in bfloat16"


@experiment(needs_cuda=True)
def side_stream(place: Place) -> str:
    """Threads work on their caller's stream."""
    import tdmap

    data = torch.ones(64, 1 << 16, device=place.there)
    busy = torch.randn(4096, 4096, device=place.there)
    for _ in range(10):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            for _ in range(20):
                busy = busy @ busy.clamp(-1e-3, 1e-3)
            mine = data.clone().add_(1)
            out = torch.zeros_like(mine)
            tdmap.map(mine, lambda x: x * 2, executor="thread", num_workers=4, out=out, chunksize=4)
            check(bool((out == 4).all()), "rows were read before they were written, or written too late")
        torch.cuda.synchronize()
    return "ten rounds, equal"


@experiment(needs_cuda=True)
def stress(place: Place) -> str:
    """Prefetched batches are whole, again and again, under load."""
    import tdmap

    data, busy = torch.arange(512.0).repeat_interleave(1 << 14).reshape(512, -1), torch.randn(2048, 2048, device="cuda")
    began, rounds = time.perf_counter(), 0
    with tdmap.WorkerPool(2) as pool:
        while time.perf_counter() - began < 10:
            sums = []
            for part in tdmap.map_iter(data, plus_one, chunksize=16, device=place.device, pool=pool, prefetch=3):
                busy = busy @ busy.clamp(-1e-3, 1e-3)
                sums.append(part.double().mean(1))
                del part
            check(torch.equal(torch.cat(sums).cpu(), torch.arange(512.0).double() + 1), "a batch was not whole")
            rounds += 1
    return f"{rounds} epochs in {time.perf_counter() - began:.0f} s"


# -- running them --------------------------------------------------------------------------------------


class Line(NamedTuple):
    """What came of an experiment."""

    name: str
    outcome: str
    """One of ok, FAILED and left out."""
    seconds: float
    said: str


def in_a_process(one: Experiment, fake: bool) -> Line:
    """Run an experiment in a process of its own."""
    if fake and one.needs_cuda:
        return Line(one.name, "left out", 0.0, "needs a CUDA device")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if one.name == "expandable_segments":
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    began = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.gpu", "--only", one.name, *(["--fake"] if fake else [])]
    try:
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return Line(one.name, "FAILED", SECONDS, f"not over after {SECONDS} s: it hangs, or this machine is slow")
    seconds, lines = time.perf_counter() - began, done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return Line(one.name, "ok", seconds, lines[-1])
    told = done.stderr.strip().splitlines() or ["no word"]
    show_details(told)
    return Line(one.name, "FAILED", seconds, f"exit status {done.returncode}: {told[-1][:300]}")


def tests() -> Line:
    """Run the tests that need a device; none of them is allowed to be skipped by all."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--tb=short", "-p", "no:cacheprovider", *TESTS]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=4 * SECONDS)
    except subprocess.TimeoutExpired:
        return Line("tests", "FAILED", 4.0 * SECONDS, f"not over after {4 * SECONDS} s")
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no word"]
    passed = re.search(r"(\d+) passed", lines[-1])
    good = done.returncode == 0 and passed is not None and int(passed[1]) > 0
    if not good:
        show_details(lines, 400)
    return Line("tests", "ok" if good else "FAILED", time.perf_counter() - began, lines[-1].strip("= "))


def without_a_device() -> str:
    """Why there is no CUDA device here, as far as can be told."""
    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} was built without CUDA: use an interpreter whose torch has it (PYTHON=...)."
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.is_available()
        torch.cuda.device_count()
    said = str(caught[-1].message).splitlines()[0] if caught else "no driver, or no device that this process may see"
    return f"torch {torch.__version__} for CUDA {torch.version.cuda} sees no device: {said}"


def show_details(lines: list[str], count: int = 40) -> None:
    """Print the end of what a process wrote."""
    for line in lines[-count:]:
        print(f"    {line}", flush=True)


def show(line: Line, number: int, count: int) -> None:
    """Print a line of the checklist."""
    print(f"[{number:2}/{count}] {line.outcome:8} {line.seconds:6.1f} s  {line.name}: {line.said}", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run from the command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", action="store_true", help="over a link that only pretends; nothing is saved")
    parser.add_argument("--only", choices=[one.name for one in EXPERIMENTS], help="one experiment, in this process")
    parser.add_argument("--megabytes", type=int, default=1024, help="of the benchmark (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of the benchmark (default: %(default)s)")
    options = parser.parse_args(argv)
    if not options.fake and not torch.cuda.is_available():
        print(f"benchmarks.gpu: nothing was run. {without_a_device()}", file=sys.stderr)
        return 2
    if options.only:
        print(next(one for one in EXPERIMENTS if one.name == options.only).run(Place(options.fake)))
        return 0
    return checklist(options)


def checklist(options: argparse.Namespace) -> int:
    """All of it, and the table; the exit status."""
    from benchmarks import device

    count, lines = len(EXPERIMENTS) + 1, []
    for number, one in enumerate(EXPERIMENTS, 1):
        lines.append(in_a_process(one, options.fake))
        show(lines[-1], number, count)
    lines.append(Line("tests", "left out", 0.0, "need a CUDA device") if options.fake else tests())
    show(lines[-1], count, count)
    sizes = ["--megabytes", str(options.megabytes), "--rounds", str(options.rounds)]
    checks = {line.name: line._asdict() for line in lines}
    bench = device.main([*sizes, *(["--fake"] if options.fake else [])], checks)
    broken = [line.name for line in lines if line.outcome == "FAILED"]
    if bench is not None:
        broken += [name for name, result in bench.results.items() if result.error]
    print(f"\nfailed: {', '.join(broken)}" if broken else "\nevery experiment ended well")
    return 1 if broken else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.exit(status)
