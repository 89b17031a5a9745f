"""Programs of the kind that the reference's tutorials teach, with either library: loaders over pictures, stores."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tensordict
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tensordict_lite

ROWS, BATCH, CLASSES = 70, 16, 5


@tensordict_lite.tensorclass
class Pictures:
    images: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def from_dataset(cls, dataset: Any, folder: Path) -> Any:
        return _filled(cls, dataset, folder)


@tensordict.tensorclass
class ReferencePictures:
    images: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def from_dataset(cls, dataset: Any, folder: Path) -> Any:
        return _filled(cls, dataset, folder)


def _filled(cls: Any, dataset: Any, folder: Path) -> Any:
    """A mapped tensorclass of the rows of a dataset, which come one by one or in batches."""
    image = dataset[0][0]
    data = cls(
        images=torch.zeros(len(dataset), *image.shape),
        targets=torch.zeros(len(dataset), dtype=torch.long),
        batch_size=[len(dataset)],
    ).memmap_like(folder)
    first = 0
    for images, targets in DataLoader(dataset, batch_size=BATCH):
        rows = slice(first, first + len(images))
        data[rows] = cls(images=images, targets=targets, batch_size=[len(images)])
        first += len(images)
    return data


CLASSES_OF = {tensordict: ReferencePictures, tensordict_lite: Pictures}


class Moved(nn.Module):
    """A collate function that augments the batch on its way to the device, as a module does."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def forward(self, batch: Any) -> Any:
        batch = batch.to(self.device)
        batch.images = batch.images.flip(-1) * 2 - 1
        return batch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, CLASSES))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def pictures() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(ROWS, 1, 8, 8, generator=generator)
    return TensorDataset(images, torch.randint(CLASSES, (ROWS,), generator=generator))


def as_it_is(batch: Any) -> Any:
    return batch


def trained_by_key(library: ModuleType, folder: Path) -> list[float]:
    """A mapped collection, a loader whose batches are collections, a module that writes its output beside them."""
    images, targets = pictures().tensors
    data = library.TensorDict({"images": images, "targets": targets}, [ROWS]).memmap(folder)
    torch.manual_seed(0)
    module = library.nn.TensorDictModule(Net(), in_keys=["images"], out_keys=["predictions"])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for batch in DataLoader(data, batch_size=BATCH, shuffle=True, collate_fn=as_it_is):
            batch = module(batch)
            loss = nn.functional.cross_entropy(batch["predictions"], batch["targets"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def trained_by_attribute(library: ModuleType, folder: Path) -> list[float]:
    """The same with a tensorclass, batches that a collate function moves, and workers."""
    data = CLASSES_OF[library].from_dataset(pictures(), folder)
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        loader = DataLoader(data, batch_size=BATCH, shuffle=True, collate_fn=Moved(torch.device("cpu")), num_workers=2)
        for batch in loader:
            assert batch.batch_size == batch.targets.shape and isinstance(batch, CLASSES_OF[library])
            loss = nn.functional.cross_entropy(net(batch.images), batch.targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def evaluated(library: ModuleType, folder: Path) -> list[Any]:
    """Rows, slices, stacks, splits and reshapes of a tensorclass that is opened again, and scores of a loader of it."""
    kind = CLASSES_OF[library]
    kind.from_dataset(pictures(), folder)
    data = kind.load_memmap(folder)
    found: list[Any] = [data.shape, data[3].targets.item(), data[::7].images.sum().item(), data.reshape(7, 10).shape]
    found += [part.targets.tolist() for part in data.split(32)]
    found += [library.stack([data[0], data[9]]).images.shape, library.cat([data[:2], data[5:7]]).targets.tolist()]
    torch.manual_seed(0)
    net, right = Net().eval(), 0
    with torch.no_grad():
        for batch in DataLoader(data, batch_size=BATCH):
            right += (net(batch.images).argmax(-1) == batch.targets).sum().item()
    return [*found, right]


def stored_in_zarr(library: ModuleType, folder: Path) -> list[Any]:
    """A store that is written, read by rows, compressed by chunks, packed into one file, and filled bit by bit."""
    zarr = pytest.importorskip("zarr")
    images, targets = pictures().tensors
    data = library.TensorDict(
        {"images": images, "n": {"targets": targets}, "word": [str(n) for n in range(ROWS)]}, [ROWS]
    )
    stored = data.to_zarr(folder / "all.zarr", chunks=(BATCH,), compressors=zarr.codecs.ZstdCodec(level=3))
    opened = library.TensorDict.from_zarr(folder / "all.zarr")
    found: list[Any] = [type(each).__name__ for each in (stored, opened, opened["n"], opened[:3].to_tensordict())]
    found += [opened.batch_size, opened["n"].batch_size, sorted(map(str, opened.keys(True)))]
    found += [opened[5:8]["n", "targets"].tolist(), opened[5:8].get("word").tolist(), opened["images"].sum().item()]
    found += [opened.to_tensordict()["images"].equal(images), list(opened["word"][:2])]
    array = zarr.open_group(str(folder / "all.zarr"), mode="r")["images"]
    found += [array.chunks, [type(codec).__name__ for codec in array.compressors]]
    stored["n", "targets"] = stored["n", "targets"] + 1
    found.append(opened["n", "targets"].tolist())
    with zarr.storage.ZipStore(folder / "one.zip", mode="w") as store:
        data.select("images", "n").to_zarr(store)
    with zarr.storage.ZipStore(folder / "one.zip", mode="r") as store:
        found += [library.from_zarr(store)["n", "targets"].tolist(), library.from_zarr(store).batch_size]
    schema = {"images": ([1, 8, 8], torch.float32), "targets": ([], torch.int64)}
    buffer = library.TensorDict.from_schema(schema, batch_size=[ROWS], storage="zarr", filename=folder / "buffer.zarr")
    found.append(buffer["targets"].tolist())
    for first in range(0, ROWS, BATCH):
        rows = slice(first, first + BATCH)
        buffer[rows] = library.TensorDict({"images": images[rows], "targets": targets[rows]}, [len(images[rows])])
    again = library.from_zarr(folder / "buffer.zarr", mode="r")
    return [*found, type(buffer).__name__, again.batch_size, again["images"].equal(images), again["targets"].tolist()]


@pytest.mark.parametrize("program", [trained_by_key, trained_by_attribute, evaluated, stored_in_zarr])
def test_the_program_computes_the_same_with_both_libraries(program: Any, tmp_path: Path) -> None:
    found, expected = (program(library, tmp_path / library.__name__) for library in (tensordict_lite, tensordict))
    assert found == expected
