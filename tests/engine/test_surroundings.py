"""Places where programs of this kind go wrong: containers, small shared memory, other threads."""

import gc
import os
import textwrap
import threading
from types import SimpleNamespace

import pytest
import torch

import tdmap
from tdmap.memory import resources, shm
from tests import interpreters


def cgroup(folder, files, line):
    """A cgroup tree with these files, and the file that says which group this process is in."""
    for name, text in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "own").write_text(line)
    return folder / "cgroup", folder / "own"


@pytest.mark.parametrize(
    ("files", "line", "quota"),
    [
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
        ({"cpu.max": "max 100000\n"}, "0::/\n", None),
        ({"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "max 100000\n"}, "0::/a/b\n", 4.0),
        ({"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "400000 100000\n"}, "0::/a/b\n", 2.0),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, "4:cpu:/\n", 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "4:cpu:/\n", None),
        ({}, "0::/nowhere\n", None),
    ],
)
def test_the_quota_of_a_container_is_read(tmp_path, files, line, quota):
    assert resources.cgroup_quota(*cgroup(tmp_path, files, line)) == quota


STAT = "total_inactive_file 4000000\ntotal_active_file 6000000"


@pytest.mark.parametrize(
    ("files", "line", "found"),
    [
        # 100 MB, of which 30 are used and 10 of these are pages of files; the group above may have ten times as much.
        ({"memory/a": 10**8, "memory": 10**9}, "4:memory:/a\n0::/\n", 80_000_000),
        ({"memory/a": 10**9, "memory/a/b": 10**8}, "4:memory:/a/b\n", 80_000_000),
        ({"memory": 10**8}, "4:memory:/\n", 80_000_000),
        (
            {"job/memory.max": "1000", "job/memory.current": "990", "job/memory.stat": "active_file 900"},
            "0::/job\n",
            910,
        ),
    ],
)
def test_the_memory_of_a_container_is_read(tmp_path, files, line, found):
    written = {}
    for name, value in files.items():
        if isinstance(value, str):
            written[name] = value + "\n"
        else:
            sizes = {"limit_in_bytes": value, "usage_in_bytes": 30_000_000, "stat": STAT}
            written |= {f"{name}/memory.{key}": f"{text}\n" for key, text in sizes.items()}
    assert resources.available_memory(*cgroup(tmp_path, written, line)) == found
    if "job/memory.max" in written:
        written["job/memory.max"] = "max\n"
        assert resources.available_memory(*cgroup(tmp_path, written, line)) > 1 << 20


@pytest.mark.parametrize(("quota", "cores", "wanted"), [(1.5, 8, 2), (0.2, 8, 1), (16.0, 4, 4), (None, 3, 3)])
def test_workers_default_to_the_cores_of_the_quota(monkeypatch, quota, cores, wanted):
    monkeypatch.setattr(resources, "cgroup_quota", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    assert resources.usable_cores() == wanted
    with tdmap.WorkerPool() as pool:
        assert pool.num_workers == wanted


@pytest.mark.parametrize("room", [0, 1 << 40], ids=["full", "roomy"])
def test_without_memfd_a_small_shared_memory_falls_back_to_files(monkeypatch, tmp_path, room):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    real = os.statvfs
    fake = SimpleNamespace(f_bavail=room // 4096, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: fake if path == "/dev/shm" else real(path))
    monkeypatch.setattr(shm.tempfile, "tempdir", str(tmp_path))
    made, make = [], shm.tempfile.mkstemp

    def watched(**options):
        fd, path = make(**options)
        made.append(path)
        return fd, path

    monkeypatch.setattr(shm.tempfile, "mkstemp", watched)
    x = torch.arange(200_000.0).reshape(2000, 100)

    def use():
        with tdmap.WorkerPool(2, "forkserver") as pool:
            assert torch.equal(tdmap.map(x, lambda part: part * 2, pool=pool, chunksize=100), x * 2)

    if room:
        use()
    else:
        with pytest.warns(RuntimeWarning, match="/dev/shm has no room"):
            use()
    gc.collect()
    assert made and all(path.startswith("/dev/shm/" if room else str(tmp_path)) for path in made)
    assert not [path for path in made if os.path.exists(path)]


def test_memory_that_is_refused_leaves_no_file_and_no_descriptor(tmp_path):
    script = f"""
        import os, resource, signal, tempfile
        from tdmap.memory import shm
        shm._fallback_folder = lambda nbytes: {str(tmp_path)!r}
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        before = os.listdir("/proc/self/fd")
        try:
            shm.anonymous_file(1 << 21)
        except OSError as error:
            print(type(error).__name__, len(os.listdir("/proc/self/fd")) - len(before))
    """
    ran = interpreters.run(["-c", textwrap.dedent(script)], cwd=tmp_path)
    assert ran.stdout.split() == ["OSError", "0"], ran.stderr
    assert not list(tmp_path.iterdir())


def test_other_threads_that_hold_locks_do_no_harm():
    lock, stop = threading.Lock(), threading.Event()

    def busy():
        while not stop.is_set():
            with lock:
                sum(range(100))

    threads = [threading.Thread(target=busy, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        with tdmap.WorkerPool(2) as pool:
            for number in range(5):
                assert tdmap.map(torch.arange(60), lambda x, n=number: x + n, pool=pool, chunksize=7).sum() > 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
