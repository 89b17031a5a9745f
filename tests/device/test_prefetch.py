"""Values are on the device when they are yielded, and their memory is let go of when it has been read."""

import collections
import functools
import gc
import itertools
import weakref

import pytest
import torch

from tdmap.ops.iteration.prefetch import prefetch_over, prefetch_to_device
from tensordict_lite import TensorDict, lazy_stack, tensorclass
from tests.device.fakelink import FakeLink


def numbered(count: int, size: int = 50):
    for number in range(count):
        yield torch.full((size,), float(number))


@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
def test_values_arrive_whole_and_in_order(fake, prefetch):
    for number, value in enumerate(prefetch_to_device(numbered(20), fake, prefetch)):
        assert torch.equal(value, torch.full((50,), float(number)))
    assert number == 19


def test_a_source_that_is_overwritten_after_its_turn_does_not_matter(links, fake):
    """As a slot that a worker fills again: the producer goes on only when the copy has been read."""
    ring = [torch.empty(64) for _ in range(3)]

    class Ring:
        """Lends its blocks, and takes them back when the last tensor over them has gone."""

        def __init__(self):
            self.free = collections.deque(range(3))
            self.count = 0

        def __iter__(self):
            return self

        def __next__(self):
            if self.count == 30:
                raise StopIteration
            number = self.free.popleft()
            ring[number].fill_(self.count)
            self.count += 1
            view = ring[number].view(64)
            weakref.finalize(view, self.give_back, number)
            for link in links:
                link.lock(view.data_ptr(), 256)
            return {"x": view}

        def give_back(self, number):
            ring[number].fill_(-1.0)
            self.free.append(number)

    got = [value["x"].clone() for value in prefetch_to_device(Ring(), fake, 1)]
    assert [float(x[0]) for x in got] == [float(x[-1]) for x in got] == list(range(30))
    assert links[0].pageable == 0


def kernels(link: FakeLink, prefetch: int, stop: int) -> list[torch.Tensor]:
    """What a consumer sees that only gives work to its stream, of blocks that come back when they have been read."""
    free, seen = collections.deque(torch.empty(64) for _ in range(prefetch + 2)), []

    def source():
        for number in range(20):
            block = free.popleft() if free else torch.empty(64)
            link.lock(block.data_ptr(), 256)
            block.fill_(number)
            view = block.view(64)
            weakref.finalize(view, free.append, block)
            yield view
            del view
        link.locked.clear()

    values = prefetch_over(link, source(), prefetch)
    for value in itertools.islice(values, stop):
        link.current.enqueue(functools.partial(lambda x: seen.append(x.clone()), value))
    values.close()
    link.settle()
    return seen


@pytest.mark.parametrize("stop", [5, 20, 30])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_source_is_let_go_of_when_it_has_been_read(prefetch, stop):
    for seed in range(10):
        seen = kernels(FakeLink(seed=seed, caller_streams=True, locked={}), prefetch, stop)
        assert [x.tolist() for x in seen] == [[float(n)] * 64 for n in range(min(stop, 20))]


def test_copies_read_page_locked_memory(links, fake):
    list(prefetch_to_device(numbered(5), fake))
    assert links[0].pageable == 0 and links[0].copied_bytes == 5 * 200


def test_any_structure_keeps_its_types(fake):
    point = collections.namedtuple("point", "x y")
    table = collections.defaultdict(list, rows=torch.arange(3))
    value = (1, "text", point(torch.ones(2), None), [torch.zeros(2, 0)], table, TensorDict({"a": {"b": torch.ones(3)}}))
    (got,) = prefetch_to_device([value], fake)
    assert got[:2] == (1, "text") and type(got[2]) is point and got[2].y is None
    assert torch.equal(got[2].x, torch.ones(2)) and got[3][0].shape == (2, 0)
    assert type(got[4]) is collections.defaultdict and got[4].default_factory is list
    assert torch.equal(got[4]["rows"], torch.arange(3)) and got[4] is not table
    assert torch.equal(got[5]["a", "b"], torch.ones(3)) and got[5] is not value[5]


def test_collections_keep_type_lock_and_other_entries_and_say_where_they_are(fake):
    td = TensorDict({"x": torch.arange(4), "name": "rows", "meta": TensorDict({"y": torch.ones(4)}, [4])}, [4]).lock_()
    (got,) = prefetch_to_device([td], fake)
    assert got.is_locked and got["name"] == "rows" and got.device == torch.device("cpu")
    assert got["meta"].batch_size == (4,) and torch.equal(got["x"], torch.arange(4))


def test_tensorclasses_and_lazy_stacks(fake):
    @tensorclass
    class Item:
        x: torch.Tensor
        name: str

    item = Item(x=torch.ones(3), name="a", batch_size=[3])
    stack = lazy_stack([TensorDict({"x": torch.ones(n)}, []) for n in (2, 3)])
    got, (rows,) = next(prefetch_to_device([(item, [stack])], fake))
    assert type(got) is Item and got.name == "a" and torch.equal(got.x, item.x)
    assert type(rows) is type(stack) and torch.equal(rows[1]["x"], torch.ones(3))


def test_dtypes_layouts_and_gradients(fake):
    strided = torch.arange(12.0).reshape(3, 4).t()
    sparse = torch.eye(3).to_sparse()
    leaf = torch.ones(2, requires_grad=True)
    values = [torch.tensor([True, False]), strided, torch.ones(1).expand(5), sparse, leaf, torch.ones(2).bfloat16()]
    got = next(prefetch_to_device([values], fake))
    for old, new in zip(values, got, strict=True):
        assert new.dtype == old.dtype and new.layout == old.layout and new.requires_grad == old.requires_grad
        assert torch.equal(new.to_dense(), old.detach().to_dense())


def test_the_first_value_does_not_wait_for_others(fake):
    taken = []

    def source():
        for number in range(6):
            taken.append(number)
            yield torch.tensor(number)

    values = prefetch_to_device(source(), fake, 2)
    seen = [(int(next(values)), len(taken)) for _ in range(4)]
    assert seen == [(0, 1), (1, 3), (2, 5), (3, 6)]


def test_an_exception_comes_after_the_values_before_it(fake):
    def source():
        yield from numbered(3)
        raise KeyError("third")

    got = []
    with pytest.raises(KeyError, match="third"):
        for value in prefetch_to_device(source(), fake, 5):
            got.append(float(value[0]))
    assert got == [0.0, 1.0, 2.0]


def test_leaving_the_loop_closes_the_source(fake):
    closed = []

    def source():
        try:
            yield from numbered(100)
        finally:
            closed.append(True)

    values = prefetch_to_device(source(), fake)
    next(values), next(values)
    values.close()
    assert closed


def test_a_yielded_value_is_not_kept(fake):
    values = prefetch_to_device(numbered(4), fake)
    first = weakref.ref(next(values))
    gc.collect()
    assert first() is None


def test_on_the_cpu_values_are_passed_on_as_they_are():
    td = TensorDict({"x": torch.ones(2)}, [2])
    assert next(prefetch_to_device([td], "cpu")) is td


@pytest.mark.parametrize("device", ["cuda:77", "meta", "nonsense", "mps", torch.device("meta"), "cuda:-1", 99])
def test_a_device_that_does_not_exist_is_an_error_at_once(device):
    with pytest.raises(ValueError, match="device") as caught:
        prefetch_to_device([torch.ones(1)], device)
    if "77" in str(device):
        assert "cuda:77 does not exist" in str(caught.value)
        assert f"{torch.cuda.device_count()} CUDA device" in str(caught.value)


@pytest.mark.parametrize("prefetch", [-1, 1.5, True, None])
def test_prefetch_out_of_range(prefetch):
    with pytest.raises(ValueError, match="prefetch"):
        prefetch_to_device([], "cpu", prefetch)
