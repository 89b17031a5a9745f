"""Jobs on a Ray cluster: the same bits as a pool of processes gives, wherever the workers are and whatever dies."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap import RayCluster, tuning
from tdmap.testing.executor import CASES
from tensordict_lite import TensorDict

pytestmark = [
    pytest.mark.timeout(600),  # a worker imports torch, and others may be at it on the same cores
    pytest.mark.xdist_group("ray"),  # one cluster for the session
]

TRANSPORTS = ("auto", "folder", "store")
ROWS = 997


@pytest.fixture(scope="module", params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Any:
    """Tests of one transport follow each other, on the same actors."""
    return request.param


@pytest.mark.soak
def test_the_side_of_ray_data_on_its_page_runs(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setenv("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    page = Path(__file__).parents[2] / "docs/coming-from/ray-data.md"
    _, code = page.read_text().split("```python needs=ray,pyarrow no-run\n")
    namespace: dict[str, Any] = {}
    exec(compile(code.partition("```")[0], str(page), "exec"), namespace)
    assert namespace["total"] == sum(number**2 for number in range(1, 10_000, 2))  # what our side is held to


@pytest.mark.parametrize("case", CASES)
def test_actors_do_what_all_workers_do(cluster: Any, case: str) -> None:
    CASES[case](executor=RayCluster(), num_workers=2)


def rows() -> TensorDict:
    numbers = torch.arange(ROWS)
    return TensorDict(
        {
            "x": numbers.double(),
            "n": TensorDict({"k": numbers % 7}, [ROWS]),
            "w": torch.arange(3.0 * ROWS).view(ROWS, 3),
        },
        [ROWS],
    )


def on(transport: str, **options: Any) -> dict[str, Any]:
    return {"executor": RayCluster(transport=transport), "num_workers": 2, **options}


PROCESSES: dict[str, Any] = {"num_workers": 2}


def noisy(chunk: TensorDict) -> TensorDict:
    return TensorDict({"y": chunk["x"] * 2 + torch.rand(chunk.shape), "m": chunk["w"].sum(-1)}, chunk.shape)


def grow(chunk: TensorDict) -> None:
    chunk["x"].add_(1)
    chunk["n", "k"].mul_(3)


def grow_unseen(chunk: TensorDict) -> None:
    chunk["x"].numpy()[:] += 1  # which no version counter of torch sees


def with_words(chunk: TensorDict) -> TensorDict:
    out = TensorDict({"y": chunk["x"]}, chunk.shape)
    out.set("word", [f"row {int(x)}" for x in chunk["x"]])
    return out


def picky(chunk: TensorDict) -> TensorDict:
    if bool((chunk["x"] % 91 == 5).any()):
        raise ValueError("a row that nobody likes")
    return TensorDict({"y": chunk["x"] * 2}, chunk.shape)


def equal(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.values(True, True), b.values(True, True), strict=True))


def test_every_result_is_that_of_processes(cluster: Any, transport: str, tmp_path: Path) -> None:
    ray, data = on(transport, chunksize=50, seed=3), rows()
    processes = {**PROCESSES, "chunksize": 50, "seed": 3}
    assert equal(tdmap.map(data, noisy, **ray), tdmap.map(data, noisy, **processes))

    single = [tdmap.map(data, noisy, **{**how, "chunksize": 0}) for how in (ray, processes)]
    assert equal(*single)

    given = [TensorDict({"y": torch.zeros(ROWS).double(), "kept": torch.ones(ROWS)}, [ROWS]) for _ in range(2)]
    only_y = {"in_keys": ["x"], "out_keys": ["y"]}
    for out, how in zip(given, (ray, processes), strict=True):
        tdmap.map(data, torch.sqrt, out=out, **only_y, **how)
    assert equal(*given) and bool(given[0]["kept"].all())

    words = [tdmap.map(data, with_words, **how) for how in (ray, processes)]
    assert words[0]["word"] == words[1]["word"]

    order = [
        [float(x) for x in tdmap.map_iter(data, lambda c: c["x"].sum(), shuffle=True, **how)]
        for how in (ray, processes)
    ]
    assert order[0] == order[1]
    assert tdmap.map_reduce(data, lambda c: c["w"].sum(0), lambda a, b: a + b, **ray).equal(
        tdmap.map_reduce(data, lambda c: c["w"].sum(0), lambda a, b: a + b, **processes)
    )


@pytest.mark.parametrize("fn", [grow, grow_unseen])
def test_rows_change_in_place(cluster: Any, transport: str, fn: Any, tmp_path: Path) -> None:
    for number, resume in enumerate((False, True)):
        memory, files = rows(), rows().memmap(tmp_path / str(number))
        expected = rows()
        fn(expected)
        if not resume:
            tdmap.map(memory, fn, out=memory, **on(transport, chunksize=50))
            assert equal(memory, expected)
        tdmap.map(files, fn, out=files, resume=resume, **on(transport, chunksize=50))
        assert equal(TensorDict.load_memmap(tmp_path / str(number)), expected)
    assert not list(tmp_path.rglob("*probe*"))


def test_rows_that_raise_are_skipped(cluster: Any, transport: str) -> None:
    data = rows()
    results = []
    for how in (on(transport, chunksize=50), {**PROCESSES, "chunksize": 50}):
        out = TensorDict({"y": torch.full([ROWS], 7.0).double()}, [ROWS])
        errors = tdmap.RowErrors()
        tdmap.map(data, picky, out=out, on_error=errors, **how)
        new = tdmap.map(data, picky, on_error=tdmap.RowErrors(), **how)
        results.append((out, new, [error.row for error in errors]))
    assert equal(results[0][0], results[1][0])
    assert equal(results[0][1], results[1][1])
    assert results[0][2] == results[1][2] == [row for row in range(ROWS) if row % 91 == 5]


def test_a_function_needs_files_that_workers_have_as_well(cluster: Any, transport: str, tmp_path: Path) -> None:
    table = torch.arange(10.0, dtype=torch.double)
    mapped = TensorDict({"t": table}, [10]).memmap(tmp_path)["t"]

    def looked_up(chunk: TensorDict) -> torch.Tensor:
        return mapped[chunk["n", "k"]]

    if transport == "store":
        with pytest.raises(tdmap.errors.WorkerStartError, match="a folder that all machines share"):
            tdmap.map(rows(), looked_up, **on("store"))
    else:
        assert torch.equal(tdmap.map(rows(), looked_up, **on(transport)), table[rows()["n", "k"]])


def test_operations_that_write_files_work_in_a_shared_folder(cluster: Any, transport: str, tmp_path: Path) -> None:
    if transport == "store":
        pytest.skip("the folder does not exist")
    data = rows().memmap(tmp_path / "data")

    def run(name: str, how: dict[str, Any]) -> list[Any]:
        place = tmp_path / name
        place.mkdir()
        grouped = tdmap.group_by(data, ("n", "k")).reduce(
            {"total": tdmap.reducers.Sum("x")}, out=place / "groups", **how
        )
        batches = data.pipeline().map(grow_copy).batch(100).iter(**how)
        return [
            tdmap.filter(data, lambda c: c["x"] % 3 == 0, out=place / "filter", **how),
            tdmap.flat_map(data, lambda c: torch.cat([c, c]), out=place / "flat_map", **how),
            grouped,
            tdmap.sort(data, "x", descending=True, out=place / "sorted", **how),
            tdmap.join(data, data[:50], on="x", out=place / "join", **how),
            tdmap.shuffle(data, seed=5, out=place / "shuffle", **how),
            *batches,
        ]

    for mine, theirs in zip(run("ray", on(transport)), run("processes", PROCESSES), strict=True):
        assert equal(mine, theirs)


def grow_copy(chunk: TensorDict) -> TensorDict:
    return TensorDict({"y": chunk["x"] + 1}, chunk.shape)


def test_killed_actor_loses_no_rows_and_does_none_twice(cluster: Any, transport: str, tmp_path: Path) -> None:
    data, once = rows().memmap(tmp_path / "data"), tmp_path / "killed"

    def deadly(chunk: TensorDict) -> None:
        chunk["x"].add_(1)
        if int(chunk["x"][0]) == 501 and not once.exists():
            once.touch()
            chunk["x"].zero_()
            os.kill(os.getpid(), signal.SIGKILL)

    deaths = Deaths()
    tdmap.map(data, deadly, out=data, chunksize=10, callbacks=[deaths], **on(transport))
    assert deaths.seen == 1 and deaths.nodes != {""}
    assert torch.equal(data["x"], torch.arange(ROWS).double() + 1)


class Deaths(tdmap.events.Callback):
    seen = 0

    def __init__(self) -> None:
        self.nodes: set[str] = set()

    def on_worker_died(self, event: tdmap.events.WorkerDied) -> None:
        self.seen += 1

    def on_lease_done(self, event: tdmap.events.LeaseDone) -> None:
        self.nodes.add(event.node)


def test_killed_driver_goes_on_where_it_was(cluster: Any, transport: str, tmp_path: Path) -> None:
    if transport != "store":
        pytest.skip("one is enough: a driver of processes is tested elsewhere")
    data = rows().memmap(tmp_path / "data")
    program = textwrap.dedent("""
        import os, signal, sys, ray, tdmap
        from tensordict_lite import TensorDict
        from tests.ray.growing import fn

        ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
        data = TensorDict.load_memmap(sys.argv[2])

        class Ends(tdmap.events.Callback):
            def on_lease_done(self, event):
                if event.done_rows > 300:
                    os.kill(os.getpid(), signal.SIGKILL)

        where = tdmap.RayCluster(transport=sys.argv[3])
        data.map(fn, out=data, chunksize=10, resume=True, num_workers=1, executor=where, callbacks=[Ends()])
    """)
    command = [sys.executable, "-c", program, cluster.address, str(tmp_path / "data"), transport]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300)
    assert ended.returncode == -signal.SIGKILL, ended.stderr

    from tests.ray.growing import fn

    began: list[int] = []

    class Begins(tdmap.events.Callback):
        def on_job_started(self, event: tdmap.events.JobStarted) -> None:
            began.append(event.done_rows)

    data.map(fn, out=data, chunksize=10, resume=True, callbacks=[Begins()], **on(transport))
    assert began[0] > 300
    assert torch.equal(TensorDict.load_memmap(tmp_path / "data")["x"], torch.arange(ROWS).double() + 1)


def test_a_function_that_cannot_travel_or_raises_says_so(cluster: Any, transport: str) -> None:
    running = (number for number in range(3))
    with pytest.raises(tdmap.errors.SerializationError, match="running"):
        tdmap.map(rows(), lambda c: running and None, **on(transport))
    with pytest.raises(ValueError, match="nobody likes") as caught:
        tdmap.map(rows(), picky, chunksize=10, **on(transport))
    assert "rows " in caught.value.__notes__[0] and " on " in caught.value.__notes__[0]


def test_several_folders_are_one_dataset_on_the_cluster(cluster: Any, transport: str, tmp_path: Path) -> None:
    """Workers open the folders themselves where they have them; elsewhere their rows are sent."""
    whole = rows()
    for place, (first, last) in enumerate(((0, 300), (300, 310), (310, ROWS))):
        whole[first:last].memmap(tmp_path / f"part{place}")
    data = tdmap.open([tmp_path / f"part{place}" for place in range(3)])
    how = on(transport, chunksize=50)
    assert equal(tdmap.map(data, grow_copy, **how), grow_copy(whole))
    if transport == "store":
        return
    shards = tdmap.map(data, grow_copy, out=tmp_path / "out", rows_per_shard=100, **how)
    assert len(shards.ends) == 10 and torch.equal(shards["y"], whole["x"] + 1)


def test_workers_that_are_not_needed_any_more_leave_quietly(cluster: Any, transport: str) -> None:
    """They end by themselves: Ray tells the world of each worker that is killed."""
    if transport != "store":
        pytest.skip("the last ones of the session are enough")
    tdmap.map(rows(), grow_copy, **on(transport))
    from tdmap.runtime.executors import raypool

    (pool,) = raypool._warm.values()
    while not all(member.ready for member in pool.members.values()):  # one that has not started yet has nothing to end
        tdmap.map(rows(), grow_copy, **on(transport))
    members = list(pool.members.values())
    killed: list[int] = []
    for member in members:
        member.process.kill = lambda: killed.append(1)
    with tuning.use(exit_seconds=100.0):  # a busy machine takes its time
        tdmap.close_pools()
    assert members and not killed and all(member.closed for member in members)


@pytest.mark.soak
def test_the_death_of_the_only_machine_with_room_is_told(cluster: Any) -> None:
    """Long before the time that a cluster has to start a worker is over."""
    node = cluster.add_node(resources={"lone": 1}, num_cpus=1, object_store_memory=100 << 20, include_dashboard=False)

    class Remove(tdmap.events.Callback):
        def on_lease_done(self, event: Any) -> None:
            if node in cluster.worker_nodes:
                cluster.remove_node(node, allow_graceful=False)

    lone = RayCluster(resources={"lone": 1}, start_timeout=1e6)
    with pytest.raises(tdmap.errors.WorkerStartError, match="no machine of the cluster has so much"):
        tdmap.map(torch.arange(64), _slowly, chunksize=1, executor=lone, num_workers=1, callbacks=[Remove()])


def _slowly(chunk: Any) -> Any:
    time.sleep(0.2)
    return chunk


@pytest.mark.parametrize("transport", [pytest.param("auto", marks=pytest.mark.soak), "store"])
def test_killed_node_loses_no_rows_and_does_none_twice(cluster: Any, transport: str, tmp_path: Path) -> None:
    """Of the two nodes that have room for one of these workers each, the second ends while it works."""
    node = cluster.add_node(resources={"mortal": 1}, num_cpus=0, object_store_memory=80 << 20)
    worked: set[int] = set()

    class EndsNode(tdmap.events.Callback):
        def on_lease_done(self, event: tdmap.events.LeaseDone) -> None:
            worked.add(event.worker)
            if len(worked) == 2 and node in cluster.worker_nodes:
                cluster.remove_node(node, allow_graceful=False)

    data, deaths = rows().memmap(tmp_path / "data"), Deaths()
    where = RayCluster(num_cpus=0, resources={"mortal": 1}, transport=transport)
    callbacks = [EndsNode(), deaths]
    try:
        tdmap.map(data, slow_growth, out=data, chunksize=10, num_workers=2, executor=where, callbacks=callbacks)
    finally:
        tdmap.close_pools()
    assert deaths.seen == 1 and node not in cluster.worker_nodes
    assert torch.equal(data["x"], torch.arange(ROWS).double() + 1)


def slow_growth(chunk: TensorDict) -> None:
    chunk["x"].add_(1)
    for _ in range(200):
        torch.rand(100, 100) @ torch.rand(100, 100)
