"""The operations that random programs consist of: how each is run, and what its rows must be.

A step is a mapping: `op`, its arguments, `how` (executor, workers, chunks), `into` (where results go) and `fault`.
Functions are built from plain values and look at the column `id` alone, so that the oracle can do the same row by row.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tdmap
from tdmap import reducers
from tensordict_lite import NonTensorData, TensorDict
from tests.cells import kinds as cells
from tests.cells.operations import OPERATIONS
from tests.programs.model import Row, integers, number_of, value_of

# -- functions of chunks -----------------------------------------------------------------------------------------------


def first_id(part: Any) -> torch.Tensor:
    """The column `id`, one number a row."""
    number = part["id"]
    return number.flatten(1)[:, 0] if number.dim() > 1 else number


class Fault:
    """What a function does beside its work, once: raise on some rows, kill or stop its process, kill the driver."""

    def __init__(self, spec: dict[str, Any], folder: Path) -> None:
        self.kind = spec["kind"]
        self.rows = frozenset(spec.get("rows", ()))
        self.marker = str(folder / f"fault-{spec.get('name', '')}")
        # In a file: the same function in another process is the same function.
        Path(self.marker + ".home").write_text(str(os.getpid()))

    @property
    def home(self) -> int:
        """The process that called the operation."""
        return int(Path(self.marker + ".home").read_text())

    def __call__(self, numbers: Any) -> None:
        met = [n for n in numbers.reshape(-1).tolist() if n in self.rows]
        if not met or self.kind == "none":
            return
        if self.kind == "raise":
            raise ValueError(f"row {met[0]}")
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if self.kind == "driver":
            os.kill(self.home, signal.SIGKILL)
            time.sleep(600)  # the process ends with its driver
        elif os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL if self.kind == "kill" else signal.SIGSTOP)


class Work:
    """A function of a chunk, or of a row, with a fault in it."""

    def __init__(self, name: str, fault: Fault) -> None:
        self.name = name
        self.fault = fault

    def __call__(self, part: Any) -> Any:
        single = part["id"].dim() == len(part.batch_size) and not getattr(self, "batched", True)
        self.fault(part["id"])
        return FUNCTIONS[self.name](part, single)


def _add(part: Any, single: bool) -> Any:
    return part.copy().set("sum", part["id"] * 3 + 1)


def _large(part: Any, single: bool) -> Any:
    pixels = (part["id"].unsqueeze(-1) % 251).to(torch.uint8).expand(*part.batch_size, 3000)
    return part.copy().set("large", pixels)


def _say(part: Any, single: bool) -> Any:
    def words(ids: Any) -> Any:
        return [words(i) for i in ids] if isinstance(ids, list) else f"say {ids}"

    said = words(part["id"].tolist()) if part["id"].numel() else NonTensorData("", batch_size=part.batch_size)
    return part.copy().set("said", said)


def _only(part: Any, single: bool) -> Any:
    return part.select("id")


def _same(part: Any, single: bool) -> Any:
    return part.clone()


FUNCTIONS: dict[str, Callable[[Any, bool], Any]] = {
    "add": _add,
    "large": _large,
    "say": _say,
    "only": _only,
    "same": _same,
}


def mapped(row: Row, name: str, inner: tuple[int, ...]) -> Row:
    """What a function makes of a row."""
    number = number_of(row)
    full = torch.full(inner, number, dtype=torch.int64)
    if name == "add":
        return {**row, "sum": value_of(full * 3 + 1)}
    if name == "large":
        return {**row, "large": value_of((full.unsqueeze(-1) % 251).to(torch.uint8).expand(*inner, 3000))}
    if name == "say":

        def words(size: tuple[int, ...]) -> Any:
            return [words(size[1:]) for _ in range(size[0])] if size else f"say {number}"

        return {**row, "said": ("object", repr(words(inner)))}
    if name == "only":
        return {"id": row["id"]}
    return dict(row)


def blank(row: Row, dims: int) -> Row:
    """A row that was skipped: zeros, and None for objects, in lists as deep as the row has dimensions."""

    def nothing(value: Any) -> Any:
        if value[0] == "object":
            return ("object", _none_like(value[1], dims))
        return (value[0], value[1], bytes(len(value[2])))

    return {key: nothing(value) for key, value in row.items()}


def _none_like(text: str, dims: int) -> str:
    def none(item: Any, dims: int) -> Any:
        return [none(one, dims - 1) for one in item] if dims else None

    return repr(none(eval(text), dims))


# -- how it is run -----------------------------------------------------------------------------------------------------


def options_of(step: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments about workers."""
    how = step["how"]
    options: dict[str, Any] = {"num_workers": how["workers"], "executor": how["executor"]}
    if how["executor"] == "process":
        options["mp_start_method"] = how["method"]
    if step["fault"]["kind"] == "stop":
        options["timeout"] = 1.0
        options["retries"] = 1000  # a busy machine may take as long over a chunk
    return options


class Target:
    """Where the result of a step goes."""

    def __init__(self, step: dict[str, Any], folder: Path) -> None:
        self.path = folder / f"out-{step['number']}"
        self.kind = step["into"]

    @property
    def out(self) -> dict[str, Any]:
        return {} if self.kind == "memory" else {"out": self.path}

    @property
    def resume(self) -> dict[str, Any]:
        return {"resume": True} if self.kind == "resumed" else {}


def run_map(data: Any, step: dict[str, Any], folder: Path) -> Any:
    target, fault = Target(step, folder), Fault(step["fault"], folder)
    errors: dict[str, Any] = {}
    if step["fault"]["kind"] == "raise":
        errors = {"on_error": tdmap.RowErrors(step["mode"])}
    work = Work(step["function"], fault)
    return tdmap.map(
        data, work, chunksize=step["how"]["chunksize"], **target.out, **target.resume, **errors, **options_of(step)
    )


def expect_map(rows: list[Row], step: dict[str, Any], inner: tuple[int, ...]) -> list[Row]:
    done = [mapped(row, step["function"], inner) for row in rows]
    if step["fault"]["kind"] != "raise":
        return done
    bad = set(step["fault"]["rows"])
    valid = [number_of(row) not in bad for row in rows]
    if step["mode"] == "drop":
        return [row for row, good in zip(done, valid, strict=True) if good]
    return [row if good else blank(row, len(inner)) for row, good in zip(done, valid, strict=True)]


def run_filter(data: Any, step: dict[str, Any], folder: Path) -> Any:
    target, fault, modulus = Target(step, folder), Fault(step["fault"], folder), step["modulus"]

    def keep(part: Any) -> Any:
        fault(part["id"])
        if step["how"]["chunksize"] == 0:
            return int(part["id"].reshape(-1)[0]) % modulus != 0
        return first_id(part) % modulus != 0

    errors = {"on_error": tdmap.RowErrors()} if step["fault"]["kind"] == "raise" else {}
    out = target.out.get("out")
    return tdmap.filter(
        data, keep, out=out, chunksize=step["how"]["chunksize"], **target.resume, **errors, **options_of(step)
    )


def expect_filter(rows: list[Row], step: dict[str, Any], inner: tuple[int, ...]) -> list[Row]:
    bad = set(step["fault"]["rows"]) if step["fault"]["kind"] == "raise" else set()
    return [row for row in rows if number_of(row) % step["modulus"] != 0 and number_of(row) not in bad]


def run_flat_map(data: Any, step: dict[str, Any], folder: Path) -> Any:
    target, fault = Target(step, folder), Fault(step["fault"], folder)

    def repeat(part: Any) -> Any:
        fault(part["id"])
        chunk = part.unsqueeze(0) if step["how"]["chunksize"] == 0 else part
        numbers = first_id(chunk)
        index = torch.arange(len(numbers)).repeat_interleave(numbers.remainder(3))
        return chunk[index]

    errors = {"on_error": tdmap.RowErrors()} if step["fault"]["kind"] == "raise" else {}
    out = target.out.get("out")
    return tdmap.flat_map(
        data, repeat, out=out, chunksize=step["how"]["chunksize"], **target.resume, **errors, **options_of(step)
    )


def expect_flat_map(rows: list[Row], step: dict[str, Any], inner: tuple[int, ...]) -> list[Row]:
    bad = set(step["fault"]["rows"]) if step["fault"]["kind"] == "raise" else set()
    return [row for row in rows if number_of(row) not in bad for _ in range(number_of(row) % 3)]


def run_sort(data: Any, step: dict[str, Any], folder: Path) -> Any:
    fault, modulus = Fault(step["fault"], folder), step["modulus"]

    def key(part: Any) -> Any:
        fault(part["id"])
        numbers = first_id(part) * 37 % modulus
        return [f"k{n:03d}" for n in numbers.tolist()] if step["strings"] else numbers

    target = Target(step, folder)
    out = target.out.get("out")
    return tdmap.sort(data, key, out=out, descending=step["descending"], **target.resume, **options_of(step))


def expect_sort(rows: list[Row], step: dict[str, Any], inner: tuple[int, ...]) -> list[Row]:
    sign = -1 if step["descending"] else 1
    return sorted(rows, key=lambda row: sign * (number_of(row) * 37 % step["modulus"]))


def expect_shuffle(rows: list[Row], step: dict[str, Any], inner: tuple[int, ...]) -> list[Row]:
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(step["seed"])).tolist()
    return [rows[i] for i in order]


def run_map_groups(data: Any, step: dict[str, Any], folder: Path) -> Any:
    fault, modulus = Fault(step["fault"], folder), step["modulus"]

    def first(group: Any) -> Any:
        fault(group["id"])
        return group[:2]

    target = Target(step, folder)
    groups = tdmap.group_by(data, lambda part: first_id(part) % modulus)
    return groups.map_groups(first, **target.out, **target.resume, **options_of(step))


def expect_map_groups(rows: list[Row], step: dict[str, Any], inner: tuple[int, ...]) -> list[Row]:
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(number_of(row) % step["modulus"], []).append(row)
    return [row for key in sorted(groups) for row in groups[key][:2]]


def run_pipeline(data: Any, step: dict[str, Any], folder: Path) -> Any:
    fault, target = Fault(step["fault"], folder), Target(step, folder)
    pipeline = data.pipeline().map(Work(step["function"], fault))
    if step["modulus"]:
        pipeline = pipeline.filter(lambda part: first_id(part) % step["modulus"] != 0)
    if step["seed"] is not None:
        pipeline = pipeline.shuffle(step["seed"])
    if step["take"] is not None:
        pipeline = pipeline.skip(1).take(step["take"])
    if step["batch"]:
        pipeline = pipeline.batch(step["batch"])
    options = options_of(step)
    if target.kind == "memory" and step["batch"]:
        batches = list(pipeline.iter(**options))
        return torch.cat(batches) if batches else pipeline.collect(**options)
    if target.kind == "memory":
        return pipeline.collect(**options)
    return pipeline.write(target.path, **options)


def expect_pipeline(rows: list[Row], step: dict[str, Any], inner: tuple[int, ...]) -> list[Row]:
    if step["seed"] is not None:
        rows = expect_shuffle(rows, step, inner)  # rows that are filtered leave the others in their order
    rows = [mapped(row, step["function"], inner) for row in rows]
    if step["modulus"]:
        rows = [row for row in rows if number_of(row) % step["modulus"] != 0]
    if step["take"] is not None:
        rows = rows[1 : 1 + step["take"]]
    return rows


def run_in_place(data: Any, step: dict[str, Any], folder: Path) -> Any:
    fault = Fault(step["fault"], folder)

    def change(part: Any) -> None:
        part["id"].add_(1000)
        fault(part["id"] - 1000)

    errors = {"on_error": tdmap.RowErrors()} if step["fault"]["kind"] == "raise" else {}
    tdmap.map(data, change, chunksize=step["how"]["chunksize"], **errors, **options_of(step))
    return data


def expect_in_place(rows: list[Row], step: dict[str, Any], inner: tuple[int, ...]) -> list[Row]:
    bad = set(step["fault"]["rows"]) if step["fault"]["kind"] == "raise" else set()

    def change(row: Row) -> Row:
        if number_of(row) in bad:
            return row
        return {**row, "id": value_of(torch.full(inner, number_of(row) + 1000, dtype=torch.int64))}

    return [change(row) for row in rows]


def check_reduce(data: Any, rows: list[Row], step: dict[str, Any], folder: Path) -> None:
    """Compare statistics, over all rows and by group, with plain arithmetic."""
    fault = Fault(step["fault"], folder)
    numbers = [number_of(row) for row in rows]

    def numbered(part: Any) -> Any:
        fault(part["id"])
        return TensorDict({"id": first_id(part), "word": [f"w{n % 5}" for n in first_id(part).tolist()]}, [len(part)])

    parts = {"n": reducers.Count(), "sum": reducers.Sum("id"), "words": reducers.ValueCounts("word")}
    if numbers:
        parts |= {"min": reducers.Min("id"), "max": reducers.Max("id"), "top": reducers.TopK("id", 3)}
    found = tdmap.map_reduce(data, numbered, parts, chunksize=step["how"]["chunksize"] or None, **options_of(step))
    assert (int(found["n"]), int(found["sum"])) == (len(numbers), sum(numbers))
    counts = {f"w{n % 5}": sum(m % 5 == n % 5 for m in numbers) for n in numbers}
    if numbers:
        assert (int(found["min"]), int(found["max"])) == (min(numbers), max(numbers))
        assert found["top", "value"].tolist() == sorted(numbers, reverse=True)[:3]
        assert dict(zip(found["words", "value"], found["words", "count"].tolist(), strict=True)) == counts
    modulus = step["modulus"]
    groups = tdmap.group_by(data, lambda part: first_id(part) % modulus)
    if numbers:
        table = groups.reduce({"n": reducers.Count()}, **options_of(step))
        expected = {n % modulus: sum(m % modulus == n % modulus for m in numbers) for n in numbers}
        assert dict(zip(table["key"].tolist(), table["n"].tolist(), strict=True)) == expected


def check_listed(data: Any, rows: list[Row], step: dict[str, Any], folder: Path) -> None:
    """Compare an operation of the table of all operations with its result in plain Python."""
    operation, target = OPERATIONS[step["listed"]], Target(step, folder)
    x = torch.arange(len(rows)).flip(0)
    listed = data.copy().update({"x": x, "k": x % 3, "f": x.double() / 4})
    found = operation.read(operation.call(listed, **target.out, **target.resume, **options_of(step)))
    assert found == operation.expected(cells.rows_of(listed))


RUN: dict[str, Callable[[Any, dict[str, Any], Path], Any]] = {
    "map": run_map,
    "filter": run_filter,
    "flat_map": run_flat_map,
    "sort": run_sort,
    "map_groups": run_map_groups,
    "pipeline": run_pipeline,
    "in place": run_in_place,
}

EXPECT: dict[str, Callable[[list[Row], dict[str, Any], tuple[int, ...]], list[Row]]] = {
    "map": expect_map,
    "filter": expect_filter,
    "flat_map": expect_flat_map,
    "sort": expect_sort,
    "map_groups": expect_map_groups,
    "pipeline": expect_pipeline,
    "in place": expect_in_place,
}

CHECK: dict[str, Callable[[Any, list[Row], dict[str, Any], Path], None]] = {
    "reduce": check_reduce,
    "listed": check_listed,
}
"""Those whose results no later step works on."""

__all__ = ["CHECK", "EXPECT", "RUN", "Fault", "integers"]
