"""Settings of the process and of the thread: every operation gives the bits that it gives without them."""

import contextlib
import io
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import tdmap
from tdmap import reducers
from tdmap.datasets import from_arrow, from_dataset, pack, read, to_arrow, tokenise, write
from tensordict_lite import (
    DatasetWriter,
    MemoryMappedTensor,
    Ragged,
    TensorDict,
    from_consolidated,
    lazy_stack,
    load_memmap,
    pack_memmap,
    unpack_memmap,
)
from tests.cells.kinds import KINDS
from tests.cells.operations import OPERATIONS as CELLS
from tests.engine.conftest import put
from tests.products import sampled


@contextlib.contextmanager
def many():
    """Settings that have nothing to do with each other."""
    with (
        torch.no_grad(),
        put(torch.set_default_dtype, torch.float64, torch.float32),
        put(torch.use_deterministic_algorithms, True, False),
        np.errstate(all="raise"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        yield


SETTINGS = {
    "set_default_device": lambda: put(torch.set_default_device, "meta", None),  # as "cuda", without a GPU
    "with device": lambda: torch.device("meta"),
    "inference mode": torch.inference_mode,
    "no grad, float64, deterministic, numpy raises, warnings are errors": many,
}
WORKERS = {
    "0 workers": {"num_workers": 0},
    "threads": {"num_workers": 2, "executor": "thread"},
    "processes": {"num_workers": 2},
}


class Data:
    """What operations read; made without any setting."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rows = torch.arange(40)
        self.rows = TensorDict(
            {
                "x": rows.float().sqrt(),
                "k": rows % 4,
                "big": rows.double() * 4e306 - 8e307,
                "n": {"y": rows[:, None]},
                "f": rows.float()[:, None] % torch.arange(1.0, 4.0),
            },
            [40],
        )
        self.rows["big"][:3] = torch.tensor([torch.inf, -torch.inf, 1.7e308])
        self.words = TensorDict({"k": rows[:8] % 3, "s": [f"w{n % 5}" for n in range(8)]}, [8])
        text = Ragged.from_list([f"w{n % 5}" * (n % 3) for n in range(8)])
        ragged = Ragged.from_list([torch.arange(n % 3) for n in range(8)])
        self.table = TensorDict({"k": rows[:8] % 3, "s": text}, [8])
        self.ragged = TensorDict({"v": ragged}, [8])
        self.lazy = lazy_stack([TensorDict({"x": torch.ones(n % 3)}, []) for n in range(6)])
        self.mapped = self.rows.memmap(folder / "mapped")
        self.words.memmap(folder / "words")
        for part in "ab":
            self.rows.memmap(folder / part)
        self.parts = [load_memmap(folder / part) for part in "ab"]
        tdmap.map(self.rows, lambda c: c, out=folder / "shards", rows_per_shard=16, num_workers=0)
        self.rows.save(folder / "saved.tdz")
        self.rows.consolidate(folder / "consolidated")
        write(self.table, folder / "table.parquet")
        write({"a": rows[:5], "b": rows[:5] * 0.5}, folder / "table.csv")
        np.savez(folder / "arrays.npz", x=np.arange(5), y=np.ones((5, 2), np.float32))
        kinds = ("nested", "text", "ragged", "lazy", "sharded", "no rows")
        self.kinds = {kind: KINDS[kind](folder / kind) for kind in kinds}
        self.made = 0

    def new(self, name: str = "out") -> Path:
        self.made += 1
        return self.folder / f"{name}{self.made}"


def shard_rows(d):
    return tdmap.open(d.folder / "shards")


def written(d, data, name):
    write(data, path := d.new().with_suffix(name))
    return read(path)


def appended(d, w):
    with DatasetWriter(path := d.new(), d.rows[0]) as writer:
        writer.append(d.rows[:3])
        writer.append(d.rows[3:5])
    return load_memmap(path)


def resumed(d, w):
    epoch = d.rows.pipeline(seed=0).shuffle(seed=1, buffer=8).batch(4).iter(**w, epoch=0)
    state = [next(epoch), epoch.state_dict()][1]
    later = d.rows.pipeline(seed=0).shuffle(seed=1, buffer=8).batch(4).iter(**w, epoch=0)
    later.load_state_dict(state)
    return list(later)


def double(chunk):
    chunk["x"].mul_(2)


def in_place(d, w):
    d.rows.memmap(path := d.new())
    data = load_memmap(path)
    tdmap.map(data, double, out=data, **w)
    return load_memmap(path)


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, number):
        return {"n": number, "s": f"row {number}"}


MORE = {
    "map dicts": lambda d, w: tdmap.map(d.rows, lambda c: {"y": c["k"] + 1, "z": c["x"].numpy()}, **w),
    "map out, resume": lambda d, w: tdmap.map(d.mapped, lambda c: c + 1, out=d.new(), resume=True, **w),
    "map out, given": lambda d, w: tdmap.map(d.rows, lambda c: c + 1, out=d.rows.clone(), **w),
    "map strings": lambda d, w: tdmap.map(d.words, lambda c: c, out=d.new(), **w),
    "map seeded": lambda d, w: tdmap.map(d.rows, lambda c: torch.randperm(len(c), device="cpu"), seed=1, **w),
    "map in place": in_place,
    "map with indices": lambda d, w: tdmap.map(d.rows, lambda c, i: c["k"] + i, with_indices=True, **w),
    "map module": lambda d, w: tdmap.map(d.rows, torch.nn.Identity(), in_keys="x", **w),
    "map, rows that raise": lambda d, w: tdmap.map(
        d.rows, lambda c: 1 // (c["k"] - 3)[:, None], on_error=lambda *_: None, **w
    ),
    "map concat": lambda d, w: tdmap.map(tdmap.concat(d.parts), lambda c: c + 1, **w),
    "map_iter shuffled": lambda d, w: list(tdmap.map_iter(d.rows, lambda c: c, shuffle=True, seed=0, **w)),
    "filter by column": lambda d, w: tdmap.filter(d.rows, tdmap.col("k") == 1, **w),
    "sort strings": lambda d, w: tdmap.sort(d.words, "s", **w),
    "join outer": lambda d, w: tdmap.join(d.words, d.words.select("k")[:2], "k", "left", **w),
    "agg of large numbers": lambda d, w: tdmap.group_by(d.rows, "k").agg(
        {"x": ["mean", "std", "min", "max", "median", "count"], "big": ["sum", "mean", "std", "var"]}, **w
    ),
    "reduce to numbers": lambda d, w: tdmap.reduce(
        d.rows.select("x", "k"),
        {
            "mean": reducers.Mean("x"),
            "var": reducers.Var("x"),
            "std": reducers.Std("x"),
            "sum": reducers.Sum("x"),
            "max": reducers.Max("x"),
            "quantile": reducers.Quantile("x", (0.0, 0.5, 1.0)),
            "n": reducers.Count(),
            "histogram": reducers.Histogram("x", 4, (0.0, 7.0)),
            "top": reducers.TopK("x", 3),
        },
        **w,
    ),
    "reduce values": lambda d, w: [
        tdmap.reduce(d.rows, each, **w)
        for each in (
            reducers.Unique("k"),
            reducers.ValueCounts("k"),
            reducers.First("x"),
            reducers.Last("x"),
            reducers.CovarianceMatrix("f"),
            reducers.Sum("big"),
            reducers.Mean("big"),
            reducers.Checksum("x"),
        )
    ],
    "pipeline, rows": lambda d, w: list(
        d.rows.pipeline().map_rows(lambda r: r + 1).filter(lambda c: c["k"] > 1).iter(**w)
    ),
    "pipeline, buffer": resumed,
    "pipeline, zip": lambda d, w: (
        d.rows.pipeline().zip(d.rows.select("x").pipeline().map(lambda c: {"a": c["x"]})).collect(**w)
    ),
    "pipeline.collect": lambda d, w: d.rows.pipeline().flat_map(lambda c: c[:2]).repeat(2).collect(**w),
    "pipeline of shards": lambda d, w: list(shard_rows(d).pipeline().shuffle(seed=1).batch(7).iter(**w)),
    "samplers": lambda d, w: [
        list(tdmap.samplers.WeightedSampler([1.0, 2.0], 5, seed=0)),
        list(tdmap.samplers.WeightedSampler([1.0, 2.0], 2, replacement=False)),
        list(tdmap.samplers.BalancedSampler(d.rows["k"], 8, seed=0)),
        list(tdmap.samplers.MixedSampler([10, 20], [0.3, 0.7], 8, seed=0)),
        list(tdmap.samplers.MixedSampler([10, 20], [1, 2], 8).batches(3)),
    ],
    "ragged": lambda d, w: [
        Ragged.from_list(["a", "bb"]),
        d.ragged["v"].pad(),
        tdmap.map(d.ragged, lambda j: j, **w),
        tdmap.filter(d.ragged, lambda j: j["v"].lengths > 1, **w),
        d.ragged[[3, 1]],
        d.ragged[1:4],
        load_memmap(d.ragged.memmap(d.new()).saved_path),
        pack(d.ragged, "v", 3, columns=["document", "position"], **w),
        torch.cat([d.ragged, d.ragged]),
    ],
    "tokenise": lambda d, w: tokenise(
        ["ab", "c"], lambda texts: [[ord(c) for c in t] for t in texts], max_length=3, pad=True, **w
    ),
    "formats": lambda d, w: [
        read(d.folder / "table.parquet"),
        read(d.folder / "table.csv"),
        read(d.folder / "arrays.npz"),
        *(written(d, d.table, name) for name in (".parquet", ".csv", ".jsonl", ".arrow")),
        *(written(d, d.rows.select("x", "k"), name) for name in (".npz", ".h5", ".zarr")),
    ],
    "bridges": lambda d, w: [from_arrow(to_arrow(d.table))],
    "from_dataset": lambda d, w: from_dataset(Squares(), d.new(), **w),
}
"""Calls that `tests/cells` does not make."""


def calls_of(name):
    """An operation of the cells, on several kinds of data and into a folder."""
    operation = CELLS[name]

    def call(d, w):
        results = [operation.call(data, **w) for kind, data in d.kinds.items() if kind not in operation.refuses]
        if operation.has_output:
            results.append(operation.call(d.kinds["nested"], out=d.new(), **w))
        return [[*result] if name in ("map_iter", "Pipeline.iter") else result for result in results]

    return call


OPERATIONS = {**{name: calls_of(name) for name in CELLS}, **MORE}
CORE = {
    "memmap": lambda d: load_memmap(d.rows.memmap(d.new()).saved_path),
    "memmap of strings": lambda d: [load_memmap(d.words.memmap(d.new()).saved_path), load_memmap(d.folder / "words")],
    "memmap of lazy stacks": lambda d: load_memmap(d.lazy.memmap(d.new()).saved_path),
    "memmap_like": lambda d: d.rows.memmap_like(d.new()).keys(True, True).__len__(),
    "load_memmap": lambda d: [load_memmap(d.folder / "mapped"), load_memmap(d.folder / "mapped")[3:7].clone()],
    "load_memmap_": lambda d: d.rows.clone().load_memmap_(d.folder / "mapped"),
    "make_memmap": lambda d: d.rows.memmap(d.new()).make_memmap("new", (40,), dtype=torch.int8).shape,
    "MemoryMappedTensor": lambda d: [
        MemoryMappedTensor.from_tensor(d.rows["x"]),
        MemoryMappedTensor.zeros(3, dtype=torch.float32),
        MemoryMappedTensor.full((2,), fill_value=3, dtype=torch.int64),
        MemoryMappedTensor.from_tensor(d.rows["x"], filename=d.new("file")),
        MemoryMappedTensor.empty(0, dtype=torch.int8),
        MemoryMappedTensor.ones(2, dtype=torch.int16, filename=d.new("file")),
    ],
    "nested tensors": lambda d: load_memmap(
        TensorDict({"r": torch.nested.as_nested_tensor([d.rows["x"][:2], d.rows["x"][:1]])}, [2])
        .memmap(d.new())
        .saved_path
    )["r"].unbind(),
    "archives": lambda d: [
        load_memmap(d.folder / "saved.tdz"),
        load_memmap(target) if d.rows.save(target := d.new().with_suffix(".tdz")) is not None else 0,
        pack_memmap(d.folder / "mapped", target := d.new().with_suffix(".tdz")),
        load_memmap(target),
        load_memmap(unpack_memmap(target, d.new())),
    ],
    "consolidated": lambda d: [
        d.rows.consolidate(),
        from_consolidated(d.folder / "consolidated"),
        d.words.consolidate(),
        d.rows.consolidate(path := d.new()),
        from_consolidated(path),
    ],
    "torch.save": lambda d: pickled(d.rows),
    "DatasetWriter": lambda d: appended(d, {}),
    "share_memory_": lambda d: d.rows.clone().share_memory_(),
    "checksum": lambda d: d.mapped.checksum(),
    "to_h5": lambda d: d.rows.to_h5(d.new().with_suffix(".h5")).to_tensordict(),
}


def pickled(data):
    buffer = io.BytesIO()
    torch.save(data.consolidate(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def plain(value):
    """A result as Python values, with dtypes and devices."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        return (
            str(value.dtype),
            str(value.device),
            list(value.shape),
            value.clone().reshape(-1).view(torch.uint8).tolist(),
        )
    if isinstance(value, Ragged):
        return plain(value.tolist())
    if hasattr(value, "batch_size"):
        if not hasattr(value, "items"):
            return repr(value)
        if getattr(value, "is_locked", None) is not None and type(value).__name__.startswith("Lazy"):
            return [plain(member) for member in value.unbind(0)]
        return {str(key): plain(value.get(key)) for key in sorted(value.keys(), key=str)}
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return None if isinstance(value, Path) else repr(value)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    yield Data(tmp_path_factory.mktemp("data"))
    tdmap.close_pools()


_expected: dict[str, object] = {}


def expected(name, run):
    if name not in _expected:
        _expected[name] = plain(run())
    return _expected[name]


@pytest.mark.parametrize(("name", "setting", "workers"), sampled(6, OPERATIONS, SETTINGS, WORKERS))
def test_an_operation_gives_the_same_bits_under_every_setting(name, workers, setting, data):
    wanted = expected(name, lambda: OPERATIONS[name](data, WORKERS["0 workers"]))
    with SETTINGS[setting]():
        found = OPERATIONS[name](data, WORKERS[workers])
    assert plain(found) == wanted


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", CORE)
def test_data_is_saved_and_loaded_under_every_setting(name, setting, data):
    wanted = expected(name, lambda: CORE[name](data))
    with SETTINGS[setting]():
        found = CORE[name](data)
    assert plain(found) == wanted


class OnMeta(torch.nn.Module):
    def forward(self, x):
        return on_meta(x)


def on_meta(value, *more, **options):
    """What a function returns that was called where tensors are made on the default device of the caller."""
    assert torch.empty(1).device.type == torch.get_default_device().type == "meta"
    assert tdmap.map(torch.ones(2, device="cpu"), lambda x: x * 2, num_workers=0).tolist() == [2, 2]
    return value


def pieces_on_meta(chunk):
    for piece in chunk.split(2):
        yield on_meta(piece)


FUNCTIONS = {
    "map": lambda d, w: tdmap.map(d.rows, on_meta, **w),
    "map with options": lambda d, w: tdmap.map(d.rows, on_meta, with_indices=True, fn_kwargs={"a": 1}, **w),
    "map rows": lambda d, w: tdmap.map(d.rows, on_meta, chunksize=0, **w),
    "map entries": lambda d, w: tdmap.map(d.rows, on_meta, in_keys="x", fn_kwargs={"a": 1}, **w),
    "map module": lambda d, w: tdmap.map(d.rows, OnMeta(), in_keys="x", **w),
    "map dicts": lambda d, w: tdmap.map(d.rows, lambda c: on_meta({"y": c["x"].numpy()}), **w),
    "map, rows that raise": lambda d, w: tdmap.map(d.rows, lambda c: on_meta(1 // c["k"]), on_error="skip", **w),
    "map_iter": lambda d, w: list(tdmap.map_iter(d.rows, on_meta, **w)),
    "filter": lambda d, w: tdmap.filter(d.rows, lambda c: on_meta(c["k"] > 1), **w),
    "flat_map": lambda d, w: tdmap.flat_map(d.rows, pieces_on_meta, **w),
    "map_reduce": lambda d, w: tdmap.map_reduce(d.rows, lambda c: on_meta(c["x"]), reducers.Sum(), **w),
    "map_groups": lambda d, w: tdmap.group_by(d.rows, "k").map_groups(on_meta, **w),
    "pipeline": lambda d, w: list(
        d.rows.pipeline()
        .map(on_meta)
        .map_rows(on_meta)
        .flat_map(on_meta)
        .filter(lambda c: on_meta(c["k"] > 1))
        .batch(4)
        .map(on_meta)
        .iter(**w)
    ),
    "tokenise": lambda d, w: tokenise(["a", "b"], lambda texts: on_meta([[1] for _ in texts]), **w),
}


@pytest.mark.parametrize("name, workers", sampled(2, FUNCTIONS, [*WORKERS, "forkserver"]))
@pytest.mark.filterwarnings("ignore::tdmap.errors.SkippedRows")
def test_functions_see_the_default_device_of_the_caller(name, workers, data):
    options = WORKERS.get(workers, {"num_workers": 1, "mp_start_method": "forkserver"})
    for setting in ("set_default_device", "with device"):
        with SETTINGS[setting]():
            FUNCTIONS[name](data, options)
            assert torch.empty(1).device.type == torch.get_default_device().type == "meta"
    assert tdmap.map(data.rows[:4], lambda c: torch.ones(len(c)), **options).tolist() == [1] * 4


@pytest.mark.parametrize("workers", WORKERS)
def test_iterators_leave_the_default_device_of_their_consumer_alone(workers, data):
    rows = data.rows
    with torch.device("meta"):
        steps = [
            tdmap.map_iter(rows, on_meta, chunksize=10, **WORKERS[workers]),
            rows.pipeline().map(on_meta).batch(10).iter(**WORKERS[workers]),
            tdmap.samplers.WeightedSampler([1.0, 2.0]).batches(1),
        ]
        for step in zip(*steps, strict=False):
            assert torch.empty(1).device.type == "meta" and all(value.device != "meta" for value in step)
    with torch.device("meta"):
        (epoch := iter(rows.pipeline().batch(10).iter(**WORKERS[workers]))).__next__()
    assert torch.empty(1).device.type == next(epoch)["x"].device.type == "cpu"
    epoch.close()
