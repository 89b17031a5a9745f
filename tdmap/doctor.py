"""What this machine has, and whether tdmap works on it: `tdmap doctor`, or `python -m tdmap.doctor`.

Facts are what explains a failure on another machine. Checks try the things themselves: memory
that a worker shares, a file that is reserved, mapped and locked, each way to start a worker.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.metadata
import os
import platform
import resource
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tdmap.cli.app import main
from tdmap.memory.resources import cgroup_quota, system_memory, usable_cores
from tdmap.memory.scratch import temporary_folder
from tdmap.ops.map import map
from tdmap.runtime.workers.launch import default_method, start_methods
from tdmap.runtime.workers.pool import WorkerPool
from tdmap.tuning import current
from tensordict_lite import TensorDict
from tensordict_lite.show.options import bytes_text

OK, WARNING, PROBLEM = "ok", "warning", "problem"
"""States of a check: as it should be; works, but not as well as it could; does not work."""

LITTLE = 1 << 30
"""Fewer bytes of memory or disk than this are worth a warning."""

FEW_FILES = 1024
"""A limit of open files below this is worth a warning: a mapped dataset opens a file a key."""

OPTIONAL = (
    "tensordict", "pandas", "pyarrow", "polars", "datasets", "transformers", "tokenizers", "ray", "h5py", "zarr",
    "pillow", "torchvision", "safetensors", "fsspec", "matplotlib",
)  # fmt: skip
"""Packages whose versions are told where they are installed. None is imported."""

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TMPDIR")
"""Environment variables that are told, besides those of tdmap."""


@dataclass(frozen=True)
class Check:
    """One thing that was tried."""

    name: str
    state: str
    """`"ok"`, `"warning"` or `"problem"`."""
    found: str
    """What was found."""
    advice: str = ""
    """What to do, where it is not ok."""


@dataclass
class Findings:
    """Everything that was found."""

    facts: dict[str, str] = field(default_factory=dict)
    """By name, in the order in which they are shown."""
    checks: list[Check] = field(default_factory=list)

    @property
    def problems(self) -> list[Check]:
        """The checks that have found something that does not work."""
        return [check for check in self.checks if check.state == PROBLEM]

    @property
    def verdict(self) -> str:
        """The outcome in a line."""
        warnings = sum(check.state == WARNING for check in self.checks)
        parts = [f"{len(self.problems)} of {len(self.checks)} checks failed"] if self.problems else []
        parts += [f"{warnings} warning{'s'[: warnings != 1]}"] if warnings else []
        return ", ".join(parts) or f"all {len(self.checks)} checks passed"


def examine(folder: str | os.PathLike[str] = ".") -> Findings:
    """Find out what this machine has, and try what tdmap needs. Takes seconds: fresh workers import torch.

    Args:
        folder: where datasets are to be written. The checks leave nothing there.
    """
    report = Findings(facts(Path(folder)))
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("versions", check_versions),
        ("memory", check_memory),
        ("shared memory", check_shared_memory),
        ("disk", lambda: check_disk(Path(folder))),
        ("open files", check_open_files),
        ("threads", check_threads),
        *[(f"workers by {method}", lambda method=method: check_start(method)) for method in start_methods()],
    ]
    for name, check in checks:
        try:
            report.checks.append(check())
        except Exception as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            report.checks.append(Check(name, PROBLEM, said, "report this, with all that is printed here"))
    return report


# -------- facts


def facts(folder: Path) -> dict[str, str]:
    """What this machine and this environment have.

    Example:
        >>> facts(Path("."))["torch"] == torch.__version__
        True
    """
    threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    found = {
        "tdmap": _version("tdmap") or "a checkout that is not installed",
        "python": f"{platform.python_version()} ({platform.python_implementation()}{', free-threaded' * threaded})",
        "executable": sys.executable,
        "system": f"{platform.platform()}, {platform.machine()}",
        "torch": torch.__version__,
        "cuda": _cuda(),
        "numpy": _version("numpy") or "none",
        "cores": _cores(),
        "memory": _memory(),
        "anonymous files": "memfd_create" if hasattr(os, "memfd_create") else "files in the temporary folder",
        "start methods": f"{', '.join(start_methods())}; here {default_method(True, 1)}",
        "threads of torch": f"{torch.get_num_threads()} here, 1 in each worker by default",
        "open files": "{} (hard limit {})".format(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        "folder": _place(folder),
        "temporary folder": _place(Path(tempfile.gettempdir())),
    }
    if os.path.isdir("/dev/shm"):
        found["/dev/shm"] = _place(Path("/dev/shm"))
    versions = {name: version for name in OPTIONAL if (version := _version(name))}
    found["optional packages"] = ", ".join(f"{name} {version}" for name, version in versions.items()) or "none"
    names = [name for name in sorted(os.environ) if name in VARIABLES or name.startswith("TDMAP_")]
    found["environment"] = ", ".join(f"{name}={os.environ[name]}" for name in names) or "nothing set"
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cuda() -> str:
    if torch.version.cuda is None and not getattr(torch.version, "hip", None):
        return "not built in"
    if not torch.cuda.is_available():
        return f"built for {torch.version.cuda}, no device"
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return f"{torch.version.cuda}, {', '.join(names)}"


def _cores() -> str:
    quota = cgroup_quota()
    limit = f", quota {quota:g}" if quota else ""
    return f"{usable_cores()} usable of {os.cpu_count()}{limit}"


def _memory() -> str:
    spare = system_memory()
    return "unknown" if spare is None else f"{bytes_text(spare)} available"


def _place(folder: Path) -> str:
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return f"{folder}: {error.strerror}"
    kind = _file_system(folder.resolve())
    return f"{folder.resolve()}{f' ({kind})' if kind else ''}, {bytes_text(usage.free)} free"


def _file_system(folder: Path) -> str:
    """Its kind, such as ext4 or nfs; empty where the system does not say."""
    best, kind = "", ""
    with contextlib.suppress(OSError), open("/proc/mounts") as lines:
        for line in lines:
            _, place, name, *_ = line.split(" ")
            place = place.replace("\\040", " ")
            inside = place == "/" or folder == Path(place) or str(folder).startswith(place + "/")
            if inside and len(place) >= len(best):
                best, kind = place, name
    return kind


# -------- checks


def check_versions() -> Check:
    """Python and torch are ones that tdmap runs with."""
    found = f"Python {platform.python_version()}, torch {torch.__version__}"
    torch_version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if torch_version < (2, 9):  # storages of earlier ones are other objects each time that they are asked for
        return Check("versions", PROBLEM, found, "torch 2.9 or later is needed: pip install --upgrade torch")
    return Check("versions", OK, found)


def check_memory() -> Check:
    """There is memory to work with."""
    spare = system_memory()
    if spare is None:
        return Check("memory", WARNING, "the system does not say how much there is", "pass chunksize= for large rows")
    state = WARNING if spare < LITTLE else OK
    return Check("memory", state, f"{bytes_text(spare)} available", "close other programs" if state != OK else "")


def check_shared_memory() -> Check:
    """A worker writes into memory of this process."""
    began = time.monotonic()
    data = torch.zeros(1 << 18)
    with _one_worker(None) as pool:
        result = map(data, torch.exp, pool=pool, timeout=current().answer_seconds)
    if not bool((result == 1).all()):
        return Check("shared memory", PROBLEM, "what a worker wrote did not arrive", "report this")
    if not hasattr(os, "memfd_create") and os.path.isdir("/dev/shm"):
        free = shutil.disk_usage("/dev/shm").free
        if free < LITTLE:
            advice = "in a container: docker run --shm-size=8g"
            return Check("shared memory", WARNING, f"/dev/shm has {bytes_text(free)}", advice)
    return Check("shared memory", OK, f"a worker filled 1 MiB of it in {time.monotonic() - began:.2f} s")


def check_disk(folder: Path) -> Check:
    """A dataset is written, locked, mapped and read in the folder."""
    if not folder.is_dir():
        return Check("disk", PROBLEM, f"{folder} is no folder", "name one that exists: --folder")
    try:
        with temporary_folder("tdmap-doctor", folder) as place:
            written = TensorDict({"x": torch.arange(1 << 16)}, [1 << 16]).memmap(f"{place}/data")
            written.sync()
            same = bool((TensorDict.load_memmap(f"{place}/data")["x"] == torch.arange(1 << 16)).all())
            locks = _locks(place)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        advice = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "choose another folder: --folder"
        return Check("disk", PROBLEM, f"{folder.resolve()}: {error.strerror or error}", advice)
    if not same:
        return Check("disk", PROBLEM, f"{folder.resolve()}: what was read is not what was written", "choose another")
    if not locks:
        advice = "a file takes the place of locks; mount it with flock if you can"
        return Check("disk", WARNING, f"{folder.resolve()} has no locks", advice)
    if free < LITTLE:
        return Check("disk", WARNING, f"{folder.resolve()}: {bytes_text(free)} free", "free some space")
    return Check("disk", OK, f"{folder.resolve()}: written, mapped and locked, {bytes_text(free)} free")


def _locks(folder: str) -> bool:
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def check_open_files() -> Check:
    """Enough files may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FEW_FILES:
        return Check("open files", OK, f"{'any number' if soft == resource.RLIM_INFINITY else soft} may be open")
    return Check("open files", WARNING, f"only {soft} may be open", f"ulimit -n {max(FEW_FILES, min(hard, 65536))}")


def check_threads() -> Check:
    """Libraries do not start more threads than there are cores."""
    cores, threads = usable_cores(), torch.get_num_threads()
    found = f"torch uses {threads} in this process, {cores} core{'s'[: cores != 1]} usable"
    if threads > cores:
        return Check("threads", WARNING, found, f"export OMP_NUM_THREADS={cores}")
    return Check("threads", OK, found)


def check_start(method: str) -> Check:
    """A worker starts in this way, and answers."""
    name = f"workers by {method}"
    began = time.monotonic()
    with _one_worker(method) as pool:
        result = map(torch.arange(4), torch.neg, pool=pool, timeout=current().answer_seconds)
    if result.tolist() != [0, -1, -2, -3]:
        return Check(name, PROBLEM, "a worker gave a wrong answer", "report this")
    return Check(name, OK, f"the first answer after {time.monotonic() - began:.2f} s")


@contextlib.contextmanager
def _one_worker(method: str | None) -> Iterator[WorkerPool]:
    pool = WorkerPool(1, method)
    try:
        yield pool
    finally:
        pool.close()


def to_dict(report: Findings) -> dict[str, Any]:
    """The report as plain values."""
    checks = [{"name": c.name, "state": c.state, "found": c.found, "advice": c.advice} for c in report.checks]
    return {"facts": report.facts, "checks": checks, "verdict": report.verdict}


def _command() -> None:
    sys.argv = ["tdmap", "doctor", *sys.argv[1:]]
    main()


if __name__ == "__main__":
    _command()
