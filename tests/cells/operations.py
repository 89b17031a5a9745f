"""Operations: how each is called, and what it must give, computed in plain Python from the rows."""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import tdmap
from tdmap.reducers import Count, Sum
from tdmap.run.operation import OPERATIONS as REGISTERED
from tensordict_lite import LazyStackedTensorDict, Ragged, TensorDict
from tensordict_lite.base import TensorCollection
from tests.cells.kinds import Row, plain, rows_of


class Operation(NamedTuple):
    """An operation of the library, with arguments that suit every kind of dataset."""

    call: Callable[..., Any]
    """Of the dataset and of options."""
    expected: Callable[[list[Row]], Any]
    """The result, from the rows of the dataset."""
    read: Callable[[Any], Any] = rows_of
    """The result of the call as plain Python."""
    has_output: bool = True
    """Whether it makes rows, which `out=` and its companions place."""
    runs_function: bool = False
    """Whether it calls a function of the user, which `seed=` and `on_error=` are about."""
    lacks: frozenset[str] = frozenset()
    """Options that have no meaning for it, though they have one for others of its sort."""
    own: frozenset[str] = frozenset()
    """Options that it takes besides those that every operation of its sort takes."""
    refuses: frozenset[str] = frozenset()
    """Kinds of datasets that have too few rows for it: a ValueError says so."""


def entry(rows: Any, key: str) -> Any:
    """An entry of a chunk of any kind."""
    return rows.get(key) if isinstance(rows, TensorCollection) else rows[key]


def doubled(chunk: Any) -> TensorDict:
    x = entry(chunk, "x")
    return TensorDict({"x": x * 2, "k": entry(chunk, "k")}, [len(x)])


def is_one(chunk: Any) -> Any:
    return entry(chunk, "k") == 1


def only_ones(chunk: Any) -> Any:
    rows = chunk[is_one(chunk)]
    if isinstance(rows, LazyStackedTensorDict) and "v" in rows.keys():  # of different lengths
        lengths = rows.get("v", as_list=True)
        return rows.exclude("v").contiguous().set("v", Ragged.from_list(lengths)) if lengths else None
    return rows


def first_two(rows: Any) -> TensorDict:
    x = entry(rows, "x")[:2]
    return TensorDict({"x": x}, [len(x)])


def as_mapping(result: Any) -> dict[str, Any]:
    return {key: value.item() if hasattr(value, "item") else value for key, value in result.items()}


def any_order(result: Any) -> list[Row]:
    return sorted(rows_of(result), key=lambda row: row["x"])


def _sorted(rows: list[Row], key: str = "x") -> list[Row]:
    return sorted(rows, key=lambda row: row[key])


def _double(rows: list[Row]) -> list[Row]:
    return [{"x": row["x"] * 2, "k": row["k"]} for row in rows]


def _ones(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["k"] == 1]


def _sums(rows: list[Row]) -> dict[str, Any]:
    return {"n": len(rows), "s": sum(row["x"] for row in rows)}


def _groups(rows: list[Row]) -> dict[int, list[Row]]:
    return {key: [row for row in rows if row["k"] == key] for key in sorted({row["k"] for row in rows})}


def _halves(result: Any) -> list[Any]:
    train, test = result
    return [len(train), len(test), _sorted(rows_of(train) + rows_of(test))]


def _split(rows: list[Row]) -> list[Any]:
    test = round(len(rows) / 4)
    return [len(rows) - test, test, _sorted(rows)]


def _right() -> TensorDict:
    x = torch.arange(0, 1000, 2, device="cpu")
    return TensorDict({"x": x, "r": x * 3}, [len(x)])


def _joined(rows: list[Row]) -> list[Row]:
    return [{**row, "r": row["x"] * 3} for row in rows if row["x"] % 2 == 0]


def _streamed(chunks: Any) -> list[Row]:
    return [row for chunk in chunks for row in rows_of(chunk)]


OPERATIONS: dict[str, Operation] = {
    "map": Operation(lambda d, **o: tdmap.map(d, doubled, **o), _double, runs_function=True),
    "filter": Operation(lambda d, **o: tdmap.filter(d, is_one, **o), _ones, runs_function=True),
    "flat_map": Operation(lambda d, **o: tdmap.flat_map(d, only_ones, **o), _ones, runs_function=True),
    "sort": Operation(lambda d, **o: tdmap.sort(d, "x", **o), _sorted),
    "shuffle": Operation(
        lambda d, **o: tdmap.shuffle(d, **{"seed": 3, **o}), _sorted, any_order, own=frozenset({"seed"})
    ),
    "sample": Operation(
        lambda d, **o: tdmap.sample(d, len(d), **{"seed": 3, **o}), _sorted, any_order, own=frozenset({"seed"})
    ),
    "top_k": Operation(lambda d, **o: tdmap.top_k(d, "x", 3, **o), lambda rows: _sorted(rows)[::-1][:3]),
    "unique": Operation(lambda d, **o: tdmap.unique(d, "k", **o), lambda rows: [{"k": key} for key in _groups(rows)]),
    "drop_duplicates": Operation(
        lambda d, **o: tdmap.drop_duplicates(d, "k", **o),
        lambda rows: [row for n, row in enumerate(rows) if row["k"] not in {other["k"] for other in rows[:n]}],
    ),
    "value_counts": Operation(
        lambda d, **o: tdmap.value_counts(d, "k", **o),
        lambda rows: sorted(
            ({"k": key, "count": len(group)} for key, group in _groups(rows).items()), key=lambda row: -row["count"]
        ),
    ),
    "join": Operation(lambda d, **o: tdmap.join(d, _right(), "x", **o), _joined),
    "train_test_split": Operation(
        lambda d, **o: tdmap.train_test_split(d, 0.25, **{"seed": 3, **o}),
        _split,
        _halves,
        own=frozenset({"seed"}),
        refuses=frozenset({"no rows", "one row"}),
    ),
    "describe": Operation(
        lambda d, **o: tdmap.describe(d, **o),
        len,
        lambda result: result["x"].count if "x" in result else 0,
        has_output=False,
    ),
    "reduce": Operation(
        lambda d, **o: tdmap.reduce(d, {"n": Count(), "s": Sum("x")}, **o),
        _sums,
        as_mapping,
        has_output=False,
        runs_function=True,
    ),
    "map_reduce": Operation(
        lambda d, **o: tdmap.map_reduce(d, doubled, {"n": Count(), "s": Sum("x")}, **o),
        lambda rows: _sums(_double(rows)),
        as_mapping,
        has_output=False,
        runs_function=True,
    ),
    "map_iter": Operation(
        lambda d, **o: tdmap.map_iter(d, doubled, **o), _double, _streamed, has_output=False, runs_function=True
    ),
    "group_by.reduce": Operation(
        lambda d, **o: tdmap.group_by(d, "k").reduce({"n": Count(), "s": Sum("x")}, **o),
        lambda rows: [{"k": key, **_sums(group)} for key, group in _groups(rows).items()],
    ),
    "group_by.agg": Operation(
        lambda d, **o: tdmap.group_by(d, "k").agg({"x": ["max"]}, **o),
        lambda rows: [{"k": key, "x.max": max(row["x"] for row in group)} for key, group in _groups(rows).items()],
    ),
    "group_by.map_groups": Operation(
        lambda d, **o: tdmap.group_by(d, "k").map_groups(first_two, **o),
        lambda rows: [{"x": row["x"]} for group in _groups(rows).values() for row in group[:2]],
        runs_function=True,
        lacks=frozenset({"on_error"}),
    ),
    "group_by.top_k": Operation(
        lambda d, **o: tdmap.group_by(d, "k").top_k("x", 1, **o),
        lambda rows: [max(group, key=lambda row: row["x"]) for group in _groups(rows).values()],
    ),
    "Pipeline.write": Operation(
        lambda d, **o: _written(tdmap.Pipeline(d).map(doubled), o), _double, runs_function=True
    ),
    "Pipeline.collect": Operation(
        lambda d, **o: tdmap.Pipeline(d).map(doubled).collect(**o), _double, has_output=False, runs_function=True
    ),
    "Pipeline.reduce": Operation(
        lambda d, **o: tdmap.Pipeline(d).map(doubled).reduce({"n": Count(), "s": Sum("x")}, **o),
        lambda rows: _sums(_double(rows)),
        as_mapping,
        has_output=False,
        runs_function=True,
    ),
    "Pipeline.iter": Operation(
        lambda d, **o: tdmap.Pipeline(d).map(doubled).batch(5).iter(**o),
        _double,
        _streamed,
        has_output=False,
        runs_function=True,
    ),
}
"""By their names. The arguments of an operation that is not here are guessed from its signature (`guessed`)."""


def resumable() -> list[str]:
    """The names of operations that resume into each kind of output."""
    return [name for name, operation in OPERATIONS.items() if operation.has_output]


def _written(pipeline: Any, options: dict[str, Any]) -> Any:
    if options.get("out") is None and "resume" not in options:
        return pipeline.collect(**{name: value for name, value in options.items() if name != "out"})
    return pipeline.write(**{"out": None, **options})


ELSEWHERE = {
    "GroupBy.reduce": "group_by.reduce",
    "GroupBy.agg": "group_by.agg",
    "GroupBy.map_groups": "group_by.map_groups",
    "GroupBy.top_k": "group_by.top_k",
    "Pipeline.count": "Pipeline.reduce",
    "group_by": "group_by.reduce",
}
"""Registered names of operations that another row asks."""

NOT_ROWS = {
    "merge_shards", "from_huggingface", "from_dataset", "ingest", "tokenise", "pack", "read", "write", "convert",
}  # fmt: skip
"""Registered operations that take files, other libraries' datasets or one ragged entry, not rows."""

INNER = {"permute", "read_groups"}
"""Registered operations that others are made of."""

ARGUMENTS: dict[str, Any] = {
    "key": "k",
    "keys": ["k"],
    "on": "k",
    "by": "k",
    "k": 2,
    "n": 2,
    "fn": doubled,
    "mapper": doubled,
    "predicate": is_one,
    "reducer": Count(),
    "reducers": {"n": Count()},
    "seed": 3,
}
"""What a parameter of this name is given."""


def guessed(name: str, fn: Callable[..., Any]) -> Operation:
    """A row for an operation that has none: its plain call on rows in memory is what every cell must give."""
    parameters = list(inspect.signature(fn).parameters.values())[1:]
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    missing = [parameter for parameter in needed if parameter not in ARGUMENTS]
    if missing:
        raise LookupError(f"the operation {name} has no row in OPERATIONS, and no argument is known for {missing}.")
    arguments = {parameter: ARGUMENTS[parameter] for parameter in needed}
    names = {p.name for p in parameters}

    def plain_call(rows: list[Row]) -> list[Row]:
        data = plain(len(rows))
        return rows_of(fn(data, **arguments, num_workers=0))

    return Operation(
        lambda d, **o: fn(d, **{**arguments, **o}),
        plain_call,
        has_output="out" in names,
        runs_function=bool({"fn", "mapper", "predicate"} & names),
        own=frozenset({"seed"} & names),
    )


def registered() -> dict[str, Callable[..., Any]]:
    """Every function under `@operation`, by its name; modules that are imported late are imported now."""
    for module in pkgutil.walk_packages(tdmap.__path__, "tdmap."):
        if not module.name.startswith(("tdmap.cli", "tdmap.__main__", "tdmap.doctor")):
            importlib.import_module(module.name)
    return {name: fn for name, fn in REGISTERED.items() if _is_ours(name, fn)}


def _is_ours(name: str, fn: Callable[..., Any]) -> bool:
    """Whether a function is in a module of the package, not in a test or in the example of a docstring."""
    return fn.__module__.startswith("tdmap.") and hasattr(sys.modules[fn.__module__], name.partition(".")[0])


def all_operations() -> dict[str, Operation]:
    """The rows of `OPERATIONS`, and a guessed one for each operation that was registered without."""
    known = set(OPERATIONS) | set(ELSEWHERE) | NOT_ROWS | INNER
    guesses = {name: guessed(name, fn) for name, fn in registered().items() if name not in known}
    return {**OPERATIONS, **guesses}
