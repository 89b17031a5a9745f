"""Text belongs to its row: the entries of a row are read, written, shared and copied together, whatever they hold.

Each program takes a part of a dataset or makes another from it, and writes rows into one of the two. Afterwards every
row of both must hold the text of its number. The numbers are a tensor, so torch decides which rows a write reaches.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import Ragged, TensorDict, lazy_stack, tensorclass
from tests.products import sampled

N = 6

TEXTS: dict[str, Callable[[int], Any]] = {
    "list": lambda i: f"row {i}",
    "objects": lambda i: {"row": [i]},
    "text": lambda i: f"row {i}" * (i % 3),
    "bytes": lambda i: b"%d" % i,
    "numbers": lambda i: [i, i],
    "json": lambda i: {"row": i},
}


def column(text: str, numbers: list[int]) -> Any:
    values = [TEXTS[text](i) for i in numbers]
    if text in ("list", "objects"):
        return values
    return Ragged.from_objects(values) if text == "json" else Ragged.from_list(values)


def rows(text: str, numbers: list[int]) -> TensorDict:
    inner = TensorDict({"t": column(text, numbers)}, [len(numbers)])
    return TensorDict({"id": torch.tensor(numbers), "t": column(text, numbers), "in": inner}, [len(numbers)])


@tensorclass
class Sample:
    id: torch.Tensor
    t: Any
    inner: Any


def as_class(data: TensorDict) -> Any:
    return Sample(data["id"], data.get("t"), data["in"], batch_size=data.batch_size)


KINDS: dict[str, Callable[[str, Path], Any]] = {
    "memory": lambda text, folder: rows(text, list(range(N))),
    "locked": lambda text, folder: rows(text, list(range(N))).lock_(),
    "class": lambda text, folder: as_class(rows(text, list(range(N)))),
    "lazy": lambda text, folder: lazy_stack(list(rows(text, list(range(N))).unbind(0))),
    "lazy of parts": lambda text, folder: lazy_stack(list(rows(text, list(range(N))).split(2)), 0).reshape(N),
    "mapped": lambda text, folder: rows(text, list(range(N))).memmap(folder / "data"),
    "mapped lazy": lambda text, folder: KINDS["lazy"](text, folder).memmap(folder / "data", allow_pickle=True),
    "shared": lambda text, folder: rows(text, list(range(N))).share_memory_(),
    "loaded": lambda text, folder: TensorDict.load_memmap(
        rows(text, list(range(N))).memmap(folder / "data")._memmap_path
    ),
}

PARTS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda data: data[:],
    "slice": lambda data: data[1:5],
    "step": lambda data: data[::2],
    "slice of a slice": lambda data: data[1:][1:],
    "row": lambda data: data[2],
    "list": lambda data: data[[4, 1, 1]],
    "index": lambda data: data[torch.tensor([3, 0])],
    "index of two dimensions": lambda data: data[torch.tensor([[3, 0], [1, 3]])],
    "mask": lambda data: data[data["id"] % 2 == 0] if isinstance(data, TensorDict) else data[torch.arange(N) % 2 == 0],
    "slice of an index": lambda data: data[[4, 1, 0]][:2],
    "index of a slice": lambda data: data[2:][[0, 2]],
    "split": lambda data: data.split(2)[1],
    "chunk": lambda data: data.chunk(2)[1],
    "narrow": lambda data: data.narrow(0, 1, 3),
    "unbind": lambda data: data.unbind(0)[3],
    "iter": lambda data: next(iter(data)),
    "view": lambda data: data.view(2, 3),
    "row of a view": lambda data: data.view(2, 3)[1],
    "reshape": lambda data: data.reshape(3, 2),
    "flatten": lambda data: data.view(2, 3).flatten(0, 1),
    "unsqueeze": lambda data: data.unsqueeze(0),
    "row of unsqueeze": lambda data: data.unsqueeze(0)[0],
    "unsqueeze behind": lambda data: data.unsqueeze(-1),
    "squeeze": lambda data: data.unsqueeze(0).squeeze(0),
    "new axis": lambda data: data[None],
    "new axis behind": lambda data: data[:, None],
    "transpose": lambda data: data.view(2, 3).transpose(0, 1),
    "permute": lambda data: data.view(2, 3).permute(1, 0)[0],
    "expand": lambda data: data[:1].expand(1),
    "select": lambda data: data.select("id", "t", *[key for key in data.keys() if key in ("in", "inner")]),
    "shallow copy": lambda data: data.clone(False),
    "clone": lambda data: data.clone(),
    "to_tensordict": lambda data: data.to_tensordict(),
    "contiguous": lambda data: data.contiguous(),
    "repeat": lambda data: data.repeat(2),
    "repeat_interleave": lambda data: data.repeat_interleave(2, dim=0),
    "flip": lambda data: data.flip(0),
    "roll": lambda data: data.roll(1, 0),
    "gather": lambda data: data.gather(0, torch.tensor([1, 0, 5])),
    "masked_select": lambda data: data.masked_select(torch.arange(N) < 3),
    "where": lambda data: data.where(torch.arange(N) < 3, data),
    "sum": lambda data: data + 0,
    "apply": lambda data: data.apply(torch.clone),
    "stack": lambda data: torch.stack([data[1], data[3]]),
    "stack of slices": lambda data: torch.stack([data[1:3], data[3:5]]),
    "lazy stack": lambda data: lazy_stack([data[1], data[3]]),
    "lazy stack of slices": lambda data: lazy_stack([data[1:3], data[[3, 4]]]),
    "cat": lambda data: torch.cat([data[:2], data[4:]]),
    "cat of a selection": lambda data: torch.cat([data[:2], data[[5, 0]]]),
}
"""Parts of a dataset of `N` rows, and datasets made of it: views, and copies."""


def donor(text: str, like: Any) -> Any:
    """Other rows of the batch size of `like`."""
    count = like.batch_size.numel()
    made = rows(text, [10 + i for i in range(count)])
    made = made[0] if not like.batch_dims else made.view(like.batch_size)
    made = made.select(*like.keys()) if isinstance(like, TensorDict) else made
    return as_class(made) if hasattr(like, "inner") else made.rename_key_("in", "inner") if "inner" in like else made


def first(part: Any) -> Any:
    return (0,) * part.batch_dims


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "update_": lambda part, new: part.update_(new),
    "copy_": lambda part, new: part.copy_(new),
    "[:] =": lambda part, new: part.__setitem__(slice(None), new) if part.batch_dims else part.update_(new),
    "[0] =": lambda part, new: part.__setitem__(0, new[0]) if part.batch_dims else part.update_(new),
    "[0, 0] =": lambda part, new: part.__setitem__(first(part), new[first(part)]) if part.batch_dims else None,
    "[:1] =": lambda part, new: part.__setitem__(slice(1), new[:1]) if part.batch_dims else part.update_(new),
    "[list] =": lambda part, new: part.__setitem__([0], new[[0]]) if part.batch_dims else part.update_(new),
    "[mask] =": lambda part, new: (
        part.__setitem__(torch.ones(part.shape, dtype=torch.bool), new.reshape(-1)) if part.batch_dims else None
    ),
    "each row": lambda part, new: (
        [row.update_(other) for row, other in zip(part, new, strict=True)] if part.batch_dims else part.update_(new)
    ),
    "each [0]": lambda part, new: part[:1][0].update_(new[:1][0]) if part.batch_dims else part.update_(new),
    "update(inplace)": lambda part, new: part.update(new, inplace=True),
    "set_": lambda part, new: [part.set_(key, new.get(key)) for key in part.keys()],
    "set_at_": lambda part, new: (
        [part.set_at_(key, new.get(key)[:1], slice(1)) for key in part.keys()] if part.batch_dims else None
    ),
    "update_at_": lambda part, new: part.update_at_(new[:1], slice(1)) if part.batch_dims else None,
    "stack(out=)": lambda part, new: (
        torch.stack([new[0], new[0]], out=part[:2]) if len(part.shape) == 1 < len(part) else 0
    ),
}


def torn(data: Any, text: str) -> list[Any]:
    """Numbers of the rows that do not hold their text, with what they hold."""
    found = []
    for row in data.reshape(-1) if data.batch_dims else [data]:
        number = int(row["id"] if not hasattr(row, "inner") else row.id)
        entries = [row.get("t")]
        if "in" in row.keys() or hasattr(row, "inner"):
            entries.append((row.inner if hasattr(row, "inner") else row["in"]).get("t"))
        for value in entries:
            value = getattr(value, "data", value) if not isinstance(value, torch.Tensor) else value.tolist()
            value = value.tolist() if isinstance(value, torch.Tensor) else value
            if value != TEXTS[text](number):
                found.append((number, value))
    return found


def programs(text: str, kind: str, part_name: str, folder: Path) -> list[tuple[str, int, list[Any]]]:
    """What each write into a part, and into the whole, has torn: its name, the rows that were read, and those torn."""
    done = []
    for into in ("part", "whole"):
        for name, write in WRITES.items():
            place = folder / f"{into} {name.replace('/', '')}"
            data = KINDS[kind](text, place)
            part = PARTS[part_name](data)
            target = part if into == "part" else data
            try:
                write(target, donor(text, target))
            except (RuntimeError, NotImplementedError, ValueError):  # refused: nothing to compare
                continue
            bad = torn(data, text) + torn(part, text)
            done.append((f"{name} into the {into}", N + part.batch_size.numel(), bad))
    return done


@pytest.mark.parametrize("kind, text, part", sampled(47, KINDS, TEXTS, PARTS))
def test_a_write_reaches_text_and_numbers_of_the_same_rows(kind: str, text: str, part: str, tmp_path: Path) -> None:
    if text == "numbers" and part in ("sum", "apply"):
        pytest.skip("these share the numbers")
    wrong = {name: bad for name, _, bad in programs(text, kind, part, tmp_path) if bad}
    assert not wrong


@pytest.mark.parametrize("text", TEXTS)
def test_rows_that_are_held_are_written_beside_selections(text: str) -> None:
    data = rows(text, list(range(N)))
    held, before = data[0], data[[0, 1]]
    later = rows(text, list(range(N)))
    selected, other = later[[0, 1]], later[:2]
    for row, parts in ((held, (data, before)), (later[1], (later, selected, other)), (selected[0], (later, selected))):
        row.update_(rows(text, [12])[0])
        assert not [torn(part, text) for part in (row, *parts) if torn(part, text)]


@pytest.mark.parametrize("part", ["unsqueeze", "new axis", "view", "expand", "shallow copy", "contiguous", "whole"])
@pytest.mark.parametrize("kind", ["memory", "locked", "mapped", "unlocked"])
def test_one_object_for_all_rows_is_written_through_views_of_all_rows(kind: str, part: str, tmp_path: Path) -> None:
    data = TensorDict({"id": torch.zeros(N), "t": "old"}, [N])
    data = data.memmap(tmp_path) if kind == "mapped" else data.lock_() if kind == "locked" else data
    if kind == "unlocked":
        data = data.memmap(tmp_path)
    view = data[:1].expand(1) if part == "expand" else PARTS[part](data)
    if kind == "unlocked":  # after the view was made: the file is no longer that of the entry
        data.unlock_()
    view.update_(TensorDict({"id": torch.ones(view.shape), "t": "new"}, view.shape))
    assert view["t"] == "new"
    copies = data.clone(), data[[1, 0]], data.repeat(2), data.flip(0), data + 0
    for seen in (data, TensorDict.load_memmap(tmp_path)) if kind == "mapped" else (data,):
        assert (seen["t"], float(seen["id"][0])) == ("old" if part == "expand" else "new", 1)
    for copied in copies:
        copied.update_(TensorDict({"id": torch.full(copied.shape, 2.0), "t": "other"}, copied.shape))
        assert data["t"] != "other"
