"""The cases of ``core_ops``: what is built, what is called, and the same work on bare tensors.

A case is written once against a :class:`Kit`, which holds one library's classes and inputs; ``floor`` receives
the same tensors in plain dicts and lists. Where there is no tensor work to compare with, there is no floor.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

Call = Callable[[], Any]

ROWS = 8
#: A case that is only a few leaves' worth of tensor work may cost this many times the bare loop.
LEAF_BOUND = 1.5

_TENSORCLASSES = """
@tensorclass
class Point:
    x: torch.Tensor
    y: torch.Tensor

@tensorclass
class Labelled:
    image: torch.Tensor
    label: str = "none"

@tensorclass
class Scene:
    inner: Point
    z: torch.Tensor
"""


def leaves(count: int = 4, rows: int = ROWS, width: int = 4) -> dict[str, torch.Tensor]:
    """``count`` float tensors of shape [rows, width]."""
    return {f"k{i}": torch.full((rows, width), float(i + 1)) for i in range(count)}


class Kit:
    """One library with inputs built by it; every input is made on first use."""

    def __init__(self, lib: ModuleType) -> None:
        self.lib = lib
        self.TD = lib.TensorDict
        scope: dict[str, Any] = {"torch": torch, "tensorclass": lib.tensorclass, "__name__": "benchmarks"}
        exec(compile(_TENSORCLASSES, "<tensorclasses>", "exec", dont_inherit=True), scope)
        self.Point, self.Labelled, self.Scene = (scope[name] for name in ("Point", "Labelled", "Scene"))

    def flat(self, count: int = 4, rows: int = ROWS) -> Any:
        """A TensorDict of ``count`` leaves."""
        return self.TD(leaves(count, rows), [rows])

    def deep(self, depth: int = 20) -> Any:
        """One leaf under ``depth`` nested keys."""
        td = self.TD({"leaf": torch.ones(ROWS)}, [ROWS])
        for _ in range(depth):
            td = self.TD({"n": td}, [ROWS])
        return td

    def nested(self) -> Any:
        """Two leaves at the top and two in each of two nested TensorDicts."""
        return self.TD({**leaves(2), "n": leaves(2), "m": leaves(2)}, [ROWS])

    def lazy(self) -> Any:
        """Eight TensorDicts of four leaves, stacked lazily."""
        return self.lib.lazy_stack([self.TD(leaves(4), [ROWS]) for _ in range(ROWS)], 0)

    @cached_property
    def memmap(self) -> Any:
        """Four leaves of 1000 rows in memory-mapped files."""
        self._folder = tempfile.TemporaryDirectory(prefix="core-ops-")
        return self.flat(4, 1000).memmap_(str(Path(self._folder.name)))

    def point(self) -> Any:
        """A tensorclass of two leaves."""
        return self.Point(torch.ones(ROWS, 4), torch.zeros(ROWS, 4), batch_size=[ROWS])

    def labelled(self) -> Any:
        """A tensorclass of a tensor and a string."""
        return self.Labelled(torch.ones(ROWS, 4), "cat", batch_size=[ROWS])


@dataclasses.dataclass(frozen=True)
class CoreCase:
    """One thing measured: ``make(kit)`` gives the call, ``floor`` the same work without a library."""

    group: str
    name: str
    make: Callable[[Kit], Call]
    floor: Call | None = None
    wanted: float = 1.0
    """At most this share of the reference's time."""
    leaf_bound: bool = False
    """The floor ratio is promised to stay below ``LEAF_BOUND``."""


def _on(build: Callable[[Kit], Any], call: Callable[[Any], Any]) -> Callable[[Kit], Call]:
    def make(kit: Kit) -> Call:
        td = build(kit)
        return lambda: call(td)

    return make


def _flat(call: Callable[[Any], Any]) -> Callable[[Kit], Call]:
    return _on(Kit.flat, call)


def _nested(call: Callable[[Any], Any]) -> Callable[[Kit], Call]:
    return _on(Kit.nested, call)


def _bare(call: Callable[[torch.Tensor], Any], count: int = 4) -> Call:
    source = leaves(count)
    return lambda: {key: call(value) for key, value in source.items()}


def construction() -> list[CoreCase]:
    """From dicts of 0 to 100 keys, nested, named, on a device."""
    cases = [CoreCase("construct", "empty", lambda kit: lambda: kit.TD({}, [ROWS]))]
    for count in (1, 4, 10, 100):
        source = leaves(count)
        cases.append(
            CoreCase(
                "construct", f"{count} keys", lambda kit, s=source: lambda: kit.TD(s, [ROWS]), lambda s=source: dict(s)
            )
        )
    four, tree = leaves(4), {**leaves(2), "n": {**leaves(2), "m": leaves(2)}}
    size = torch.Size([ROWS])
    return [
        *cases,
        CoreCase("construct", "torch.Size given", lambda kit: lambda: kit.TD(four, size)),
        CoreCase("construct", "nested dicts", lambda kit: lambda: kit.TD(tree, [ROWS])),
        CoreCase("construct", "names", lambda kit: lambda: kit.TD(four, [ROWS], names=["time"])),
        CoreCase("construct", "device", lambda kit: lambda: kit.TD(four, [ROWS], device="cpu")),
        CoreCase("construct", "keywords", lambda kit: lambda: kit.TD(**four, batch_size=[ROWS])),
        CoreCase(
            "construct", "from_dict, inferred size", lambda kit: lambda: kit.TD.from_dict(tree, auto_batch_size=True)
        ),
        CoreCase("construct", "a string entry", lambda kit: lambda: kit.TD({"s": "text"}, [ROWS])),
    ]


def access() -> list[CoreCase]:
    """Reading and writing by key, one to twenty levels deep."""
    path = ("n",) * 20 + ("leaf",)
    value, wide = torch.ones(ROWS), torch.zeros(ROWS, 4)
    plain = leaves(4)

    def pop_and_set(td: Any) -> None:
        td["k0"] = td.pop("k0")

    def rename(td: Any) -> None:
        td.rename_key_("k0", "other").rename_key_("other", "k0")

    return [
        CoreCase("access", "get", _flat(lambda td: td.get("k1")), lambda: plain["k1"]),
        CoreCase("access", "[key]", _flat(lambda td: td["k1"]), lambda: plain["k1"]),
        CoreCase("access", "get, absent", _flat(lambda td: td.get("absent", None)), lambda: plain.get("absent")),
        CoreCase("access", "[a, b]", _nested(lambda td: td["n", "k1"])),
        CoreCase("access", "get, 20 deep", _on(Kit.deep, lambda td: td.get(path))),
        CoreCase("access", "[...], 20 deep", _on(Kit.deep, lambda td: td[path])),
        CoreCase("access", "set", _flat(lambda td: td.set("k1", wide)), lambda: plain.__setitem__("k1", wide)),
        CoreCase("access", "[key] =", _flat(lambda td: td.__setitem__("k1", wide))),
        CoreCase("access", "set, nested", _nested(lambda td: td.set(("n", "k1"), wide))),
        CoreCase("access", "set, 20 deep", _on(Kit.deep, lambda td: td.set(path, value))),
        CoreCase("access", "set_", _flat(lambda td: td.set_("k1", wide)), lambda: plain["k1"].copy_(wide)),
        CoreCase("access", "set_at_", _flat(lambda td: td.set_at_("k1", 0.0, 1))),
        CoreCase("access", "in", _flat(lambda td: "k1" in td)),
        CoreCase("access", "in keys, nested", _nested(lambda td: ("n", "k1") in td.keys(True))),
        CoreCase("access", "pop and set", _flat(pop_and_set)),
        CoreCase("access", "rename_key_ twice", _flat(rename)),
        CoreCase("access", "a string, get", _on(lambda kit: kit.TD({"s": "x"}, [ROWS]), lambda td: td["s"])),
        CoreCase("access", "a string, set", _on(Kit.flat, lambda td: td.set("s", "x"))),
    ]


def iteration() -> list[CoreCase]:
    """keys, values and items, flat, nested, leaves only."""
    return [
        CoreCase("iterate", "keys", _flat(lambda td: list(td.keys()))),
        CoreCase("iterate", "keys, nested", _nested(lambda td: list(td.keys(True)))),
        CoreCase("iterate", "keys, nested leaves", _nested(lambda td: list(td.keys(True, True)))),
        CoreCase("iterate", "values", _flat(lambda td: list(td.values()))),
        CoreCase("iterate", "values, nested leaves", _nested(lambda td: list(td.values(True, True)))),
        CoreCase("iterate", "items", _flat(lambda td: list(td.items()))),
        CoreCase("iterate", "items, nested", _nested(lambda td: list(td.items(True)))),
        CoreCase("iterate", "items, nested leaves", _nested(lambda td: list(td.items(True, True)))),
        CoreCase("iterate", "sorted keys", _nested(lambda td: list(td.keys(True, sort=True)))),
        CoreCase("iterate", "20 deep, leaves", _on(Kit.deep, lambda td: list(td.keys(True, True)))),
        CoreCase("iterate", "rows", _flat(list), lambda: [row for t in leaves().values() for row in t.unbind(0)]),
    ]


def indexing() -> list[CoreCase]:
    """Index and assign by int, slice, tensor, mask and tuples."""
    where, mask = torch.tensor([0, 3, 5]), torch.arange(ROWS) % 2 == 0
    plain = leaves()

    def assign(index: Any, source: Any) -> Callable[[Kit], Call]:
        def make(kit: Kit) -> Call:
            td, value = kit.flat(), source
            if source is None:
                value = kit.flat()[index].clone()
            return lambda: td.__setitem__(index, value)

        return make

    def bare_assign(index: Any, scalar: bool = False) -> Call:
        target = leaves()
        source = {key: torch.zeros(()) if scalar else value[index].clone() for key, value in target.items()}

        def call() -> None:
            for key, value in source.items():
                target[key][index] = value

        return call

    def preallocate(kit: Kit) -> Call:
        row = kit.flat()[0].clone()

        def call() -> None:
            kit.TD({}, [ROWS])[0] = row

        return call

    return [
        CoreCase("index", "int", _flat(lambda td: td[3]), _bare(lambda t: t[3]), leaf_bound=True),
        CoreCase("index", "slice", _flat(lambda td: td[1:5]), _bare(lambda t: t[1:5]), leaf_bound=True),
        CoreCase("index", "long tensor", _flat(lambda td: td[where]), _bare(lambda t: t[where]), leaf_bound=True),
        CoreCase("index", "mask", _flat(lambda td: td[mask]), _bare(lambda t: t[mask]), leaf_bound=True),
        CoreCase("index", "list", _flat(lambda td: td[[0, 3]]), _bare(lambda t: t[[0, 3]]), leaf_bound=True),
        CoreCase("index", "None", _flat(lambda td: td[None]), _bare(lambda t: t[None]), leaf_bound=True),
        CoreCase("index", "ellipsis and int", _flat(lambda td: td[..., 0])),
        CoreCase("index", "int, nested", _nested(lambda td: td[3]), _bare(lambda t: t[3], 6)),
        CoreCase("index", "slice, nested", _nested(lambda td: td[1:5]), _bare(lambda t: t[1:5], 6)),
        CoreCase(
            "index", "100 keys, int", _on(lambda kit: kit.flat(100), lambda td: td[3]), _bare(lambda t: t[3], 100)
        ),
        CoreCase("index", "int = tree", assign(3, None), bare_assign(3)),
        CoreCase("index", "slice = tree", assign(slice(1, 5), None), bare_assign(slice(1, 5))),
        CoreCase("index", "mask = tree", assign(mask, None), bare_assign(mask)),
        CoreCase("index", "int = 0", assign(3, 0), bare_assign(3, scalar=True)),
        CoreCase("index", "lazy preallocation", preallocate),
        CoreCase("index", "get_at", _flat(lambda td: td.get_at("k1", 3)), lambda: plain["k1"][3]),
    ]


def shape() -> list[CoreCase]:
    """Copies, joins, splits and views."""
    many = [leaves() for _ in range(4)]

    def joined(name: str) -> Callable[[Kit], Call]:
        def make(kit: Kit) -> Call:
            function, tds = getattr(torch, name), [kit.TD(source, [ROWS]) for source in many]
            return lambda: function(tds, 0)

        return make

    def bare_join(function: Callable[..., Any]) -> Call:
        return lambda: {key: function([source[key] for source in many], 0) for key in many[0]}

    def square(kit: Kit) -> Any:
        return kit.TD({f"k{i}": torch.ones(2, 4, 3) for i in range(4)}, [2, 4])

    squares = {f"k{i}": torch.ones(2, 4, 3) for i in range(4)}

    def bare(call: Callable[[torch.Tensor], Any]) -> Call:
        return lambda: {key: call(value) for key, value in squares.items()}

    where = torch.arange(ROWS) % 2 == 0
    return [
        CoreCase("copy", "clone", _flat(lambda td: td.clone()), _bare(lambda t: t.clone()), leaf_bound=True),
        CoreCase("copy", "clone, nested", _nested(lambda td: td.clone()), _bare(lambda t: t.clone(), 6)),
        CoreCase("copy", "clone(False)", _nested(lambda td: td.clone(False))),
        CoreCase("copy", "contiguous", _flat(lambda td: td.contiguous()), _bare(lambda t: t.contiguous())),
        CoreCase("copy", "zeros_like", _flat(torch.zeros_like), _bare(torch.zeros_like), leaf_bound=True),
        CoreCase("join", "stack", joined("stack"), bare_join(torch.stack), leaf_bound=True),
        CoreCase("join", "cat", joined("cat"), bare_join(torch.cat), leaf_bound=True),
        CoreCase("split", "split", _flat(lambda td: td.split(2)), _bare(lambda t: t.split(2)), leaf_bound=True),
        CoreCase("split", "chunk", _flat(lambda td: td.chunk(4)), _bare(lambda t: t.chunk(4)), leaf_bound=True),
        CoreCase("split", "unbind", _flat(lambda td: td.unbind(0)), _bare(lambda t: t.unbind(0)), leaf_bound=True),
        CoreCase("view", "reshape", _on(square, lambda td: td.reshape(8)), bare(lambda t: t.reshape(8, 3))),
        CoreCase("view", "view", _on(square, lambda td: td.view(-1)), bare(lambda t: t.view(8, 3))),
        CoreCase("view", "flatten", _on(square, lambda td: td.flatten()), bare(lambda t: t.flatten(0, 1))),
        CoreCase(
            "view", "unflatten", _flat(lambda td: td.unflatten(0, (2, 4))), _bare(lambda t: t.unflatten(0, (2, 4)))
        ),
        CoreCase("view", "unsqueeze", _flat(lambda td: td.unsqueeze(0)), _bare(lambda t: t.unsqueeze(0))),
        CoreCase(
            "view",
            "squeeze",
            _on(lambda kit: kit.flat().unsqueeze(0), lambda td: td.squeeze(0)),
            _bare(lambda t: t.unsqueeze(0)),
        ),
        CoreCase("view", "permute", _on(square, lambda td: td.permute(1, 0)), bare(lambda t: t.permute(1, 0, 2))),
        CoreCase("view", "transpose", _on(square, lambda td: td.transpose(0, 1)), bare(lambda t: t.transpose(0, 1))),
        CoreCase("view", "expand", _flat(lambda td: td.expand(3, ROWS)), _bare(lambda t: t.expand(3, ROWS, 4))),
        CoreCase("view", "gather", _flat(lambda td: td.gather(0, torch.tensor([0, 3])))),
        CoreCase(
            "view", "where", _flat(lambda td: td.where(where, 0)), _bare(lambda t: torch.where(where[:, None], t, 0))
        ),
        CoreCase(
            "view",
            "masked_fill",
            _flat(lambda td: td.masked_fill(where, 0)),
            _bare(lambda t: t.masked_fill(where[:, None], 0)),
        ),
    ]


def values() -> list[CoreCase]:
    """apply, arithmetic, comparisons, reductions, update."""
    column = torch.ones(ROWS)

    def with_other(call: Callable[[Any, Any], Any]) -> Callable[[Kit], Call]:
        def make(kit: Kit) -> Call:
            a, b = kit.flat(), kit.flat()
            return lambda: call(a, b)

        return make

    def bare_pair(call: Callable[[torch.Tensor, torch.Tensor], Any]) -> Call:
        a, b = leaves(), leaves()
        return lambda: {key: call(a[key], b[key]) for key in a}

    changed, plain = leaves(), leaves()
    return [
        CoreCase("apply", "apply", _flat(lambda td: td.apply(torch.neg)), _bare(torch.neg), leaf_bound=True),
        CoreCase("apply", "apply, nested", _nested(lambda td: td.apply(torch.neg)), _bare(torch.neg, 6)),
        CoreCase("apply", "apply, two inputs", with_other(lambda a, b: a.apply(torch.add, b)), bare_pair(torch.add)),
        CoreCase("apply", "apply_", _flat(lambda td: td.apply_(lambda t: t)), _bare(lambda t: t)),
        CoreCase("apply", "named_apply", _flat(lambda td: td.named_apply(lambda k, t: t)), _bare(lambda t: t)),
        CoreCase("value", "+ 1", _flat(lambda td: td + 1), _bare(lambda t: t + 1), leaf_bound=True),
        CoreCase("value", "+ tree", with_other(lambda a, b: a + b), bare_pair(lambda a, b: a + b), leaf_bound=True),
        CoreCase("value", "+ tree, nested", _nested(lambda td: td + td), _bare(lambda t: t + t, 6)),
        CoreCase("value", "* 2", _flat(lambda td: td * 2), _bare(lambda t: t * 2), leaf_bound=True),
        CoreCase("value", "* column", _flat(lambda td: td * column), _bare(lambda t: t * column[:, None])),
        CoreCase("value", "- (negative)", _flat(lambda td: -td), _bare(lambda t: -t), leaf_bound=True),
        CoreCase("value", "1 -", _flat(lambda td: 1 - td), _bare(lambda t: 1 - t), leaf_bound=True),
        CoreCase("value", "add_", _flat(lambda td: td.add_(1)), _bare(lambda t: t.add_(1)), leaf_bound=True),
        CoreCase("value", "mul_", _flat(lambda td: td.mul_(1)), _bare(lambda t: t.mul_(1)), leaf_bound=True),
        CoreCase("value", "exp", _flat(lambda td: td.exp()), _bare(torch.exp), leaf_bound=True),
        CoreCase("value", "clamp", _flat(lambda td: td.clamp(0, 1)), _bare(lambda t: t.clamp(0, 1))),
        CoreCase("value", "lerp", with_other(lambda a, b: a.lerp(b, 0.5)), bare_pair(lambda a, b: a.lerp(b, 0.5))),
        CoreCase("value", "== tree", with_other(lambda a, b: a == b), bare_pair(lambda a, b: a == b), leaf_bound=True),
        CoreCase("value", "> 0", _flat(lambda td: td > 0), _bare(lambda t: t > 0), leaf_bound=True),
        CoreCase("value", "zero_", _flat(lambda td: td.zero_()), _bare(lambda t: t.zero_()), leaf_bound=True),
        CoreCase("reduce", "sum", _flat(lambda td: td.sum()), _bare(torch.sum)),
        CoreCase("reduce", "sum(0)", _flat(lambda td: td.sum(0)), _bare(lambda t: t.sum(0))),
        CoreCase("reduce", "mean(0)", _flat(lambda td: td.mean(0)), _bare(lambda t: t.mean(0))),
        CoreCase("reduce", "all", _flat(lambda td: td.all()), lambda: all(t.all() for t in changed.values())),
        CoreCase("reduce", "isnan", _flat(lambda td: td.isnan()), _bare(torch.isnan)),
        CoreCase("update", "update(dict)", _flat(lambda td: td.update(changed)), lambda: plain.update(changed)),
        CoreCase("update", "update(tree)", with_other(lambda a, b: a.update(b))),
        CoreCase("update", "update, nested", _nested(lambda td: td.update({"n": {"k1": changed["k1"]}}))),
        CoreCase("update", "update_", with_other(lambda a, b: a.update_(b)), bare_pair(lambda a, b: a.copy_(b))),
        CoreCase("update", "copy_", with_other(lambda a, b: a.copy_(b)), bare_pair(lambda a, b: a.copy_(b))),
    ]


def structure() -> list[CoreCase]:
    """Casts, locks, sets of keys, conversions."""
    import pickle

    def lock(td: Any) -> None:
        td.lock_().unlock_()

    def on_device(kit: Kit) -> Any:
        return kit.flat().to("cpu")

    return [
        CoreCase("cast", "to(same device)", _on(on_device, lambda td: td.to("cpu"))),
        CoreCase("cast", "to(device)", _flat(lambda td: td.to("cpu")), _bare(lambda t: t.to("cpu"))),
        CoreCase("cast", "to(float64)", _flat(lambda td: td.to(torch.float64)), _bare(lambda t: t.double())),
        CoreCase("cast", "float, already", _flat(lambda td: td.float()), _bare(lambda t: t.float())),
        CoreCase("cast", "detach", _flat(lambda td: td.detach()), _bare(lambda t: t.detach())),
        CoreCase("lock", "lock and unlock", _flat(lock)),
        CoreCase("lock", "lock and unlock, nested", _nested(lock)),
        CoreCase("lock", "lock and unlock, 20 deep", _on(Kit.deep, lock)),
        CoreCase("lock", "is_locked", _flat(lambda td: td.is_locked)),
        CoreCase("lock", "batch_size", _flat(lambda td: td.batch_size)),
        CoreCase("keys", "flatten_keys", _nested(lambda td: td.flatten_keys("."))),
        CoreCase(
            "keys", "unflatten_keys", _on(lambda k: k.nested().flatten_keys("."), lambda td: td.unflatten_keys("."))
        ),
        CoreCase("keys", "select", _flat(lambda td: td.select("k0", "k2"))),
        CoreCase("keys", "select, nested", _nested(lambda td: td.select("k0", ("n", "k1")))),
        CoreCase("keys", "exclude", _flat(lambda td: td.exclude("k0"))),
        CoreCase("keys", "split_keys", _flat(lambda td: td.split_keys(["k0"], ["k1"]))),
        CoreCase("keys", "empty", _flat(lambda td: td.empty())),
        CoreCase("convert", "to_dict", _nested(lambda td: td.to_dict())),
        CoreCase("convert", "to_tensordict", _nested(lambda td: td.to_tensordict())),
        CoreCase("convert", "state_dict", _nested(lambda td: td.state_dict())),
        CoreCase("convert", "tree_map", _flat(lambda td: torch.utils._pytree.tree_map(torch.neg, td))),
        CoreCase("convert", "pickle", _flat(lambda td: pickle.loads(pickle.dumps(td)))),
        CoreCase("convert", "repr", _flat(repr)),
    ]


def tensorclasses() -> list[CoreCase]:
    """Construct, read, write, index and stack a tensorclass: wanted at half the reference's time."""
    x, y = torch.ones(ROWS, 4), torch.zeros(ROWS, 4)

    def scene(kit: Kit) -> Call:
        point, z = kit.point(), torch.ones(ROWS)
        return lambda: kit.Scene(point, z, batch_size=[ROWS])

    def stacked(kit: Kit) -> Call:
        points = [kit.point() for _ in range(4)]
        return lambda: torch.stack(points, 0)

    many = [(x.clone(), y.clone()) for _ in range(4)]
    half = 0.5
    return [
        CoreCase("tensorclass", "construct", lambda kit: lambda: kit.Point(x, y, batch_size=[ROWS]), wanted=half),
        CoreCase(
            "tensorclass",
            "construct with a string",
            lambda kit: lambda: kit.Labelled(x, "cat", batch_size=[ROWS]),
            wanted=half,
        ),
        CoreCase("tensorclass", "construct, nested", scene, wanted=half),
        CoreCase("tensorclass", "read a field", _on(Kit.point, lambda p: p.x), wanted=half),
        CoreCase("tensorclass", "read a string", _on(Kit.labelled, lambda p: p.label), wanted=half),
        CoreCase("tensorclass", "write a field", _on(Kit.point, lambda p: setattr(p, "x", y)), wanted=half),
        CoreCase("tensorclass", "write a string", _on(Kit.labelled, lambda p: setattr(p, "label", "dog")), wanted=half),
        CoreCase("tensorclass", "index, int", _on(Kit.point, lambda p: p[3]), _bare(lambda t: t[3], 2), half, True),
        CoreCase(
            "tensorclass", "index, slice", _on(Kit.point, lambda p: p[1:5]), _bare(lambda t: t[1:5], 2), half, True
        ),
        CoreCase("tensorclass", "index with a string", _on(Kit.labelled, lambda p: p[3]), wanted=half),
        CoreCase("tensorclass", "stack", stacked, lambda: [torch.stack(parts, 0) for parts in zip(*many)], half, True),
        CoreCase(
            "tensorclass", "clone", _on(Kit.point, lambda p: p.clone()), _bare(lambda t: t.clone(), 2), half, True
        ),
        CoreCase("tensorclass", "+ 1", _on(Kit.point, lambda p: p + 1), _bare(lambda t: t + 1, 2)),
        CoreCase("tensorclass", "apply", _on(Kit.point, lambda p: p.apply(torch.neg)), _bare(torch.neg, 2)),
        CoreCase(
            "tensorclass", "reshape", _on(Kit.point, lambda p: p.reshape(2, 4)), _bare(lambda t: t.reshape(2, 4, 4), 2)
        ),
        CoreCase("tensorclass", "batch_size", _on(Kit.point, lambda p: p.batch_size), wanted=half),
    ]


def stacks_and_files() -> list[CoreCase]:
    """Lazy stacks, memory-mapped trees, trees with strings."""
    where = torch.tensor([5, 17, 900])
    rows = [leaves() for _ in range(ROWS)]

    def lazily(kit: Kit) -> Call:
        tds = [kit.flat() for _ in range(ROWS)]
        return lambda: kit.lib.lazy_stack(tds, 0)

    def texts(kit: Kit) -> Any:
        return kit.TD({**leaves(2), "s": "text"}, [ROWS])

    thousand = leaves(4, 1000)

    def bare(call: Callable[[torch.Tensor], Any]) -> Call:
        return lambda: {key: call(value) for key, value in thousand.items()}

    def mapped(call: Callable[[Any], Any]) -> Callable[[Kit], Call]:
        return _on(lambda kit: kit.memmap, call)

    return [
        CoreCase("lazy stack", "lazy_stack of 8", lazily),
        CoreCase(
            "lazy stack",
            "get",
            _on(Kit.lazy, lambda td: td.get("k1")),
            lambda: torch.stack([r["k1"] for r in rows]),
            0.7,
        ),
        CoreCase("lazy stack", "index, int", _on(Kit.lazy, lambda td: td[3])),
        CoreCase("lazy stack", "index, slice", _on(Kit.lazy, lambda td: td[1:5])),
        CoreCase("lazy stack", "index, [:, 0]", _on(Kit.lazy, lambda td: td[:, 0])),
        CoreCase("lazy stack", "unbind", _on(Kit.lazy, lambda td: td.unbind(0))),
        CoreCase("lazy stack", "contiguous", _on(Kit.lazy, lambda td: td.contiguous())),
        CoreCase("lazy stack", "+ 1", _on(Kit.lazy, lambda td: td + 1)),
        CoreCase("lazy stack", "keys", _on(Kit.lazy, lambda td: list(td.keys()))),
        CoreCase("memmap", "index, int", mapped(lambda td: td[77]), bare(lambda t: t[77])),
        CoreCase("memmap", "index, slice", mapped(lambda td: td[64:128]), bare(lambda t: t[64:128])),
        CoreCase("memmap", "index, long tensor", mapped(lambda td: td[where]), bare(lambda t: t[where])),
        CoreCase("memmap", "get", mapped(lambda td: td.get("k1"))),
        CoreCase("strings", "index, int", _on(texts, lambda td: td[3])),
        CoreCase("strings", "clone", _on(texts, lambda td: td.clone())),
        CoreCase("strings", "+ 1", _on(texts, lambda td: td + 1)),
    ]


def all_cases() -> list[CoreCase]:
    """Every case, in the order of the table."""
    parts = (construction, access, iteration, indexing, shape, values, structure, tensorclasses, stacks_and_files)
    return [case for part in parts for case in part()]
