"""`unique`, `value_counts`, `top_k`, `sample` of tables: the engine finds numbers of rows, and columns follow them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdmap.data.store import destination
from tdmap.datasets.jagged import Jagged
from tdmap.datasets.jaggedfile import save_jagged
from tdmap.datasets.table import Table
from tdmap.datasets.tables.ops import ROW, key_parts, keys_of, take, written
from tdmap.datasets.tables.running import run_jagged, run_table
from tdmap.execution import Execution
from tdmap.keys.ranks import ranks_of
from tdmap.ops.sample import sample
from tdmap.ops.top_k import top_k
from tdmap.output.output import buffers
from tdmap.reducers import Count
from tdmap.run.call import parts_of, parts_of_options
from tdmap.runtime.commits import decide
from tdmap.seeding import checked_seed, permutation, seed_or_drawn
from tensordict_lite import TensorDict

if TYPE_CHECKING:
    from typing import Unpack

    from tdmap.execution import WorkerOptions
    from tdmap.memory.scratch import Scratch

_COUNT = "__count__"


def unique_of(
    table: Table,
    key: Any,
    out: Any = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    dropna: bool = False,
    **options: Unpack[WorkerOptions],
) -> Table:
    """`Table.unique`."""
    place = destination(out, overwrite)

    def work(out: Any) -> Table:
        found = table.group_by(key, dropna=dropna).reduce({_COUNT: Count()}, **options)
        return written(found.exclude(_COUNT), out, Execution.of(**options), "unique")

    return run_table("unique", table, lambda: key_parts(key) | parts_of_options(dropna=dropna), place, resume, work)


def value_counts_of(
    table: Table,
    key: Any,
    out: Any = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    dropna: bool = False,
    sort: bool = True,
    name: str = "count",
    **options: Unpack[WorkerOptions],
) -> Table:
    """`Table.value_counts`."""
    place = destination(out, overwrite)

    def work(out: Any) -> Table:
        found = table.group_by(key, dropna=dropna).reduce({name: Count()}, **options)
        if sort:
            found = found[torch.argsort(found[name], descending=True, stable=True)]
        return written(found, out, Execution.of(**options), "value_counts")

    def parts() -> dict[str, str]:
        return key_parts(key) | parts_of_options(dropna=dropna, sort=sort, name=name)

    return run_table("value_counts", table, parts, place, resume, work)


def top_of(
    table: Table,
    key: str,
    k: int,
    out: Any = None,
    *,
    largest: bool = True,
    overwrite: bool = False,
    resume: bool = False,
    **options: Unpack[WorkerOptions],
) -> Table:
    """`Table.top_k`."""
    place = destination(out, overwrite)

    def work(out: Any) -> Table:
        values = keys_of(table, key, "top_k")[key]
        index = TensorDict({"key": values, ROW: torch.arange(len(table))}, [len(table)])
        best: Any = top_k(index, "key", k, largest=largest, **options)
        return take(table, best[ROW].clone(), out, Execution.of(**options), "top_k")

    return run_table("top_k", table, lambda: parts_of_options(key=key, k=k, largest=largest), place, resume, work)


def sample_of(
    table: Table,
    n: int | None = None,
    out: Any = None,
    *,
    frac: float | None = None,
    weights: str | Tensor | None = None,
    replace: bool = False,
    shuffle: bool = False,
    seed: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    **options: Unpack[WorkerOptions],
) -> Table:
    """`Table.sample`."""
    place = destination(out, overwrite)
    if isinstance(weights, str):
        column = keys_of(table, weights, "sample")[weights]
        if isinstance(table[weights], Jagged):
            raise TypeError(f"sample: weights are numbers, and {weights!r} is a column of text.")
        weights = column
    odds = weights

    def work(out: Any) -> Table:
        known = decide("seed", lambda: seed_or_drawn(seed))
        drawn: Any = sample(
            torch.arange(len(table)),
            n, frac=frac, weights=odds, replace=replace, shuffle=shuffle, seed=known, **options,
        )  # fmt: skip
        return take(table, drawn.clone(), out, Execution.of(**options), "sample")

    def parts() -> dict[str, str]:
        found = parts_of_options(n=n, frac=frac, replace=replace, shuffle=shuffle, seed=seed)
        return found | ({} if odds is None else parts_of("weights", odds))

    return run_table("sample", table, parts, place, resume, work)


def shuffle_table(
    table: Table,
    out: Any = None,
    *,
    seed: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    **options: Unpack[WorkerOptions],
) -> Table:
    """`Table.shuffle`."""
    seed, execution = checked_seed(seed), Execution.of(**options)

    def work(out: Any) -> Table:
        order = permutation(len(table), decide("seed", lambda: seed_or_drawn(seed)))
        return take(table, order, out, execution, "shuffle")

    return run_table("shuffle", table, lambda: parts_of_options(seed=seed), destination(out, overwrite), resume, work)


# -- jagged rows alone -------------------------------------------------------------------------------------------------


def sample_jagged(
    rows: Jagged,
    n: int | None = None,
    out: Any = None,
    *,
    frac: float | None = None,
    weights: Tensor | None = None,
    replace: bool = False,
    shuffle: bool = False,
    seed: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    **options: Unpack[WorkerOptions],
) -> Jagged:
    """`Jagged.sample`."""

    def draw() -> Tensor:
        known = decide("seed", lambda: seed_or_drawn(seed))
        drawn: Any = sample(
            torch.arange(len(rows)),
            n, frac=frac, weights=weights, replace=replace, shuffle=shuffle, seed=known, **options,
        )  # fmt: skip
        return drawn.clone()  # type: ignore[no-any-return]

    def parts() -> dict[str, str]:
        found = parts_of_options(n=n, frac=frac, replace=replace, shuffle=shuffle, seed=seed)
        return found | ({} if weights is None else parts_of("weights", weights))

    return _chosen("sample", rows, lambda scratch: draw(), parts, out, overwrite, resume, **options)


def shuffle_jagged(
    rows: Jagged,
    out: Any = None,
    *,
    seed: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    **options: Unpack[WorkerOptions],
) -> Jagged:
    """`Jagged.shuffle`."""
    seed = checked_seed(seed)

    def order(scratch: Scratch | None) -> Tensor:
        known, count = decide("seed", lambda: seed_or_drawn(seed)), len(rows)
        if scratch is None:
            return permutation(count, known)
        # What one session leaves the next one finds, and removes; files of `Scratch` have names of chance.
        room = buffers(["order"], torch.int64, count)["order"] if resume else scratch.empty(count)
        return permutation(count, known, room)

    return _chosen("shuffle", rows, order, lambda: parts_of_options(seed=seed), out, overwrite, resume, **options)


def sort_jagged(
    rows: Jagged,
    out: Any = None,
    *,
    key: str = "length",
    descending: bool = False,
    overwrite: bool = False,
    resume: bool = False,
    **options: Unpack[WorkerOptions],
) -> Jagged:
    """`Jagged.sort`."""
    if key not in ("length", "value"):
        raise ValueError(f"key must be 'length' or 'value': got {key!r}.")

    def order(scratch: Scratch | None) -> Tensor:
        keys = rows.lengths if key == "length" else ranks_of([rows])[0]
        return torch.sort(keys, stable=True, descending=descending).indices

    def parts() -> dict[str, str]:
        return parts_of_options(key=key, descending=descending)

    return _chosen("sort", rows, order, parts, out, overwrite, resume, **options)


def _chosen(
    name: str,
    rows: Jagged,
    choose: Callable[[Scratch | None], Tensor],
    parts: Callable[[], Mapping[str, str]],
    out: Any,
    overwrite: bool,
    resume: bool,
    **options: Unpack[WorkerOptions],
) -> Jagged:
    """Rows by their numbers, which `choose` gives: a view, or with `out` a copy, which may be resumed."""
    place = destination(out, overwrite)

    def work(place: Any) -> Jagged:
        Execution.of(**options)  # options that there are not are told with and without a folder
        return rows.take(choose(None)) if place is None else save_jagged(rows, place, choose, **options)

    return run_jagged(name, rows, parts, place, resume, work)
