"""Pipelines in plain Python: a list of numbers for rows, a list of lists for batches."""

from typing import Any

import torch
from hypothesis import strategies as st

from tdmap.pipeline.rows import epoch_seed, permutation
from tensordict_lite import TensorDict

ROWS = 23


def dataset() -> TensorDict:
    """Rows that are their own number, twice."""
    return TensorDict({"x": torch.arange(ROWS), "y": torch.arange(ROWS) * 10}, [ROWS])


def plus(td: Any) -> Any:
    """Row-wise, and it needs no particular shape."""
    return td.apply(lambda value: value + 1)


def not_third(td: Any) -> Any:
    """A predicate of rows."""
    return td["x"] % 3 != 0


def even_sum(td: Any) -> Any:
    """A predicate of batches."""
    return bool(td["x"].sum() % 2 == 0)


def copies(td: Any) -> Any:
    """Each row as often as its number modulo three."""
    return td[torch.repeat_interleave(torch.arange(len(td["x"])), td["x"] % 3)]


def backwards(td: Any) -> Any:
    """A function of a batch as a whole."""
    return td.flip(0) if hasattr(td, "flip") else td[torch.arange(len(td["x"]) - 1, -1, -1)]


def apply(pipeline: Any, stages: list[tuple[Any, ...]]) -> Any:
    """The pipeline with these stages."""
    for name, *arguments in stages:
        if name in ("concat", "zip"):
            other = apply(dataset().pipeline(), arguments[0])
            if name == "zip":
                other = other.map(lambda td: TensorDict({"z": td["x"]}, td.batch_size))
            pipeline = getattr(pipeline, name)(other)
        else:
            pipeline = getattr(pipeline, name)(*arguments)
    return pipeline


def evaluate(stages: list[tuple[Any, ...]], epoch: int = 0) -> list[Any]:
    """What these stages give, as numbers, or lists of numbers."""
    if not stages:
        return list(range(ROWS))
    *before, (name, *arguments) = stages
    if name == "repeat":
        return [value for turn in range(arguments[0]) for value in evaluate(before, epoch * arguments[0] + turn)]
    values = evaluate(before, epoch)
    return _STEPS[name](values, epoch, *arguments)


def _batch(values: list[int], epoch: int, size: int, drop: bool) -> list[list[int]]:
    batches = [values[at : at + size] for at in range(0, len(values), size)]
    return batches[:-1] if drop and batches and len(batches[-1]) < size else batches


def _shuffle(values: list[int], epoch: int, seed: int) -> list[int]:
    return [values[row] for row in permutation(len(values), epoch_seed(seed, epoch)).tolist()]


def _plus(values: list[Any], epoch: int, fn: Any) -> list[Any]:
    if values and isinstance(values[0], list):
        return [batch[::-1] if fn is backwards else [v + 1 for v in batch] for batch in values]
    return [value + 1 for value in values]


_STEPS: dict[str, Any] = {
    "map": _plus,
    "map_rows": _plus,
    "filter": lambda values, epoch, fn: [v for v in values if (sum(v) % 2 == 0 if isinstance(v, list) else v % 3 != 0)],
    "flat_map": lambda values, epoch, fn: [value for value in values for _ in range(value % 3)],
    "select": lambda values, epoch, *keys: values,
    "take": lambda values, epoch, n: values[:n],
    "skip": lambda values, epoch, n: values[n:],
    "shard": lambda values, epoch, i, n: values[len(values) * i // n : len(values) * (i + 1) // n],
    "shuffle": _shuffle,
    "batch": _batch,
    "unbatch": lambda values, epoch: [value for batch in values for value in batch],
    "concat": lambda values, epoch, stages: values + evaluate(stages, epoch),
    "zip": lambda values, epoch, stages: values,
}


def numbers(elements: Any) -> list[Any]:
    """The same, of what a pipeline gave."""
    return [element["x"].tolist() for element in elements]


# -- random chains -------------------------------------------------------------------------------------

small = st.integers(0, 9)
picks = st.one_of(
    st.tuples(st.just("map"), st.just(plus)),
    st.tuples(st.just("map_rows"), st.just(plus)),
    st.tuples(st.just("take"), st.integers(0, 30)),
    st.tuples(st.just("skip"), small),
    st.tuples(st.just("shuffle"), small),
    st.integers(1, 3).flatmap(lambda n: st.tuples(st.just("shard"), st.integers(0, n - 1), st.just(n))),
)
changes = st.one_of(
    st.tuples(st.just("map"), st.just(plus)),
    st.tuples(st.just("filter"), st.just(not_third)),
    st.tuples(st.just("flat_map"), st.just(copies)),
    st.tuples(st.just("take"), st.integers(0, 30)),
    st.tuples(st.just("skip"), small),
    st.tuples(st.just("repeat"), st.integers(1, 3)),
    st.tuples(st.just("concat"), st.lists(picks, max_size=2)),
)
of_batches = st.one_of(
    st.tuples(st.just("map"), st.sampled_from([plus, backwards])),
    st.tuples(st.just("filter"), st.just(even_sum)),
    st.tuples(st.just("take"), small),
    st.tuples(st.just("skip"), st.integers(0, 3)),
    st.tuples(st.just("repeat"), st.integers(1, 2)),
)


@st.composite
def shuffled_parts(draw: Any) -> list[tuple[Any, ...]]:
    """Epochs of parts that have orders of their own, in batches that may hold rows of two epochs."""
    stages: list[tuple[Any, ...]] = [("shuffle", draw(small))]
    for _ in range(draw(st.integers(1, 2))):
        if len(stages) == 1 and draw(st.booleans()):
            stages.append(("zip", draw(st.sampled_from([[], [("shuffle", 4)]]))))
            stages.append(("select", "x", "y"))
        else:
            stages.append(("concat", [("shuffle", draw(small)), ("take", draw(st.integers(0, 30)))]))
        stages += draw(st.lists(picks, max_size=1))
    return [*stages, ("repeat", draw(st.integers(2, 3))), ("batch", draw(st.integers(1, 30)), draw(st.booleans()))]


@st.composite
def chains(draw: Any) -> list[tuple[Any, ...]]:
    """Stages in an order that makes sense."""
    if draw(st.integers(0, 4)) == 4:
        return [*draw(shuffled_parts()), *draw(st.lists(of_batches, max_size=2))]
    stages = [*draw(st.lists(picks, max_size=3)), *draw(st.lists(changes, max_size=3))]
    if draw(st.booleans()):
        stages.append(("batch", draw(st.integers(1, 6)), draw(st.booleans())))
        stages += draw(st.lists(of_batches, max_size=2))
        if draw(st.booleans()):
            stages += [("unbatch",), *draw(st.lists(changes, max_size=2))]
            if draw(st.booleans()):
                stages.append(("batch", draw(st.integers(1, 6)), False))
    return stages
