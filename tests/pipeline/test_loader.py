"""Pipelines as loaders: torch's DataLoader, devices, positions."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.collate import default_convert
from torch.utils.data._utils.fetch import _IterableDatasetFetcher

import tdmap
from tdmap.data.trees import tensors_in
from tensordict_lite import TensorDict

pytestmark = pytest.mark.filterwarnings("ignore:this pipeline is iterated once more")


def rows_of(batches) -> list[int]:
    return [row for batch in batches for row in batch["x"].tolist()]


def noisy(td):
    """Random in all three libraries."""
    noise = torch.rand(td.batch_size) + torch.from_numpy(np.random.rand(*td.batch_size))
    return td.clone(False).set("noise", noise)


CHAINS = {
    "batches": lambda p: p.shuffle(3).batch(7).map(noisy),
    "filtered": lambda p: p.filter(lambda td: td["x"] % 3 != 0).batch(4),
    "taken": lambda p: p.filter(lambda td: td["x"] % 3 != 0).take(17).batch(4),
    "repeated": lambda p: p.shuffle(1).repeat(2).batch(9),
    "buffered": lambda p: p.flat_map(lambda td: torch.cat([td, td])).shuffle(5, buffer=10).batch(6),
    "joined": lambda p: p.concat(p).shuffle(2).batch(16, drop_last=True),
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("chain", list(CHAINS))
def test_dataloader_gives_every_row_once(data, chain, num_workers):
    pipeline = CHAINS[chain](data.pipeline())
    wanted = rows_of(pipeline.iter(num_workers=0))
    loaded = list(DataLoader(pipeline, batch_size=None, num_workers=num_workers))
    assert all(type(batch) is TensorDict for batch in loaded)
    assert sorted(rows_of(loaded)) == sorted(wanted)
    if chain in ("batches", "taken", "repeated", "joined"):  # one process or two: the same batches in the same order
        assert rows_of(loaded) == wanted


def test_dataloader_of_rows_makes_batches(data):
    batches = list(DataLoader(data.pipeline().shuffle(1), batch_size=16, num_workers=2))
    assert sum(map(len, batches)) == 40
    assert sorted(rows_of(batches)) == list(range(40))


def test_dataloader_with_a_collate_function_gets_the_elements_themselves(data):
    seen = []
    loader = DataLoader(data.pipeline().batch(20), batch_size=None, collate_fn=lambda batch: seen.append(type(batch)))
    assert len(list(loader)) == 2
    assert seen == [TensorDict, TensorDict]


def test_dataloader_knows_the_length(data):
    assert len(DataLoader(data.pipeline().batch(16), batch_size=None)) == 3
    with pytest.raises(TypeError, match=r"count\(\)"):
        len(data.pipeline().filter(lambda td: td["x"] > 3))


def test_what_a_loader_holds_can_tell_its_position(data):
    """As the stateful loader of torchdata asks for it, in each of its processes."""
    pipeline = data.pipeline().shuffle(1).batch(4)
    fetcher = _IterableDatasetFetcher(pipeline, False, default_convert, False)
    assert len(fetcher.fetch([None])) == 4
    saved = fetcher.dataset_iter.state_dict()
    rest = rows_of(fetcher.fetch([None]) for _ in range(9))
    again = _IterableDatasetFetcher(pipeline, False, default_convert, False)
    again.dataset_iter.load_state_dict(saved)
    assert rows_of(again.fetch([None]) for _ in range(9)) == rest


def test_dataloader_workers_that_spawn(data):
    pipeline = data.pipeline().filter(lambda td: td["x"] != 3).batch(10)
    loader = DataLoader(pipeline, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert sorted(rows_of(loader)) == [row for row in range(40) if row != 3]


def test_random_streams_do_not_depend_on_workers(data, workers):
    pipeline = data.pipeline(seed=11).shuffle(4).batch(6).map(noisy)
    here = torch.cat(list(pipeline.iter(num_workers=0)))
    there = torch.cat(list(pipeline.iter(**workers)))
    assert torch.equal(here["noise"], there["noise"])
    assert not torch.equal(here["noise"][:6], here["noise"][6:12])
    other = torch.cat(list(pipeline.iter(epoch=1, **workers)))
    assert not torch.equal(here["noise"], other["noise"])
    assert here["x"].tolist() != other["x"].tolist()


def test_a_state_of_another_pipeline_is_refused(data):
    saved = data.pipeline().batch(4).iter(num_workers=0).state_dict()
    other = data.pipeline().batch(5).iter(num_workers=0)
    with pytest.raises(ValueError, match=r"it was .*batch\(4\)(.|\n)*this is .*batch\(5\)"):
        other.load_state_dict(saved)
    with pytest.raises(ValueError, match="lacks"):
        other.load_state_dict({"version": saved["version"]})
    with pytest.raises(ValueError, match="version 1, and this library reads 4"):
        other.load_state_dict({"version": 1})
    assert len(list(other)) == 8


def test_a_pickled_pipeline_is_the_same(data):
    least = 7
    pipeline = data.pipeline(seed=1).concat(data.pipeline().map(noisy).select("x", "image")).shuffle(2)
    pipeline = pipeline.map(noisy).filter(lambda td: td["x"] > least).batch(5)
    again = pickle.loads(pickle.dumps(pipeline))
    assert repr(again) == repr(pipeline)
    first, second = (torch.cat(list(p.iter(num_workers=2))) for p in (pipeline, again))
    assert torch.equal(first["noise"], second["noise"])


def test_leaving_the_loop_frees_the_workers(data):
    with tdmap.WorkerPool(2) as pool:
        for _ in range(3):
            for _batch in data.pipeline().batch(2).iter(pool=pool):
                break
        assert len(list(data.pipeline().batch(2).iter(pool=pool))) == 20


def test_a_closed_iterator_ends_and_keeps_its_position(data, workers):
    batches = data.pipeline().batch(2)
    elements = batches.iter(**workers)
    first = next(elements)["x"].tolist()
    elements.close()
    assert list(elements) == [] and len(elements) == 19
    later = batches.iter(**workers)
    later.load_state_dict(elements.state_dict())
    elements.load_state_dict(later.state_dict())
    rest = [batch["x"].tolist() for batch in later]
    assert [batch["x"].tolist() for batch in elements] == rest
    assert sum([first, *rest], []) == list(range(40))


def test_no_more_batches_than_asked_for_are_ahead(data, tmp_path):
    def noted(td):
        (tmp_path / str(int(td["x"][0]))).touch()
        return td

    elements = data.pipeline().batch(2).map(noted).iter(num_workers=2, prefetch=3)
    next(elements)
    elements.close()
    assert len(list(tmp_path.iterdir())) <= 1 + 3


def test_batches_may_be_anything(data, workers):
    pairs = data.pipeline().batch(16).map(lambda td: (td["image"], td["x"], "name"))
    images, rows, name = next(iter(pairs.iter(**workers)))
    assert images.shape == (16, 3, 4) and rows.tolist() == list(range(16)) and name == "name"


def test_the_state_of_an_iteration_without_a_seed_holds_the_one_that_it_drew():
    data = TensorDict({"x": torch.arange(60)}, [60])
    pipeline = data.pipeline().shuffle(0).map(noisy).batch(10)
    epoch = pipeline.iter(num_workers=2)
    next(epoch)
    saved = epoch.state_dict()
    rest = [batch["noise"].tolist() for batch in epoch]
    later = pipeline.iter(num_workers=1)
    later.load_state_dict(saved)
    assert [batch["noise"].tolist() for batch in later] == rest
    assert [batch["noise"].tolist() for batch in pipeline.iter(num_workers=0)][1:] != rest
    torch.manual_seed(3)
    first = [batch["noise"].tolist() for batch in pipeline.iter(num_workers=0)]
    torch.manual_seed(3)
    assert [batch["noise"].tolist() for batch in pipeline.iter(num_workers=0)] == first


SOURCES = {
    "mapped": lambda data, folder: data.memmap(folder),
    "loaded": lambda data, folder: TensorDict.load_memmap(data.memmap(folder).saved_path),
    "open": lambda data, folder: tdmap.open(str(data.memmap(folder).saved_path)),
    "shared": lambda data, folder: data.share_memory_(),
    "a result": lambda data, folder: tdmap.map(data, lambda rows: rows, num_workers=1),
}


@pytest.mark.parametrize("source", list(SOURCES))
def test_dataloader_workers_send_rows_that_lie_in_files(source, tmp_path):
    rows = TensorDict({"x": torch.arange(40), "label": [f"row {n}" for n in range(40)]}, [40])
    pipeline = SOURCES[source](rows, str(tmp_path / "data")).pipeline()
    for chain in (pipeline.batch(16), pipeline.map(lambda rows: rows).batch(16), pipeline.take(40).batch(16)):
        batches = list(DataLoader(chain, batch_size=None, num_workers=2, timeout=300))
        assert sorted(rows_of(batches)) == list(range(40))
        assert all(
            label == f"row {x}"
            for batch in batches
            for x, label in zip(batch["x"].tolist(), batch["label"], strict=True)
        )
    single = [row["x"].item() for row in DataLoader(pipeline, batch_size=None, num_workers=2, timeout=300)]
    assert sorted(single) == list(range(40))


def test_the_same_epoch_once_more_is_warned_of(data):
    shuffled = data.pipeline().shuffle(seed=0).batch(8)
    list(shuffled.iter(num_workers=0))
    with pytest.warns(UserWarning, match="iterated once more with the order"):
        list(shuffled.iter(num_workers=0))
    shuffled.set_epoch(0)
    plain = data.pipeline().batch(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(shuffled.iter(num_workers=0))  # said to be so
        list(shuffled.iter(num_workers=0, epoch=0))
        saved = shuffled.iter(num_workers=0, epoch=1).state_dict()
        later = shuffled.iter(num_workers=0)
        later.load_state_dict(saved)  # goes on where another one was
        list(later)
        list(shuffled.take(2).iter(num_workers=0))  # another pipeline
        for _ in range(2):
            list(plain.iter(num_workers=0))  # no order to repeat


def test_rows_of_another_kind_are_refused_when_pipelines_are_joined(data):
    data = data.select("x")
    rows = data.pipeline()
    other = TensorDict({"w": torch.arange(3)}, [3]).pipeline()
    with pytest.raises(tdmap.errors.OutputMismatch, match="the second one has also \\['w'\\] and lacks \\['x'\\]"):
        rows.concat(other.take(2))
    with pytest.raises(tdmap.errors.OutputMismatch, match="float64"):
        rows.concat(TensorDict({"x": torch.zeros(3, dtype=torch.float64)}, [3]).pipeline().shuffle(1))
    assert rows.concat(data[:3].pipeline()).count() == 43
    assert rows.concat(other.map(lambda chunk: TensorDict({"x": chunk["w"]}, chunk.batch_size))).count() == 43


CONSUMED = {
    "batches": lambda p: p.batch(8),
    "rows": lambda p: p,
    "a function that gives its rows back": lambda p: p.map(lambda td: td).batch(8),
    "a filter that keeps all": lambda p: p.filter(lambda td: td["x"] >= 0).batch(8),
    "parts of rows": lambda p: p.batch(8).map(lambda td: (td["x"][1:], {"image": td["image"]})),
}


@pytest.mark.parametrize("chain", list(CONSUMED))
@pytest.mark.parametrize("source", ["in memory", "in files"])
def test_who_writes_into_a_batch_changes_no_row_of_the_dataset(data, workers, chain, source, tmp_path):
    data = data.memmap(tmp_path / "data") if source == "in files" else data
    before = data.clone()
    for element in CONSUMED[chain](data.pipeline()).iter(**workers):
        for tensor in tensors_in(element):
            tensor.fill_(1)
    assert (data == before).all()


def test_who_writes_into_a_batch_of_a_loader_finds_the_rows_again(data):
    loader = DataLoader(data.pipeline().batch(8), batch_size=None, num_workers=1, persistent_workers=True)
    for _ in range(2):
        got = []
        for batch in loader:
            got += batch["x"].tolist()
            batch["x"].fill_(-1)
        assert got == list(range(40))
