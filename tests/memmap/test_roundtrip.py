"""Saving and loading: content, structure, state of the result, and both directions with the reference."""

import math
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import tensordict as reference
import torch

from tensordict_lite import DatasetError, MemoryMappedTensor, TensorDict
from tensordict_lite.memmap.disk.files import BLOCK
from tests.descriptors import descriptors

DTYPES = sorted(
    {d for d in vars(torch).values() if isinstance(d, torch.dtype) and not str(d).startswith("torch.q")}, key=str
)
SHARED_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip
ODD_KEYS = [
    "weird/key", "a.b", "sp ace", "ünï", "..", ".", "", "meta", "100%", "a%2Fb", "C:\\x", "A", "\n", "\x7f", "%",
    "~-_!*'();:@&=+$,#[]<>|?", "-x", ".hidden", "trail.", "x.memmap", "CON", "😀", "a" * 200,
]  # fmt: skip
EITHER = pytest.mark.parametrize("name", ["d", "d.tdz"])
RESERVED = ["shape", "device", "_type", "_class", "_format_version", "_names", "_entries"]


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    raw = torch.randint(0, 255, (*shape, dtype.itemsize), dtype=torch.uint8)
    if dtype is torch.bool:
        raw = raw % 2
    out = torch.empty(shape, dtype=dtype)
    as_bytes(out).copy_(raw.reshape(-1))
    return out


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, whatever its dtype; NaNs compare."""
    tensor = tensor.as_subclass(torch.Tensor)
    size = tensor.numel() * tensor.element_size()
    start = tensor.storage_offset() * tensor.element_size()
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage(), start, (size,))


def assert_same(ours, theirs) -> None:
    assert tuple(ours.batch_size) == tuple(theirs.batch_size)
    assert sorted(ours.keys()) == sorted(theirs.keys())
    for key in ours.keys():
        a, b = ours.get(key), theirs.get(key)
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype and a.shape == b.shape, key
            if a.numel():
                assert torch.equal(as_bytes(a), as_bytes(b.contiguous())), key
        else:
            assert_same(a, b)


def sample(cls=TensorDict):
    return cls(
        {
            "a": torch.arange(3),
            "b": {"c": torch.randn(3, 2), "d": {"e": torch.ones(3, 1, dtype=torch.bool)}},
            "empty": cls({}, [3]),
            "none": torch.zeros(3, 0),
        },
        [3],
    )


def test_dataset_is_equal_after_a_round_trip(tmp_path: Path) -> None:
    td = sample()
    mapped = td.memmap(tmp_path / "data")
    assert mapped.is_memmap() and mapped.is_locked and mapped["b", "d"].is_memmap()
    assert mapped.saved_path == tmp_path / "data" and mapped["b"].saved_path == tmp_path / "data" / "b"
    assert not td.is_memmap() and not td.is_locked and type(td["a"]) is torch.Tensor
    assert mapped.device == torch.device("cpu")
    loaded = TensorDict.load_memmap(tmp_path / "data")
    assert not loaded.is_memmap() and not loaded.is_locked
    assert isinstance(loaded["b", "d", "e"], MemoryMappedTensor)
    for out in (mapped, loaded):
        assert_same(out, td)
    loaded["b", "c"].fill_(4)
    assert mapped["b", "c"].eq(4).all() and not td["b", "c"].eq(4).any()
    assert sorted(os.listdir(tmp_path)) == ["data"]


@pytest.mark.parametrize("direction", ["ours to theirs", "theirs to ours"])
@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_keys_cross_over(tmp_path: Path, key: str, direction: str) -> None:
    save, load = (
        (TensorDict, reference.TensorDict) if direction.startswith("ours") else (reference.TensorDict, TensorDict)
    )
    content = {key: torch.arange(2), "sub": {key: {key + "x": torch.ones(2)}}}
    save(content, [2]).memmap(tmp_path / "d")
    out = load.load_memmap(tmp_path / "d")
    assert out[key].tolist() == [0, 1]
    assert out["sub", key, key + "x"].tolist() == [1, 1]
    names = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")}
    other = tmp_path / "other"
    load(content, [2]).memmap(other / "d")
    assert names == {str(p.relative_to(other)) for p in other.rglob("*")}  # the same file names


@pytest.mark.parametrize("key", RESERVED)
def test_keys_that_the_metadata_uses_are_kept(tmp_path: Path, key: str) -> None:
    td = TensorDict({key: torch.arange(3), "x": torch.ones(3), "sub": {key: {key: torch.zeros(3)}}}, [3])
    td.memmap(tmp_path / "d")
    assert_same(TensorDict.load_memmap(tmp_path / "d"), td)
    assert reference.TensorDict.load_memmap(tmp_path / "d")["x"].sum() == 3  # it drops the key, and reads the rest


@EITHER
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(tmp_path: Path, dtype: torch.dtype, name: str) -> None:
    shapes = {str(len(shape)): random_tensor(dtype, shape) for shape in ((), (3,), (0, 2), (2, 1, 3))}
    td = TensorDict({"odd": torch.ones(3, dtype=torch.uint8), "x": shapes}, [])
    td.memmap(tmp_path / name)
    assert_same(TensorDict.load_memmap(tmp_path / name), td)
    if dtype in SHARED_DTYPES:
        assert_same(td, reference.TensorDict.load_memmap(tmp_path / name))
        reference.TensorDict({"x": shapes}, []).memmap(tmp_path / f"r-{name}")
        assert_same(TensorDict.load_memmap(tmp_path / f"r-{name}"), td.select("x"))


def test_metadata_is_byte_for_byte_that_of_the_reference(tmp_path: Path) -> None:
    sample().memmap(tmp_path / "ours")
    sample(reference.TensorDict).memmap(tmp_path / "theirs")
    for path in (tmp_path / "theirs").rglob("meta.json"):
        ours = tmp_path / "ours" / path.relative_to(tmp_path / "theirs")
        assert ours.read_text() == path.read_text()


def test_names_and_batch_sizes_cross_over(tmp_path: Path) -> None:
    content = {"a": torch.zeros(3, 4)}
    for cls, other in ((TensorDict, reference.TensorDict), (reference.TensorDict, TensorDict)):
        folder = tmp_path / cls.__module__
        cls({**content, "b": cls({"c": torch.zeros(3, 4)}, [3, 4])}, [3], names=["t"]).memmap(folder)
        out = other.load_memmap(folder)
        assert list(out.names) == ["t"] and list(out["b"].names) == ["t", None]
        assert tuple(out["b"].batch_size) == (3, 4)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).view(2, 3).t(),
        torch.arange(12).view(3, 4)[:, ::2],
        torch.ones(1).expand(3, 5),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3, dtype=torch.complex64).conj().imag,
        torch.randn(3, requires_grad=True),
        torch.nn.Parameter(torch.randn(3, 2)),
        torch.randn(6)[3:],
    ],
    ids=["transposed", "strided", "expanded", "conj", "neg", "grad", "parameter", "offset"],
)
def test_memory_layouts(tmp_path: Path, tensor: torch.Tensor) -> None:
    TensorDict({"x": tensor}, [3]).memmap(tmp_path / "d")
    for cls in (TensorDict, reference.TensorDict):
        out = cls.load_memmap(tmp_path / "d")["x"]
        assert not out.requires_grad
        assert torch.equal(out, tensor.detach().resolve_conj().resolve_neg())


def test_large_strided_tensors_are_written_in_blocks(tmp_path: Path) -> None:
    assert BLOCK < 17 << 20
    shapes = (1 << 16, 70), (80, 400, 150), (1, 1, 1 << 16, 70)
    large = [torch.arange(math.prod(shape), dtype=torch.int32).view(shape) for shape in shapes]
    for tensor in (large[0].t(), large[1].permute(2, 0, 1), large[2].mT):
        td = TensorDict({"x": tensor}, [])
        assert torch.equal(td.memmap(tmp_path / "d")["x"], tensor)


@pytest.mark.parametrize(
    ("tensor", "word"),
    [
        (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "quantized"),
        (torch.eye(3).to_sparse(), "to_dense"),
        (torch.eye(3).to_sparse_csr(), "to_dense"),
        (torch.ones(3, device="meta"), "meta device"),
        (
            torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged).transpose(1, 2),
            r"transpose\(1, 2\)",
        ),
    ],
    ids=["quantized", "sparse", "csr", "meta", "jagged elsewhere"],
)
def test_tensors_without_a_file_form_are_named_and_nothing_is_written(tmp_path: Path, tensor, word: str) -> None:
    with pytest.raises(TypeError, match=rf"\('sub', 'x'\).*{word}"):
        TensorDict({"sub": {"x": tensor}}, []).memmap(tmp_path / "d")
    with pytest.raises(TypeError, match=rf"\('sub', 'x'\).*{word}"):
        TensorDict({"sub": {"x": tensor}}, []).memmap(tmp_path / "x.tdz")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "content",
    [
        {"x.memmap": {"a": torch.zeros(1)}, "x": torch.ones(1)},
        {"meta.json": {"a": torch.zeros(1)}},
        {"x": torch.nested.nested_tensor([torch.ones(2)]), "x.shape": torch.ones(1)},
    ],
    ids=["folder and file", "metadata", "table of shapes"],
)
def test_keys_that_would_share_a_file_are_refused(tmp_path: Path, content) -> None:
    with pytest.raises(RuntimeError, match="taken by"):
        TensorDict(content, []).memmap(tmp_path / "d")
    assert os.listdir(tmp_path) == []


@EITHER
def test_keys_as_they_are_with_robust_key_false(tmp_path: Path, name: str) -> None:
    td = TensorDict({"sp ace": torch.zeros(1), "b c": {"d e": torch.ones(1)}}, [])
    td.memmap(tmp_path / name, robust_key=False)
    assert name != "d" or sorted(os.listdir(tmp_path / "d")) == ["b c", "meta.json", "sp ace.memmap"]
    for robust in (False, True):
        assert_same(TensorDict.load_memmap(tmp_path / name, robust_key=robust), td)
    with pytest.raises(RuntimeError, match="robust_key"):
        TensorDict({"../x": torch.zeros(1)}).memmap(tmp_path / "e", robust_key=False)


def test_sub_folder_and_subpath(tmp_path: Path) -> None:
    sample().memmap(tmp_path)
    for out in (
        TensorDict.load_memmap(tmp_path / "b" / "d"),
        TensorDict.load_memmap(tmp_path, subpath="b/d"),
        TensorDict.load_memmap(tmp_path, subpath=("b", "d")),
    ):
        assert list(out.keys()) == ["e"]
    with pytest.raises(ValueError, match="No tensordict found under subpath"):
        TensorDict.load_memmap(tmp_path, subpath="b/x")


@EITHER
def test_meta_device_and_fake_mode_open_nothing_but_metadata(tmp_path: Path, name: str) -> None:
    from torch._subclasses import FakeTensorMode

    sample().memmap(tmp_path / name)
    for file in (tmp_path / name).rglob("*.memmap"):
        file.unlink()
    meta = TensorDict.load_memmap(tmp_path / name, device="meta")
    assert meta.device.type == "meta" and meta["b", "c"].device.type == "meta" and meta["b", "c"].shape == (3, 2)
    with FakeTensorMode():
        fake = TensorDict.load_memmap(tmp_path / name)
        assert type(fake["a"]).__name__ == "FakeTensor" and fake["a"].dtype is torch.int64


@EITHER
def test_load_into_another_collection(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    sample().memmap(path)
    out = TensorDict({"a": torch.zeros(3), "extra": torch.zeros(3), "b": {"c": torch.zeros(3, 2)}}, [3])
    sub = out["b"]
    assert TensorDict.load_memmap(path, out=out) is out
    assert out["b"] is sub and "extra" not in out.keys()
    assert_same(out, TensorDict.load_memmap(path))


def test_read_mode_does_not_reach_the_files(tmp_path: Path) -> None:
    sample().memmap(tmp_path)
    TensorDict.load_memmap(tmp_path, mode="r")["a"].fill_(9)
    assert TensorDict.load_memmap(tmp_path)["a"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="mode"):
        TensorDict.load_memmap(tmp_path, mode="w")


def test_memmap_in_place(tmp_path: Path) -> None:
    td = sample()
    sub = td["b"]
    assert td.memmap_(tmp_path) is td and td["b"] is sub
    assert td.is_memmap() and td.is_locked and isinstance(sub["c"], MemoryMappedTensor)
    assert td.device == torch.device("cpu")
    with pytest.raises(RuntimeError, match="locked"):
        td["new"] = torch.zeros(3)
    td.unlock_()
    assert not td.is_memmap()
    with pytest.raises(AttributeError):
        _ = td.saved_path
    td["new"] = torch.ones(3)
    td.memmap_(tmp_path)
    assert_same(TensorDict.load_memmap(tmp_path), td)


def test_anonymous_memmap(tmp_path: Path) -> None:
    td = sample()
    mapped = td.memmap()
    assert mapped.is_memmap() and mapped.saved_path is None
    again = mapped.memmap()
    assert again["a"] is mapped["a"] and again["b", "c"] is mapped["b", "c"]
    assert_same(mapped, td)
    file_backed = td.memmap(tmp_path)
    assert file_backed.memmap()["a"] is file_backed["a"]
    loaded = TensorDict.load_memmap(tmp_path).memmap_()
    assert loaded.saved_path == tmp_path


def test_many_anonymous_leaves_take_few_descriptors() -> None:
    content = {f"{i}": random_tensor(SHARED_DTYPES[i % len(SHARED_DTYPES)], (3, i % 5)) for i in range(3000)}
    td = TensorDict({**content, "sub": {"grad": torch.randn(3, requires_grad=True)}}, [3])
    before = descriptors()
    mapped = td.memmap()
    assert 1 <= len(descriptors() - before) <= 2
    assert_same(mapped.exclude("sub"), td.exclude("sub"))
    assert mapped.memmap()["7"] is mapped["7"]
    again = pickle.loads(pickle.dumps(mapped))
    again["7"].zero_()
    assert not mapped["7"].any() and torch.equal(mapped["8"], td["8"])
    like = td.memmap_like()
    assert not like["11"].any() and like["11"].dtype == td["11"].dtype
    own = descriptors() - before
    assert len(own) <= 4
    del mapped, again, like
    assert not own & descriptors()


def test_mapped_elsewhere_needs_permission(tmp_path: Path) -> None:
    mapped = sample().memmap(tmp_path / "a")
    with pytest.raises(RuntimeError, match=r"file associated.*\('a',\) is memory-mapped already.*copy_existing=True"):
        mapped.memmap(tmp_path / "b")
    assert os.listdir(tmp_path) == ["a"]
    copied = mapped.memmap(tmp_path / "b", copy_existing=True)
    assert copied["a"].filename == str(tmp_path / "b" / "a.memmap")
    with pytest.raises(RuntimeError, match="copy_existing"):
        TensorDict.load_memmap(tmp_path / "a")[:2].memmap(tmp_path / "c")
    assert_same(TensorDict.load_memmap(tmp_path / "a")[:2].memmap(tmp_path / "c", copy_existing=True), mapped[:2])


def test_part_of_a_dataset_can_replace_it(tmp_path: Path) -> None:
    td = sample()
    td.memmap(tmp_path / "a")
    TensorDict.load_memmap(tmp_path / "a")[1:].memmap(tmp_path / "a", copy_existing=True)
    assert_same(TensorDict.load_memmap(tmp_path / "a"), td[1:])


def test_existing_files(tmp_path: Path) -> None:
    td = sample()
    td.memmap(tmp_path)
    with pytest.raises(RuntimeError, match="already exists"):
        td.memmap(tmp_path, existsok=False)
    other = TensorDict({"other": torch.zeros(3)}, [3])
    for save in (other.memmap, other.clone().memmap_, other.memmap_like):
        with pytest.raises(RuntimeError, match="already holds a dataset: pass existsok=True"):
            save(tmp_path, existsok=False)
    assert_same(TensorDict.load_memmap(tmp_path), td)
    new = TensorDict({"a": torch.full((3,), 7), "only": torch.zeros(3)}, [3])
    old = TensorDict.load_memmap(tmp_path)
    new.memmap(tmp_path)
    assert_same(TensorDict.load_memmap(tmp_path), new)
    assert old["a"].tolist() == [0, 1, 2]  # who had it open keeps what it opened
    assert sorted(os.listdir(tmp_path)) == ["a.memmap", "meta.json", "only.memmap"]


def test_memmap_like(tmp_path: Path) -> None:
    datum = TensorDict({"image": torch.ones(3, 8, dtype=torch.uint8), "meta": {"xy": torch.ones(2)}}, [])
    data = datum.expand(1000).memmap_like(tmp_path)
    assert data.is_memmap() and data["image"].shape == (1000, 3, 8) and not data["image"].any()
    assert os.stat(tmp_path / "image.memmap").st_blocks * 512 >= 24_000
    data["image"].fill_(3)
    again = datum.expand(1000).memmap_like(tmp_path)
    assert again["image"].eq(3).all()
    grown = datum.expand(2000).memmap_like(tmp_path)
    assert grown["image"][:1000].eq(3).all() and not grown["image"][1000:].any() and not descriptors(tmp_path)
    head = datum.expand(10).memmap_like(tmp_path)
    assert head["image"].shape[0] == 10
    assert TensorDict.load_memmap(tmp_path)["image"].eq(3).all()
    assert reference.TensorDict.load_memmap(tmp_path)["image"].shape == (10, 3, 8)
    assert datum.expand(5).memmap_like().saved_path is None


@pytest.mark.parametrize("method", ["memmap", "memmap_", "memmap_like", "save", "dumps"])
def test_threads_and_early_return(tmp_path: Path, method: str) -> None:
    td = TensorDict({str(i): torch.full((100,), i) for i in range(50)}, [])
    future = getattr(td, method)(tmp_path / "d", num_threads=4, return_early=True)
    out = future.result()
    assert future.done() and out.is_memmap()
    if method != "memmap_like":
        assert [int(out[str(i)][7]) for i in range(50)] == list(range(50))
    assert_same(TensorDict.load(tmp_path / "d"), out)


def test_new_entries_in_a_mapped_collection(tmp_path: Path) -> None:
    td = sample().memmap(tmp_path)
    x = td.make_memmap("x", (3, 2), dtype=torch.int32)
    assert td["x"] is x and td.is_locked and td.is_memmap()
    y = td.make_memmap_from_tensor(("deep", "er", "y"), torch.ones(3))
    assert td["deep", "er"].is_memmap() and td["deep", "er"].is_locked
    storage = torch.UntypedStorage.from_file(str(tmp_path / "b" / "z.memmap"), shared=True, nbytes=12)
    td.make_memmap_from_storage(("b", "z"), storage, (3,), dtype=torch.int32).fill_(5)
    x.fill_(4)
    loaded = TensorDict.load_memmap(tmp_path)
    assert loaded["x"].eq(4).all() and torch.equal(loaded["deep", "er", "y"], y) and loaded["b", "z"].eq(5).all()
    assert reference.TensorDict.load_memmap(tmp_path)["deep", "er", "y"].sum() == 3
    with pytest.raises(RuntimeError, match="exists already"):
        td.make_memmap("x", (3,))
    with pytest.raises(RuntimeError, match="batch size"):
        td.make_memmap("w", (4,))
    with pytest.raises(RuntimeError, match="make_memmap_from_tensor"):
        td.make_memmap_from_storage("v", torch.ones(3).untyped_storage(), (3,))
    with pytest.raises(RuntimeError, match="memory-mapped collection"):
        sample().make_memmap("x", (3,))
    with pytest.raises(RuntimeError, match="whole dataset"):
        loaded[:2].make_memmap("v", (2,))
    loaded.make_memmap("late", (3,)).fill_(7)
    loaded.make_memmap(("deep", "late"), (3,)).fill_(8)
    again = TensorDict.load_memmap(tmp_path)
    assert_same(again, loaded)
    assert again["late"].eq(7).all() and again["deep", "late"].eq(8).all() and again["x"].eq(4).all()
    anonymous = sample().memmap()
    assert anonymous.make_memmap(("n", "x"), (3,)).sum() == 0 and anonymous["n"].is_memmap()


def test_refresh_sees_what_another_process_saved(tmp_path: Path) -> None:
    td = TensorDict({"a": torch.zeros(3)}).memmap(tmp_path)
    TensorDict({"a": torch.ones(3), "b": torch.ones(3)}).memmap(tmp_path)
    assert td.memmap_refresh_() is td
    assert sorted(td.keys()) == ["a", "b"] and td["a"].sum() == 3 and td.is_memmap()
    with pytest.raises(RuntimeError, match="not memory-mapped"):
        TensorDict.load_memmap(tmp_path).memmap_refresh_()


@EITHER
def test_load_in_place(tmp_path: Path, name: str) -> None:
    TensorDict({"a": torch.ones(3)}).save(tmp_path / name)
    td = TensorDict({"a": torch.zeros(3), "b": torch.zeros(3)})
    assert td.load_memmap_(tmp_path / name) is td
    assert list(td.keys()) == ["a"] and td["a"].sum() == 3 and not td.is_memmap()


def test_shared_memory_and_memmap_do_not_mix(tmp_path: Path) -> None:
    td = sample().share_memory_()
    with pytest.raises(RuntimeError, match="mutually exclusive"):
        td.memmap_(tmp_path)
    assert_same(td.memmap(tmp_path), td)


@pytest.mark.parametrize("value", ["yes", 1, "False"])
def test_only_a_bool_allows_pickles(tmp_path: Path, value: Any) -> None:
    td = TensorDict({"a": torch.ones(2)}, [2])
    with pytest.raises(TypeError, match="allow_pickle is True, False or None"):
        td.memmap(tmp_path / "x", allow_pickle=value)
    td.memmap(tmp_path / "y")
    with pytest.raises(TypeError, match="allow_pickle is True, False or None"):
        TensorDict.load_memmap(tmp_path / "y", allow_pickle=value)


@pytest.mark.parametrize("name", ["model", "model.tdz"])
def test_layers_of_the_same_metadata_are_trees_of_their_own(tmp_path, name):
    """Their metadata is parsed once, and says nothing about where the data is."""
    layers = {f"layer{n}": {"norm": {"w": torch.full((2, 3), float(n))}, "s": "text"} for n in range(4)}
    TensorDict(layers, [2]).memmap(tmp_path / name)
    loaded = TensorDict.load_memmap(tmp_path / name)
    assert all((loaded[f"layer{n}", "norm", "w"] == n).all() for n in range(4))
    loaded.unlock_()
    loaded["layer1", "norm", "more"] = torch.zeros(2)
    loaded["layer1"].names = ["rows"]
    assert list(loaded["layer2", "norm"].keys()) == ["w"] and loaded["layer2"].names == [None]
    if name == "model":
        (tmp_path / name / "layer3" / "norm" / "w.memmap").unlink()
        with pytest.raises(DatasetError, match="layer3/norm/w.memmap"):
            TensorDict.load_memmap(tmp_path / name)
