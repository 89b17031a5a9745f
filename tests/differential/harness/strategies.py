"""Random trees, indices, shapes and dims, each drawn as the Python source that makes it.

Drawing source rather than objects has two uses: both libraries build the very same thing, and a failing example
is already the line that reproduces it.
"""

import dataclasses
import math
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool", "complex64")
FLOATS = ("float32", "float64")


@dataclasses.dataclass(frozen=True)
class TreeSource:
    """The source of a tree and what is needed to draw arguments that fit it."""

    source: str
    batch_size: tuple[int, ...]


def examples(count: int) -> settings:
    """The same examples on every run and every machine."""
    return settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
    )


def leaf_source(shape: Sequence[int], dtype: str, start: int) -> str:
    """An expression for a tensor of ``shape`` and ``dtype`` that counts up from ``start``."""
    numbers = f"torch.arange({start}, {start + math.prod(shape)}).view({tuple(shape)})"
    if dtype == "bool":
        return f"({numbers} % 3 == 0)"
    if dtype == "uint8":
        return f"({numbers} % 200).to(torch.uint8)"
    return numbers if dtype == "int64" else f"{numbers}.to(torch.{dtype})"


@st.composite
def trees(
    draw: st.DrawFn,
    min_dims: int = 0,
    max_dims: int = 3,
    dtypes: Sequence[str] = DTYPES,
    named: bool = True,
    non_tensors: bool = True,
    empties: bool = True,
) -> TreeSource:
    """A tree of depth up to three, with empty and zero-sized parts now and then; it has at least one leaf."""
    sizes = st.sampled_from((1, 2, 2, 3, 3, 4, 0))
    batch = tuple(draw(st.lists(sizes, min_size=min_dims, max_size=max_dims)))
    names = None
    if named and batch and draw(st.booleans()):
        names = draw(st.permutations(("x", "y", "z", "w")))[: len(batch)]
        names = [None if draw(st.integers(0, 4)) == 0 else name for name in names]
    entries = draw(_entries(batch, 2, tuple(dtypes), non_tensors, empties))
    extra = f", names={list(names)}" if names and any(names) else ""
    return TreeSource(f"TD({entries}, {list(batch)}{extra})", batch)


@st.composite
def _entries(
    draw: st.DrawFn, batch: tuple[int, ...], depth: int, dtypes: tuple[str, ...], other: bool, empties: bool
) -> str:
    fewest = 0 if depth < 2 and empties else 1
    keys = draw(st.lists(st.sampled_from(("a", "b", "c", "d")), unique=True, min_size=fewest, max_size=3))
    parts = []
    for key in keys:
        kind = draw(st.sampled_from(("leaf", "leaf", "leaf", "tree", "text"))) if parts else "leaf"
        if kind == "tree" and depth:
            deeper = batch + tuple(draw(st.lists(st.sampled_from((1, 2)), max_size=1)))
            inner = draw(_entries(deeper, depth - 1, dtypes, other, empties))
            parts.append(f"{key!r}: TD({inner}, {list(deeper)})")
        elif kind == "text" and other:
            parts.append(f"{key!r}: {draw(st.sampled_from(('hello', 'bye')))!r}")
        else:
            shape = batch + tuple(draw(st.lists(st.sampled_from((1, 2, 3)), max_size=2)))
            parts.append(f"{key!r}: {leaf_source(shape, draw(st.sampled_from(dtypes)), draw(st.integers(0, 5)))}")
    return "{" + ", ".join(parts) + "}"


def dims(ndim: int) -> st.SearchStrategy[int]:
    """A dim for ``ndim`` dimensions: mostly valid, of either sign, sometimes one too far."""
    return st.integers(-ndim - 1, ndim) if ndim else st.sampled_from((0, -1))


@st.composite
def reshapes(draw: st.DrawFn, batch: tuple[int, ...]) -> list[int]:
    """A shape with as many elements as ``batch``, sometimes with a -1 in it, sometimes a wrong one."""
    left, shape = math.prod(batch), []
    for _ in range(draw(st.integers(0, 3))):
        divisors = [d for d in range(1, left + 1) if left % d == 0] or [0, 1]
        shape.append(draw(st.sampled_from(divisors)))
        left = left // shape[-1] if shape[-1] else left
    if left != 1 or not shape:
        shape.append(left)
    if draw(st.integers(0, 3)) == 0 and math.prod(batch):
        shape[draw(st.integers(0, len(shape) - 1))] = -1
    if draw(st.integers(0, 9)) == 0:
        shape.append(2)
    return shape


def _int_lists(size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(-size, size - 1), max_size=4) if size else st.just([])


@st.composite
def _item(draw: st.DrawFn, size: int) -> str:
    """One entry of an index that consumes one dimension of ``size``."""
    kinds = ("int", "slice", "slice", "list", "range", "numpy", "tensor", "mask", "0-d", "wide")
    kind = draw(st.sampled_from(kinds))
    if kind == "int" or (kind == "wide" and size == 0):
        slack = 1 if draw(st.integers(0, 5)) == 0 or not size else 0
        return str(draw(st.integers(-size - slack, size - 1 + slack)))
    if kind == "slice":
        low, high = (draw(st.none() | st.integers(-size - 1, size + 1)) for _ in range(2))
        step = draw(st.sampled_from((None, None, 1, 2)))
        return f"slice({low}, {high}, {step})"
    if kind == "range":
        return f"range({draw(st.integers(0, size))}, {draw(st.integers(0, size))})"
    if kind == "mask":
        flags = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        return f"torch.tensor({flags}, dtype=torch.bool)" if draw(st.booleans()) else f"np.array({flags}, dtype=bool)"
    if kind == "0-d":
        return f"torch.tensor({draw(st.integers(-size, max(size - 1, 0)))})"
    picks = draw(_int_lists(size))
    if kind == "list":
        return str(picks)
    if kind == "numpy":
        return f"np.array({picks}, dtype=np.int64)"
    if kind == "wide":
        return f"torch.tensor({[picks, picks[::-1]]}, dtype=torch.long)"
    return f"torch.tensor({picks}, dtype=torch.long)"


@st.composite
def indices(draw: st.DrawFn, batch: tuple[int, ...]) -> str:
    """An index of every kind that torch accepts, as source; now and then one that does not fit."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(("...", "None", "()", "True", "False", "slice(None)")))
    if batch and draw(st.integers(0, 7)) == 0:
        covered = batch[: draw(st.integers(1, len(batch)))]
        return f"(torch.arange({math.prod(covered)}).view({covered}) % 2 == 0)"
    count = draw(st.integers(1, max(len(batch), 1)))
    sizes = batch[:count] or (1,)
    items = [draw(_item(size)) for size in sizes]
    if draw(st.integers(0, 2)) == 0:
        items.insert(draw(st.integers(0, len(items))), draw(st.sampled_from(("None", "..."))))
    return items[0] if len(items) == 1 and draw(st.booleans()) else f"({', '.join(items)},)"
