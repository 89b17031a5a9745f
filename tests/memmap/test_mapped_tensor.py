"""MemoryMappedTensor: where its memory is, what keeps its type, and how it travels."""

import copy
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from tensordict_lite import DatasetError, MemoryMappedTensor, TensorDict
from tensordict_lite.memmap import region_of
from tests import interpreters
from tests.descriptors import descriptors


@pytest.fixture
def mapped(tmp_path: Path) -> MemoryMappedTensor:
    return MemoryMappedTensor.from_tensor(torch.arange(24.0).view(4, 6), filename=tmp_path / "x.memmap")


def test_content_is_in_the_file(mapped: MemoryMappedTensor) -> None:
    mapped[1] = -1.0
    raw = np.fromfile(mapped.filename, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(raw, mapped.numpy())
    assert raw[1].tolist() == [-1.0] * 6


def test_compiled_functions_read_mapped_tensors(mapped: MemoryMappedTensor) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x[0] + x[1:].sum(0) + x.view(-1)[0] + x.unbind(0)[2]

    compiled = torch.compile(fn, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(mapped), fn(torch.arange(24.0).view(4, 6)))


VIEWS = {
    "int": lambda x: x[1],
    "slice": lambda x: x[1:3],
    "ellipsis": lambda x: x[..., 2],
    "tuple": lambda x: x[1:, 2],
    "none": lambda x: x[None],
    "unbind": lambda x: x.unbind(1)[2],
    "split": lambda x: x.split(2)[1],
    "chunk": lambda x: x.chunk(2, 1)[1],
    "reshape": lambda x: x.reshape(2, 12),
    "view": lambda x: x.view(-1),
    "t": lambda x: x.t(),
    "permute": lambda x: x.permute(1, 0),
    "flatten": lambda x: x.flatten(),
    "iter": lambda x: list(x)[2],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_know_their_file_and_travel_as_a_name(mapped: MemoryMappedTensor, name: str) -> None:
    view = VIEWS[name](mapped)
    assert isinstance(view, MemoryMappedTensor)
    assert view.filename == mapped.filename
    blob = pickle.dumps(view)
    assert len(blob) < 600
    again = pickle.loads(blob)
    assert torch.equal(again, view)
    again.add_(100)  # the same memory, not a copy
    assert torch.equal(again, view)


@pytest.mark.parametrize(
    "op",
    [
        lambda x: x + 1,
        lambda x: x.clone(),
        lambda x: x[torch.tensor([0, 2])],
        lambda x: x[x > 3],
        lambda x: torch.stack([x, x]),
        lambda x: x.reshape(6, 4).t().reshape(-1),
        lambda x: copy.deepcopy(x),
    ],
)
def test_copies_are_plain_tensors(mapped: MemoryMappedTensor, op) -> None:
    assert type(op(mapped)) is torch.Tensor


@pytest.mark.parametrize("rows", [[0, 3, 3], [-1, 2], []])
def test_sampling_rows_gives_what_a_plain_tensor_gives(mapped: MemoryMappedTensor, rows: list[int]) -> None:
    index = torch.tensor(rows, dtype=torch.int64)
    assert torch.equal(mapped[index], mapped.clone()[index])


def test_sampling_out_of_range_is_an_error(mapped: MemoryMappedTensor) -> None:
    with pytest.raises(IndexError):
        mapped[torch.tensor([4])]


def test_other_process_sees_and_writes_the_same_memory(mapped: MemoryMappedTensor) -> None:
    anonymous = MemoryMappedTensor.zeros(3, 2, dtype=torch.int64)
    blob = pickle.dumps((mapped[1:3], anonymous[1]))
    code = (
        "import pickle,sys; f, a = pickle.loads(bytes.fromhex(sys.argv[1])); f.fill_(7); a.fill_(8); "
        "f2, a2 = pickle.loads(bytes.fromhex(sys.argv[1])); "
        "assert f2.data_ptr() == f.data_ptr() and a2.data_ptr() == a.data_ptr(), 'mapped twice'"
    )
    interpreters.run(["-c", code, blob.hex()], check=True)
    assert mapped[1:3].eq(7).all() and not mapped[0].eq(7).any()
    assert anonymous.tolist() == [[0, 0], [8, 8], [0, 0]]


def test_anonymous_memory_leaves_nothing_behind() -> None:
    before = descriptors()
    x = MemoryMappedTensor.ones(1000)
    (own,) = descriptors() - before
    row = x[3:5].view(-1).add_(1)
    handle = region_of(row).handle
    with pytest.raises(RuntimeError, match="no file"):
        _ = x.filename
    del x
    assert MemoryMappedTensor.from_handler(handle, torch.float32, (1000,))[:5].tolist() == [1, 1, 1, 2, 2]
    del row
    assert own not in descriptors()
    with pytest.raises(DatasetError, match="released"):
        handle.open()


def test_forked_child_does_not_close_the_memory_of_its_parent() -> None:
    x = MemoryMappedTensor.zeros(4)
    child = os.fork()
    if child == 0:
        try:
            x.fill_(3)
            del x
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert pickle.loads(pickle.dumps(x)).tolist() == [3.0] * 4


def test_an_existing_file_and_a_copy_elsewhere_need_permission(mapped: MemoryMappedTensor, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="already exists"):
        MemoryMappedTensor.zeros(2, filename=mapped.filename)
    with pytest.raises(RuntimeError, match="copy_existing"):
        MemoryMappedTensor.from_tensor(mapped, filename=tmp_path / "y.memmap")
    assert MemoryMappedTensor.from_tensor(mapped, filename=mapped.filename) is mapped
    other = MemoryMappedTensor.from_tensor(mapped, filename=tmp_path / "y.memmap", copy_existing=True)
    assert other.filename != mapped.filename and torch.equal(other, mapped)


def test_tensors_that_have_no_place_in_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="requires_grad"):
        MemoryMappedTensor.from_tensor(torch.ones(2, requires_grad=True), filename=tmp_path / "x")
    with pytest.raises(TypeError, match="ndarray"):
        MemoryMappedTensor.from_tensor(np.ones(2), filename=tmp_path / "x")
    with pytest.raises(RuntimeError, match="CPU"):
        MemoryMappedTensor.zeros(2, device="meta")
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    for path in (None, tmp_path / "x"):
        with pytest.raises(TypeError, match="int_repr"):
            MemoryMappedTensor.from_tensor(quantized, filename=path)
        with pytest.raises(TypeError, match="int_repr"):
            MemoryMappedTensor.empty(3, dtype=torch.quint8, filename=path)
    assert not os.listdir(tmp_path)


def test_mapping_checks_the_file(mapped: MemoryMappedTensor, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="96 bytes"):
        MemoryMappedTensor.from_filename(mapped.filename, torch.float32, (5, 6))
    with pytest.raises(FileNotFoundError):
        MemoryMappedTensor.from_filename(tmp_path / "none", torch.float32, (5, 6))
    with pytest.raises(ValueError, match="negative"):
        MemoryMappedTensor.from_filename(mapped.filename, torch.float32, (-1,))
    assert sorted(os.listdir(tmp_path)) == ["x.memmap"]
    assert os.path.getsize(mapped.filename) == 96


def test_no_room_says_how_much_and_leaves_nothing(tmp_path: Path) -> None:
    for where in (None, tmp_path / "big"):
        with pytest.raises(OSError, match=r"4,398,046,511,104 bytes are needed and [\d,]+ are available"):
            MemoryMappedTensor.empty(1 << 40, filename=where)
    with pytest.raises(OSError, match="bytes are needed"):
        MemoryMappedTensor.from_tensor(torch.zeros(1).expand(1 << 40), filename=tmp_path / "big")
    assert os.listdir(tmp_path) == []


def test_blocks_are_reserved(tmp_path: Path) -> None:
    x = MemoryMappedTensor.empty(1 << 20, filename=tmp_path / "x")
    assert os.stat(x.filename).st_blocks * 512 >= 4 << 20


def test_read_mode_is_copy_on_write(mapped: MemoryMappedTensor) -> None:
    private = MemoryMappedTensor.from_filename(mapped.filename, torch.float32, (4, 6), mode="r")
    private.fill_(-5)
    assert private.filename == mapped.filename
    assert mapped.min() == 0
    os.chmod(mapped.filename, 0o444)
    if os.geteuid():
        with pytest.raises(PermissionError):
            MemoryMappedTensor.from_filename(mapped.filename, torch.float32, (4, 6), mode="r+")


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(tmp_path: Path, layout: torch.layout) -> None:
    parts = [torch.arange(6.0).view(2, 3), torch.ones(4, 3), torch.zeros(0, 3)]
    nested = torch.nested.nested_tensor(parts, layout=layout)
    x = MemoryMappedTensor.from_tensor(nested, filename=tmp_path / "x.memmap")
    again = pickle.loads(pickle.dumps(x))
    for tensor in (x, again):
        assert isinstance(tensor, MemoryMappedTensor) and tensor.is_nested
        for a, b in zip(tensor.unbind(), parts, strict=True):
            assert torch.equal(a, b)
    x.unbind()[1].fill_(9)
    assert again.unbind()[1].eq(9).all()
    assert sorted(os.listdir(tmp_path)) == ["x.memmap", "x.shape.memmap"]


def test_making_by_shape_and_like(tmp_path: Path) -> None:
    assert MemoryMappedTensor.zeros(2, 3).shape == (2, 3)
    assert MemoryMappedTensor.ones((2, 3), dtype=torch.int8).sum() == 6
    assert MemoryMappedTensor.full(2, fill_value=7, dtype=torch.int64).tolist() == [7, 7]
    assert MemoryMappedTensor.full_like(torch.zeros(3, dtype=torch.bool), True).all()
    assert MemoryMappedTensor.empty_like(torch.zeros(3), filename=tmp_path / "e").filename == str(tmp_path / "e")
    assert MemoryMappedTensor.from_tensor(torch.ones(1), filename=tmp_path / "s", shape=(3, 4)).sum() == 12
    assert MemoryMappedTensor.zeros(0, 3, filename=tmp_path / "z").shape == (0, 3)
    nested = MemoryMappedTensor.ones(torch.tensor([[2, 3], [1, 5]]))
    assert [tuple(part.shape) for part in nested.unbind()] == [(2, 3), (1, 5)]


def test_replaced_file_is_not_confused_with_the_old_one(mapped: MemoryMappedTensor) -> None:
    blob = pickle.dumps(mapped)
    keep = pickle.loads(blob)
    MemoryMappedTensor.from_tensor(torch.ones(4, 6), filename=mapped.filename, existsok=True)
    assert pickle.loads(blob).eq(1).all()
    assert torch.equal(keep, torch.arange(24.0).view(4, 6))


@pytest.mark.parametrize("make", ["empty", "zeros", "ones"])
def test_a_size_is_needed(make: str) -> None:
    for call in (lambda: getattr(MemoryMappedTensor, make)(), lambda: getattr(MemoryMappedTensor, make)(*())):
        with pytest.raises(TypeError, match="the size is missing"):
            call()
    with pytest.raises(TypeError, match="the size is missing"):
        MemoryMappedTensor.full(fill_value=2)
    assert getattr(MemoryMappedTensor, make)(()).shape == getattr(MemoryMappedTensor, make)(shape=()).shape == ()


@pytest.mark.parametrize("make", ["empty", "zeros", "ones"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_handler_of_a_nested_one_opens_it(make: str) -> None:
    shapes = torch.tensor([[2], [3]])
    first = getattr(MemoryMappedTensor, make)(shapes)
    again = MemoryMappedTensor.from_handler(first.handler, torch.float32, shapes)
    again.unbind(0)[1].fill_(5)
    assert again.is_nested and first.unbind(0)[1].sum() == 15


@pytest.mark.parametrize("count", [1, 3, 40])
def test_the_handler_of_an_entry_opens_that_entry(count: int) -> None:
    """Many entries share one piece of memory."""
    tree = TensorDict({str(n): torch.full((n + 1, 2), n) for n in range(count)}).memmap_()
    for number in range(count):
        entry = tree[str(number)]
        again = MemoryMappedTensor.from_handler(entry.handler, torch.int64, (number + 1, 2))
        assert again.data_ptr() == entry.data_ptr() and torch.equal(again, entry)
        row = MemoryMappedTensor.from_handler(entry[number:].handler, torch.int64, (2,))
        assert row.data_ptr() == entry[number].data_ptr()
