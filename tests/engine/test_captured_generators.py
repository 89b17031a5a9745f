"""Generators that a function holds are seeded by chunk, as the global streams are.

With a seed the numbers are the same for any number of workers, and the caller's generator is as it was. Without one,
no number comes twice.
"""

import functools
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import tdmap
from tensordict_lite import TensorDict

from .conftest import POOL

ROWS = 120
module_rng = np.random.default_rng(0)


def draw(generator: Any, count: int) -> torch.Tensor:
    """float64 `[count]`."""
    if isinstance(generator, torch.Generator):
        return torch.rand(count, generator=generator, dtype=torch.float64)
    if isinstance(generator, random.Random):
        return torch.tensor([generator.random() for _ in range(count)], dtype=torch.float64)
    if isinstance(generator, np.random.BitGenerator):
        generator = np.random.Generator(generator)
    return torch.from_numpy(generator.normal(size=count))


GENERATORS: dict[str, Callable[[], Any]] = {
    "default_rng": lambda: np.random.default_rng(0),
    "Generator of Philox": lambda: np.random.Generator(np.random.Philox(0)),
    "RandomState": lambda: np.random.RandomState(0),
    "RandomState of PCG64": lambda: np.random.RandomState(np.random.PCG64(0)),
    "BitGenerator": lambda: np.random.PCG64(0),
    "Random": lambda: random.Random(0),
    "torch.Generator": lambda: torch.Generator().manual_seed(0),
}


def rows_of(chunk: Any, noise: torch.Tensor) -> TensorDict:
    return TensorDict({"noise": noise}, chunk.batch_size)


def by_closure(generator: Any) -> Any:
    return lambda chunk: rows_of(chunk, draw(generator, len(chunk)))


def by_default(generator: Any) -> Any:
    def fn(chunk: Any, generator: Any = generator, *, other: Any = None) -> Any:
        return rows_of(chunk, draw(generator, len(chunk)))

    return fn


class Holder:
    def __init__(self, generator: Any) -> None:
        self.parts = {"noise": [(generator,)]}

    def __call__(self, chunk: Any) -> Any:
        return rows_of(chunk, draw(self.parts["noise"][0][0], len(chunk)))

    def method(self, chunk: Any) -> Any:
        return self(chunk)


class Slotted(Holder):
    __slots__ = ("generator",)

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __call__(self, chunk: Any) -> Any:
        return rows_of(chunk, draw(self.generator, len(chunk)))


def with_argument(chunk: Any, held: Any) -> Any:
    return rows_of(chunk, draw(held[0], len(chunk)))


def by_function(generator: Any) -> Any:
    inner = by_closure(generator)

    @functools.wraps(inner)
    def fn(chunk: Any) -> Any:
        return inner(chunk)

    return fn


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "closure": by_closure,
    "default": by_default,
    "object": Holder,
    "slots": Slotted,
    "method": lambda generator: Holder(generator).method,
    "partial": lambda generator: functools.partial(with_argument, held=[generator]),
    "function": by_function,
}


def of_module(chunk: Any) -> Any:
    return rows_of(chunk, draw(module_rng, len(chunk)))


@pytest.fixture
def data() -> TensorDict:
    return TensorDict({"i": torch.arange(ROWS)}, [ROWS])


def noise_of(data: TensorDict, fn: Any, **options: Any) -> torch.Tensor:
    found: torch.Tensor = tdmap.map(data, fn, chunksize=10, **options)["noise"]
    return found


def repeats(noise: torch.Tensor) -> int:
    return len(noise) - len(noise.unique())


CASES = [
    *((kind, "closure") for kind in GENERATORS),
    *(("default_rng", holder) for holder in HOLDERS if holder != "closure"),
    ("module", "module"),
]


@pytest.mark.parametrize("workers", ["threads", "fork", "forkserver", POOL], indirect=True)
@pytest.mark.parametrize(("kind", "holder"), CASES)
def test_what_a_function_holds_is_seeded_by_chunk(
    data: TensorDict, workers: dict[str, Any], kind: str, holder: str
) -> None:
    generator = module_rng if kind == "module" else GENERATORS[kind]()
    fn = of_module if kind == "module" else HOLDERS[holder](generator)
    # By another one that is in the same state: what the caller draws next.
    before = draw_state(generator)
    here = noise_of(data, fn, num_workers=0, seed=1)
    assert draw_state(generator) == before
    there = noise_of(data, fn, **workers, seed=1)
    assert torch.equal(here, there) and repeats(here) == 0
    assert draw_state(generator) == before
    other = noise_of(data, fn, **workers, seed=2)
    assert repeats(torch.cat([here, other])) == 0
    unseeded = [noise_of(data, fn, **workers) for _ in range(2)] + [noise_of(data, fn, num_workers=0)]
    assert repeats(torch.cat(unseeded)) == 0


def draw_state(generator: Any) -> str:
    if isinstance(generator, torch.Generator):
        return str(generator.get_state().tolist())
    if isinstance(generator, random.Random):
        return str(generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return str(generator.get_state(legacy=False))
    return str(getattr(generator, "bit_generator", generator).state)


def test_two_generators_draw_other_numbers(data: TensorDict) -> None:
    first, second = np.random.default_rng(0), np.random.default_rng(0)

    def fn(chunk: Any) -> Any:
        return rows_of(chunk, draw(first, len(chunk)) - draw(second, len(chunk)))

    assert bool((noise_of(data, fn, num_workers=2, seed=1) != 0).all())


PIPELINES: dict[str, Callable[[Any, Any], Any]] = {
    "map": lambda p, fn: p.map(fn).batch(8),
    "batches": lambda p, fn: p.batch(8).map(fn),
    "after a buffer": lambda p, fn: p.shuffle(buffer=16, seed=1).map(fn).batch(8),
    "joined": lambda p, fn: p.map(fn).concat(p.map(fn)).batch(8),
    "zipped": lambda p, fn: p.zip(p.map(fn)).batch(8),
}


@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_epochs_of_a_pipeline_draw_other_numbers(data: TensorDict, make: Any) -> None:
    stage = make(data.pipeline(seed=0), by_closure(np.random.default_rng(0)))

    def noise(num_workers: int, epoch: int) -> torch.Tensor:
        return torch.cat([batch["noise"] for batch in stage.iter(num_workers=num_workers, epoch=epoch)])

    here = [noise(0, epoch) for epoch in (0, 1)]
    assert all(torch.equal(mine, noise(2, epoch)) for epoch, mine in enumerate(here))
    assert repeats(torch.cat(here)) == 0
    loaded = [batch["noise"] for batch in DataLoader(stage, batch_size=None, num_workers=2)]
    assert repeats(torch.cat(loaded)) == 0


def test_a_generator_of_a_module_that_is_imported(data: TensorDict, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "helping.py").write_text("import numpy as np\nrng = np.random.default_rng(0)\n")
    (tmp_path / "drawing.py").write_text(
        "import helping, torch\n"
        "def noise(n): return torch.from_numpy(helping.rng.random(n))\n"
        "def fn(chunk): return {'noise': noise(len(chunk))}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import drawing  # type: ignore[import-not-found]

    found = [noise_of(data, drawing.fn, num_workers=n, mp_start_method="forkserver", seed=1) for n in (1, 2)]
    assert torch.equal(*found) and repeats(found[0]) == 0
    assert repeats(noise_of(data, drawing.fn, num_workers=2)) == 0
    for name in ("drawing", "helping"):
        sys.modules.pop(name)
