"""The grid of ``core_ops --grid``: every operation at 0 to 3 batch dimensions, over kinds and layouts of trees; and
rollouts, as collectors of reinforcement learning write them.

A layout is a number of leaves and how deep they lie. Every kind of collection is built of the same tensors, and an
operation is one call on it; what the reference refuses (rows of a batch without dimensions, say) is left out.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks._core_cases import Call, CoreCase, Kit

SIZES = ((), (8,), (4, 2), (2, 2, 2))
WIDTH = 4


@dataclasses.dataclass(frozen=True)
class Layout:
    """``keys`` leaves in all, spread over ``levels`` nested levels."""

    keys: int
    levels: int

    @property
    def label(self) -> str:
        """As the table names it."""
        return f"{self.keys} keys" if self.levels == 1 else f"{self.keys} keys, {self.levels} deep"

    def names(self) -> list[tuple[str, ...]]:
        """The path of every leaf."""
        return [("n",) * (i * self.levels // self.keys) + (f"k{i}",) for i in range(self.keys)]


FLAT, WIDE, HUGE = Layout(1, 1), Layout(10, 1), Layout(100, 1)
NESTED, DEEP, TALL = Layout(10, 3), Layout(20, 20), Layout(100, 3)
LAYOUTS = {
    "TensorDict": (FLAT, WIDE, HUGE, NESTED, TALL, DEEP),
    "tensorclass": (FLAT, WIDE, NESTED),
    "lazy stack": (FLAT, WIDE, NESTED),
    "mapped": (FLAT, WIDE, NESTED),
}


def source(layout: Layout, size: tuple[int, ...]) -> dict[str, Any]:
    """Nested dicts of float tensors."""
    out: dict[str, Any] = {}
    for number, path in enumerate(layout.names()):
        node = out
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = torch.full((*size, WIDTH), float(number))
    return out


def build(kit: Kit, kind: str, layout: Layout, size: tuple[int, ...]) -> Any:
    """A collection of the kind."""
    if kind == "lazy stack":
        if not size:
            raise ValueError("a stack has a dimension")
        return kit.lib.lazy_stack([kit.TD(source(layout, size[1:]), size[1:]) for _ in range(size[0])], 0)
    td = kit.TD(source(layout, size), size)
    if kind == "tensorclass":
        return _class_of(kit, layout)(**dict(td.items()), batch_size=size)
    if kind == "mapped":
        folder = tempfile.TemporaryDirectory(prefix="core-grid-")
        _folders.append(folder)
        return td.memmap_(folder.name)
    return td


_folders: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def _class_of(kit: Kit, layout: Layout) -> Any:
    fields = dict.fromkeys(path[0] for path in layout.names())
    body = "\n".join(f"    {name}: {'TensorDict' if name == 'n' else 'torch.Tensor'}" for name in fields)
    scope = {"torch": torch, "tensorclass": kit.lib.tensorclass, "TensorDict": kit.TD, "__name__": "benchmarks"}
    name = f"Record{layout.keys}x{layout.levels}"  # its own: a folder names the class of what it holds
    exec(compile(f"@tensorclass\nclass {name}:\n{body}\n", "<grid>", "exec", dont_inherit=True), scope)
    return scope[name]


Operation = Callable[[Any, Kit, Layout, tuple[int, ...]], Call]
"""Makes the call to time: of a collection of the kind, with its kit, layout and batch size."""


def _on(call: Callable[[Any], Any]) -> Operation:
    return lambda td, kit, layout, size: lambda: call(td)


def _with_copy(call: Callable[[Any, Any], Any]) -> Operation:
    def make(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
        other = td.clone()
        return lambda: call(td, other)

    return make


def _last(layout: Layout) -> Any:
    path = layout.names()[-1]
    return path if len(path) > 1 else path[0]


def _construct(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
    if hasattr(td, "tensordicts"):
        members = list(td.tensordicts)
        return lambda: kit.lib.lazy_stack(members, 0)
    if not isinstance(td, kit.TD):
        fields, cls = dict(td.items()), type(td)
        return lambda: cls(**fields, batch_size=size)
    entries = source(layout, size)
    return lambda: kit.TD(entries, size)


def _get(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
    key = _last(layout)
    return lambda: td.get(key)


def _set(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
    key, value = _last(layout), torch.ones(*size, WIDTH)
    return lambda: td.set(key, value)


def _set_in_place(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
    key, value = _last(layout), torch.ones(*size, WIDTH)
    return lambda: td.set_(key, value)


def _assign(index: Callable[[tuple[int, ...]], Any], scalar: bool = False) -> Operation:
    def make(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
        at = _fitting(index, size)
        value = 0 if scalar else td[at].clone()
        return lambda: td.__setitem__(at, value)

    return make


def _index(index: Callable[[tuple[int, ...]], Any]) -> Operation:
    def make(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
        at = _fitting(index, size)
        return lambda: td[at]

    return make


def _joined(function: Callable[..., Any]) -> Operation:
    def make(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
        parts = [td.clone() for _ in range(3)]
        return lambda: function(parts, 0)

    return make


def _fitting(index: Callable[[tuple[int, ...]], Any], size: tuple[int, ...]) -> Any:
    """An index of batch dimensions that exist: one that cuts into the entries is refused here."""
    at = index(size)
    parts = at if isinstance(at, tuple) else (at,)
    if sum(part is not None and part is not Ellipsis for part in parts) > len(size):
        raise ValueError("more indices than batch dimensions")
    return at


def _rows(size: tuple[int, ...]) -> Any:
    if not size:
        raise ValueError("no rows")
    return size[0]


def _mask(size: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(_rows(size)) % 2 == 0


def _unflatten(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
    flat = td.flatten_keys(".")
    return lambda: flat.unflatten_keys(".")


def _select(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
    key = _last(layout)
    return lambda: td.select(key)


def _exclude(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
    key = _last(layout)
    return lambda: td.exclude(key)


def _squeezed(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
    wide = td.unsqueeze(0)
    return lambda: wide.squeeze(0)


def _save(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
    folder = tempfile.TemporaryDirectory(prefix="core-grid-")
    _folders.append(folder)
    number = itertools.count()
    return lambda: td.memmap(f"{folder.name}/{next(number)}", copy_existing=True)


def _save_over(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
    folder = tempfile.TemporaryDirectory(prefix="core-grid-")
    _folders.append(folder)
    return lambda: td.memmap(folder.name, copy_existing=True)


def _consolidate_to(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
    folder = tempfile.TemporaryDirectory(prefix="core-grid-")
    _folders.append(folder)
    number = itertools.count()
    return lambda: td.consolidate(f"{folder.name}/{next(number)}")


def _load(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
    folder = tempfile.TemporaryDirectory(prefix="core-grid-")
    _folders.append(folder)
    td.memmap(folder.name, copy_existing=True)
    return lambda: kit.TD.load_memmap(folder.name)


def _unlocked(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
    return lambda: td.lock_().unlock_()


def _shared(td: Any, kit: Kit, layout: Layout, size: tuple[int, ...]) -> Call:
    return lambda: td.clone().share_memory_()


tree_map = torch.utils._pytree.tree_map

OPERATIONS: dict[str, Operation] = {
    "construct": _construct,
    "get": _get,
    "set": _set,
    "set_": _set_in_place,
    "keys": _on(lambda td: list(td.keys(True, True))),
    "items": _on(lambda td: list(td.items())),
    "[int]": _index(lambda size: 0),
    "[slice]": _index(lambda size: slice(0, 2)),
    "[int, int]": _index(lambda size: (0, 0)),
    "[:, int]": _index(lambda size: (slice(None), 0)),
    "[..., int]": _index(lambda size: (..., 0)),
    "[tensor]": _index(lambda size: torch.tensor([0, 1])),
    "[mask]": _index(_mask),
    "[list]": _index(lambda size: [0, 1]),
    "[None]": _index(lambda size: None),
    "[int] =": _assign(lambda size: 0),
    "[slice] =": _assign(lambda size: slice(0, 2)),
    "[int, int] =": _assign(lambda size: (0, 0)),
    "[:, int] =": _assign(lambda size: (slice(None), 0)),
    "[tensor] =": _assign(lambda size: torch.tensor([0, 1])),
    "[mask] =": _assign(_mask),
    "[int] = 0": _assign(lambda size: 0, scalar=True),
    "clone": _on(lambda td: td.clone()),
    "clone(False)": _on(lambda td: td.clone(False)),
    "contiguous": _on(lambda td: td.contiguous()),
    "zeros_like": _on(torch.zeros_like),
    "ones_like": _on(torch.ones_like),
    "full_like": _on(lambda td: torch.full_like(td, 2.0)),
    "stack": _joined(torch.stack),
    "cat": _joined(torch.cat),
    "unbind": _on(lambda td: td.unbind(0)),
    "split": _on(lambda td: td.split(1)),
    "chunk": _on(lambda td: td.chunk(2)),
    "reshape": _on(lambda td: td.reshape(-1)),
    "view": _on(lambda td: td.view(-1)),
    "flatten": _on(lambda td: td.flatten(0, -1)),
    "permute": _on(lambda td: td.permute(*reversed(range(td.ndim)))),
    "unsqueeze": _on(lambda td: td.unsqueeze(0)),
    "squeeze": _squeezed,
    "expand": _on(lambda td: td.expand(3, *td.shape)),
    "flatten_keys": _on(lambda td: td.flatten_keys(".")),
    "unflatten_keys": _unflatten,
    "select": _select,
    "exclude": _exclude,
    "update": _with_copy(lambda td, other: td.update(other)),
    "update_": _with_copy(lambda td, other: td.update_(other)),
    "apply": _on(lambda td: td.apply(torch.neg)),
    "apply_": _on(lambda td: td.apply_(lambda t: t)),
    "+ 1": _on(lambda td: td + 1),
    "+ tree": _with_copy(lambda td, other: td + other),
    "add_": _on(lambda td: td.add_(1)),
    "exp": _on(lambda td: td.exp()),
    "== tree": _with_copy(lambda td, other: td == other),
    "> 0": _on(lambda td: td > 0),
    "sum": _on(lambda td: td.sum()),
    "sum(0)": _on(lambda td: td.sum(0)),
    "all": _on(lambda td: td.all()),
    "lock, unlock": _unlocked,
    "to(float64)": _on(lambda td: td.to(torch.float64)),
    "to(cpu)": _on(lambda td: td.to("cpu")),
    "detach": _on(lambda td: td.detach()),
    "tree_map": _on(lambda td: tree_map(torch.neg, td)),
    "share_memory_": _shared,
    "memmap": _save,
    "memmap, over another": _save_over,
    "consolidate": _on(lambda td: td.consolidate()),
    "consolidate to a file": _consolidate_to,
    "load_memmap": _load,
}

SLOW = ("share_memory_", "memmap", "memmap, over another", "consolidate to a file", "load_memmap")
"""Calls that open files: on small trees only."""


def _fits(operation: str, kind: str, layout: Layout) -> bool:
    if operation == "construct" and kind == "mapped":
        return False
    return operation not in SLOW or layout in (FLAT, WIDE, NESTED)


# -- rollouts --------------------------------------------------------------------------------------------------

STEPS = 16
ROLLOUTS = ((12, 32), (12, 256), (12, 4096), (128, 32), (128, 256))
"""Leaves, and environments."""
ROWS_OF_A_STEP = ("float32", "float32", "bool", "int64")
PATHS: tuple[tuple[str, ...], ...] = ((), ("next",), (), ("next", "agents"))

Tree = dict[str, Any]


def steps_tree(count: int, size: tuple[int, ...]) -> Tree:
    """Observations, rewards, flags and counters of some environments: floats, bools and integers on three levels."""
    out: Tree = {}
    for number in range(count):
        node = out
        for part in PATHS[number % 4]:
            node = node.setdefault(part, {})
        width = 17 if number % 4 == 0 else 1
        node[f"k{number}"] = torch.ones(*size, width, dtype=getattr(torch, ROWS_OF_A_STEP[number % 4]))
    return out


def _each(tree: Tree, others: list[Tree], call: Callable[[torch.Tensor, list[torch.Tensor]], Any]) -> None:
    """The loop over leaves that a program without a library writes."""
    for key, value in tree.items():
        column = [other[key] for other in others]
        if isinstance(value, dict):
            _each(value, column, call)
        else:
            call(value, column)


def _put_each(tree: Any, step: Any, at: Any, keys: list[Any]) -> None:
    for key in keys:
        tree.set_at_(key, step.get(key), at)


AT = (slice(None), 3)
# name: (shape of the tree and of a step for some environments, steps, the call, the same on a leaf)
WRITES: dict[str, tuple[Callable[[int], tuple[Any, Any]], int, Callable[..., Any], Callable[..., Any]]] = {
    "stack, out=": (
        lambda envs: ((STEPS, envs), (envs,)), STEPS,
        lambda tree, steps, keys: torch.stack(steps, 0, out=tree), lambda out, steps: torch.stack(steps, 0, out=out),
    ),
    "stack along time, out=": (
        lambda envs: ((envs, STEPS), (envs,)), STEPS,
        lambda tree, steps, keys: torch.stack(steps, 1, out=tree), lambda out, steps: torch.stack(steps, 1, out=out),
    ),
    "cat, out=": (
        lambda envs: ((STEPS * envs,), (envs,)), STEPS,
        lambda tree, steps, keys: torch.cat(steps, 0, out=tree), lambda out, steps: torch.cat(steps, 0, out=out),
    ),
    "[:, t] =": (
        lambda envs: ((envs, STEPS), (envs,)), 1,
        lambda tree, steps, keys: tree.__setitem__(AT, steps[0]), lambda out, steps: out.__setitem__(AT, steps[0]),
    ),
    "[:, t].copy_": (
        lambda envs: ((envs, STEPS), (envs,)), 1,
        lambda tree, steps, keys: tree[AT].copy_(steps[0]), lambda out, steps: out[AT].copy_(steps[0]),
    ),
    "update_at_": (
        lambda envs: ((envs, STEPS), (envs,)), 1,
        lambda tree, steps, keys: tree.update_at_(steps[0], AT), lambda out, steps: out.__setitem__(AT, steps[0]),
    ),
    "copy_at_": (
        lambda envs: ((envs, STEPS), (envs,)), 1,
        lambda tree, steps, keys: tree.copy_at_(steps[0], AT), lambda out, steps: out.__setitem__(AT, steps[0]),
    ),
    "set_at_ of each": (
        lambda envs: ((envs, STEPS), (envs,)), 1,
        lambda tree, steps, keys: _put_each(tree, steps[0], AT, keys),
        lambda out, steps: out.__setitem__(AT, steps[0]),
    ),
}  # fmt: skip


def rollout_cases() -> Iterator[CoreCase]:
    """Steps written into a tree that is there, beside the loop over its leaves."""
    for name, write in WRITES.items():
        for leaves, envs in ROLLOUTS:
            yield _rollout(name, leaves, envs, *write)


def _rollout(name: str, leaves: int, envs: int, sizes: Any, count: int, call: Any, on_leaf: Any) -> CoreCase:
    whole, part = sizes(envs)

    def make(kit: Kit) -> Call:
        tree, steps = _nested_td(kit, steps_tree(leaves, whole), whole), []
        for _ in range(count):
            steps.append(_nested_td(kit, steps_tree(leaves, part), part))
        keys = list(tree.keys(True, True))
        return lambda: call(tree, steps, keys)

    inputs = functools.lru_cache(1)(
        lambda: (steps_tree(leaves, whole), [steps_tree(leaves, part) for _ in range(count)])
    )
    return CoreCase(
        f"rollout {name}", f"{leaves} keys, {envs} envs", make, lambda: _each(*inputs(), on_leaf), 1.05, leaf_bound=True
    )


def _nested_td(kit: Kit, tree: Tree, size: tuple[int, ...]) -> Any:
    entries = {key: _nested_td(kit, value, size) if isinstance(value, dict) else value for key, value in tree.items()}
    return kit.TD(entries, size)


def grid_cases() -> Iterator[CoreCase]:
    """Every case, an operation at a time."""
    yield from rollout_cases()
    for operation, maker in OPERATIONS.items():
        for kind, layouts in LAYOUTS.items():
            for layout in layouts:
                if _fits(operation, kind, layout):
                    for size in SIZES:
                        name = f"{kind} {len(size)}d {layout.label}"
                        yield CoreCase(operation, name, _case(maker, kind, layout, size), wanted=1.0)


def _case(maker: Operation, kind: str, layout: Layout, size: tuple[int, ...]) -> Callable[[Kit], Call]:
    return lambda kit: maker(build(kit, kind, layout, size), kit, layout, size)
