"""Symbolic links: the root of a dataset may be one; nothing is written through any other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import (
    DatasetError,
    DatasetWriter,
    MemoryMappedTensor,
    NonTensorStack,
    TensorDict,
    lazy_stack,
    tensorclass,
)


@tensorclass
class Pair:
    a: Any
    n: Any


def _tree() -> TensorDict:
    return TensorDict({"a": torch.ones(3), "n": {"b": torch.ones(3)}}, [3])


SCHEMA = {("n", "b"): ([], torch.float32)}
SAVES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "memmap": (lambda root: _tree().memmap(root), "n"),
    "save": (lambda root: _tree().save(root), "n"),
    "memmap_": (lambda root: _tree().memmap_(root), "n"),
    "memmap_like": (lambda root: _tree().memmap_like(root), "n"),
    "threads": (lambda root: _tree().memmap(root, num_threads=2), "n"),
    "class": (lambda root: Pair.from_tensordict(_tree()).memmap(root), "_tensordict"),
    "lazy": (lambda root: lazy_stack([_tree(), _tree()]).memmap(root), "1"),
    "object": (lambda root: TensorDict({"s": "x"}, [2]).memmap(root), "s"),
    "objects": (lambda root: TensorDict({"s": NonTensorStack("x", "y")}, [2]).memmap(root), "s"),
    "from_schema": (lambda root: TensorDict.from_schema(SCHEMA, batch_size=[3], storage="memmap", prefix=root), "n"),
}


@pytest.mark.parametrize("name", SAVES)
def test_a_nested_folder_that_is_a_link_is_refused(name: str, tmp_path: Path) -> None:
    save, folder = SAVES[name]
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir(), root.mkdir()
    (root / folder).symlink_to(outside)
    with pytest.raises(RuntimeError, match="through a symlink"):
        save(root)
    assert not list(outside.iterdir()) and [path.name for path in root.iterdir()] == [folder]


@pytest.mark.parametrize("name", ["memmap", "memmap_like"])
def test_a_file_that_is_a_link_is_refused(name: str, tmp_path: Path) -> None:
    victim, root = tmp_path / "victim", tmp_path / "root"
    victim.write_bytes(b"x" * 12), root.mkdir()
    (root / "a.memmap").symlink_to(victim)
    with pytest.raises(RuntimeError, match=r"a\.memmap.*through a symlink"):
        SAVES[name][0](root)
    assert victim.read_bytes() == b"x" * 12 and (root / "a.memmap").is_symlink()


def test_an_old_dataset_is_kept_when_a_save_over_it_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    TensorDict({"a": torch.zeros(3)}, [3]).memmap(root)
    (tmp_path / "outside").mkdir()
    (root / "n").symlink_to(tmp_path / "outside")
    with pytest.raises(DatasetError, match="symlink"):
        _tree().memmap(root)
    assert TensorDict.load_memmap(root)["a"].tolist() == [0, 0, 0]
    assert sorted(path.name for path in root.iterdir()) == ["a.memmap", "meta.json", "n"]


def test_growing_a_dataset_refuses_links(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    data = TensorDict({"a": torch.ones(3)}, [3]).memmap(root)
    (root / "n").symlink_to(outside)
    with pytest.raises(RuntimeError, match="symlink"):
        data.make_memmap(("n", "b"), (3,))
    (tmp_path / "victim").write_bytes(b"x" * 12)
    (root / "c.memmap").symlink_to(tmp_path / "victim")
    with pytest.raises(RuntimeError, match="symlink"):
        data.make_memmap_from_tensor("c", torch.ones(3))
    assert not list(outside.iterdir()) and (tmp_path / "victim").read_bytes() == b"x" * 12


def test_a_writer_refuses_links(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir(), root.mkdir()
    (root / "n").symlink_to(outside)
    with pytest.raises(RuntimeError, match="symlink"), DatasetWriter(root, _tree()[0]) as writer:
        writer.append(_tree())
    assert not list(outside.iterdir())


@pytest.mark.parametrize(
    "make",
    [
        lambda path: MemoryMappedTensor.from_tensor(torch.ones(3), filename=path, existsok=True),
        lambda path: MemoryMappedTensor.empty(3, filename=path, existsok=True),
        lambda path: MemoryMappedTensor.full(3, fill_value=2.0, filename=path, existsok=True),
    ],
)
def test_a_mapped_tensor_is_not_made_over_a_link(make: Callable[[Path], Any], tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_bytes(b"x" * 12)
    link.symlink_to(victim)
    with pytest.raises(RuntimeError, match="symlink"):
        make(link)
    assert victim.read_bytes() == b"x" * 12
    assert MemoryMappedTensor.from_filename(link, torch.uint8, (12,)).tolist() == [ord("x")] * 12  # reading is fine


def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "there")
    for _ in range(2):
        _tree().memmap(tmp_path / "root")
        assert TensorDict.load_memmap(tmp_path / "there")["n", "b"].sum() == 3
    assert (tmp_path / "root").is_symlink()
