"""Keys that are equal in their first hundreds of bytes: their order is that of Python, and equal ones are one key."""

import random
from collections import Counter

import pytest
import torch

import tdmap
from tdmap.keys import ranks
from tensordict_lite import Ragged, TensorDict


def texts(count: int) -> list[str]:
    """Texts with common beginnings of up to 5 000 bytes, some of them equal, some the beginning of others."""
    chance = random.Random(3)
    begins = ["", "a" * 120, "a" * 128, "a" * 136, "b" * 5000, "b" * 4999, "é" * 64 + "x"]
    ends = ["", "\0", "\0\0", "a", "z", "é", "a" * 8, "a" * 9, "tail" * 50]
    return [chance.choice(begins) + chance.choice(ends) for _ in range(count)]


@pytest.mark.parametrize("whole_bytes", [ranks.WHOLE_BYTES, 20_000, 0])
@pytest.mark.parametrize("kind", ["str", "bytes"])
def test_long_keys_are_in_the_order_of_python(kind, whole_bytes):
    rows = texts(200) if kind == "str" else [text.encode() for text in texts(200)]
    columns = [Ragged.from_list(part) for part in (rows[:70], rows[70:])]
    found = ranks.ranks_of(columns, whole_bytes)
    numbers = {key: number for number, key in enumerate(sorted(set(rows)))}
    assert torch.cat(found).tolist() == [numbers[key] for key in rows]


@pytest.mark.parametrize("late", [0, 40, 600], ids=["known at once", "some late", "too many"])
@pytest.mark.parametrize("longest", [0, 3, 8, 9, 63, 64, 65])
@pytest.mark.parametrize("kind", ["str", "bytes", "None"])
def test_few_values_are_in_the_order_of_python(kind, longest, late):
    chance = random.Random(longest)
    values = ["\0" * n for n in range(longest + 1)]
    values += ["".join(chance.choice("\0aé") for _ in range(longest // 2)) + "x" * (longest % 2) for _ in range(50)]
    rows = [chance.choice(values) for _ in range(9000)] + [f"{n}"[:longest] for n in range(late)] + values
    if kind == "bytes":
        rows = [row.encode()[:longest] for row in rows]
    columns = [Ragged.from_list(rows[:7000]), Ragged.from_list(rows[7000:])[torch.arange(len(rows) - 7000)]]
    found = torch.cat(ranks.ranks_of(columns))
    numbers = {key: number for number, key in enumerate(sorted(set(rows)))}
    assert found.tolist() == [numbers[key] for key in rows]
    if kind == "None":
        rows[::1000] = [None] * len(rows[::1000])
    data = TensorDict({"t": Ragged.from_list(rows)}, [len(rows)])
    counts = tdmap.value_counts(data, "t", sort=False, num_workers=0)
    wanted = Counter(rows)
    assert list(counts["t"]) == sorted(wanted, key=lambda row: (row is None, row or rows[1][:0]))
    assert counts["count"].tolist() == [wanted[row] for row in counts["t"]]


def test_documents_that_are_there_twice_are_found(tmp_path):
    long = "word " * 200_000
    rows = [long, "short", long + "x", long, "short", "other"]
    data = TensorDict({"text": Ragged.from_list(rows), "n": torch.arange(6)}, [6]).memmap(tmp_path / "in")
    assert tdmap.drop_duplicates(data, "text", num_workers=0)["n"].tolist() == [0, 1, 2, 5]
