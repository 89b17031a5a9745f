"""A map from and to an S3 server on this machine, beside a bare program that copies the same bytes.

    python -m benchmarks.object_store --megabytes 512 --workers 2 --rounds 5

The server is moto's, in a process of its own. The peer's processes are as many as our workers, and each has as many
connections as a dataset has columns: it GETs every object whole and PUTs it elsewhere, and does nothing else. Our
map is of a function that returns its chunk, and makes no checksums of what it sends, as the peer makes none. Both write
the same objects into empty places. S3 is asked through obstore; with the environment variable
TDMAP_STORE_TRANSPORT=fsspec, through s3fs.
Prints a table of ratios, and writes `object_store.json` and `.png` into `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import http.client
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import tdmap
from benchmarks._harness import RESULTS, Benchmark, Stopwatch
from tensordict_lite import TensorDict

COLUMNS = ("image", "other")
ROW_BYTES = 3 * 64 * 64
BUCKET = "bench"
HEADERS = {"Authorization": "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request"}
"""The server looks at no signature, and wants to know who asks."""

NO_CHECKSUMS = {
    "s3": {"payload_signing_enabled": False},
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}

SERVER = """
import logging, sys, time
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""

PEER = """
import http.client, sys, threading

port, columns = int(sys.argv[1]), sys.argv[2].split(",")

HEADERS = {"Authorization": "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request"}

def request(connection, method, path, body=None):
    connection.request(method, path, body, HEADERS)
    answer = connection.getresponse()
    data = answer.read()
    if answer.status != 200:
        raise SystemExit(f"{method} {path}: {answer.status} {data[:200]}")
    return data

def serve(source, jobs, done):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for _ in iter(jobs.acquire, None):
        order = orders.get(source)
        if order is None:
            return
        there, here = order
        data = request(connection, "GET", here)
        request(connection, "PUT", there, data)
        done.release()

orders = {}
jobs = {column: threading.Semaphore(0) for column in columns}
done = threading.Semaphore(0)
for column in columns:
    threading.Thread(target=serve, args=(column, jobs[column], done), daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    source, target = line.split()
    for column in columns:
        orders[column] = (f"{target}/{column}.memmap", f"{source}/{column}.memmap")
        jobs[column].release()
    for column in columns:
        done.acquire()
    print("done", flush=True)
"""


class Peer:
    """Processes that copy shards, a connection for each column."""

    def __init__(self, port: int, workers: int) -> None:
        command = [sys.executable, "-c", PEER, str(port), ",".join(COLUMNS)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.processes = [subprocess.Popen(command, **pipes) for _ in range(workers)]
        for process in self.processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"

    def copy(self, pairs: list[tuple[str, str]]) -> None:
        """Copy shards, each to its target; a process takes the next one when it is done with the last."""
        left, lock = list(reversed(pairs)), threading.Lock()

        def feed(process: Any) -> None:
            while True:
                with lock:
                    if not left:
                        return
                    source, target = left.pop()
                process.stdin.write(f"{source} {target}\n")
                process.stdin.flush()
                assert process.stdout.readline() == "done\n"

        with ThreadPoolExecutor(len(self.processes)) as threads:
            list(threads.map(feed, self.processes))

    def close(self) -> None:
        for process in self.processes:
            process.stdin.close()  # type: ignore[union-attr]
            process.wait()


def keep(chunk: Any) -> Any:
    """The function of the map."""
    return chunk


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--shard-megabytes", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=type(RESULTS), default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = int(server.stdout.readline())
    os.environ.update(AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY="s", AWS_DEFAULT_REGION="us-east-1")
    peer = Peer(port, options.workers)
    try:
        run(options, port, peer)
    finally:
        peer.close()
        tdmap.close_pools()
        assert server.stdin is not None
        server.stdin.close()
        server.wait()


def run(options: argparse.Namespace, port: int, peer: Peer) -> None:
    """Make the data, and run the cases in turns."""
    import fsspec

    store = {"endpoint_url": f"http://127.0.0.1:{port}", "config_kwargs": NO_CHECKSUMS}
    fsspec.filesystem("s3", **store).mkdir(BUCKET)
    workers = options.workers
    per_shard = options.shard_megabytes * (1 << 20) // ROW_BYTES
    rows = options.megabytes // options.shard_megabytes * per_shard
    half = (rows, ROW_BYTES // 2)
    data = TensorDict({name: torch.randint(256, half, dtype=torch.uint8) for name in COLUMNS}, [rows])
    how = {"rows_per_shard": per_shard, "num_workers": workers, "storage_options": store}
    made = tdmap.map(data, keep, out=f"s3://{BUCKET}/source", **how)
    source = tdmap.open(f"s3://{BUCKET}/source", storage_options=store)
    shards = [name.removeprefix("s3:/") for name in made.shards]
    number = iter(range(1 << 30))

    def forget(place: str) -> None:
        fsspec.filesystem("s3", **store).rm(f"{BUCKET}/{place}", recursive=True)

    def copy() -> float:
        place = f"copy{next(number)}"
        with Stopwatch() as watch:
            peer.copy([(shard, f"/{BUCKET}/{place}/{n}") for n, shard in enumerate(shards)])
        forget(place)
        return watch.seconds

    def ours() -> float:
        place = f"map{next(number)}"
        with Stopwatch() as watch:
            tdmap.map(source, keep, out=f"s3://{BUCKET}/{place}", **how)
        forget(place)
        return watch.seconds

    def read() -> float:
        with Stopwatch() as watch:
            tdmap.map_reduce(source, _first, max, num_workers=workers)
        return watch.seconds

    def read_bare() -> float:
        with Stopwatch() as watch:
            _get_all(
                port,
                [f"{shard}/{name}.memmap" for shard in shards for name in COLUMNS],
                per_shard * ROW_BYTES // 2,
                workers,
            )
        return watch.seconds

    nbytes = rows * ROW_BYTES
    title = f"{options.megabytes} MiB from and to an S3 server on this machine, {options.workers} workers"
    bench = Benchmark("object_store", title=title, unit="bytes")
    bench.settings = {name: getattr(options, name) for name in ("megabytes", "shard_megabytes", "workers", "rounds")}
    bench.add("bare GET and PUT", copy, units=nbytes, kind="peer", group="copy")
    bench.add("tdmap map, store to store", ours, units=nbytes, against="bare GET and PUT", wanted=0.8, group="copy")
    bench.add("bare GET", read_bare, units=nbytes, kind="peer", group="read")
    bench.add("tdmap map_reduce, from the store", read, units=nbytes, against="bare GET", group="read")
    bench.run(options.rounds)
    bench.report(options.results)


def _first(chunk: Any) -> int:
    return int(chunk[COLUMNS[0]][0, 0])


def _get_all(port: int, paths: list[str], size: int, workers: int) -> None:
    """GET objects by as many connections as there are workers and columns."""
    left, lock = list(paths), threading.Lock()

    def get() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while True:
            with lock:
                if not left:
                    return
                path = left.pop()
            connection.request("GET", path, headers=HEADERS)
            answer = connection.getresponse()
            if len(answer.read()) != size or answer.status != 200:
                raise RuntimeError(f"GET {path}: {answer.status}")

    threads = [threading.Thread(target=get) for _ in range(workers * len(COLUMNS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
