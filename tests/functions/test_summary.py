"""A first look at data: figures of columns against pandas, and parts for training and testing."""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tensordict_lite import NonTensorData, NonTensorStack, Ragged, TensorDict, lazy_stack, tensorclass

pandas = pytest.importorskip("pandas")


def made(rows: int = 500) -> TensorDict:
    generator = torch.Generator().manual_seed(0)
    return TensorDict(
        {
            "x": torch.randn(rows, generator=generator),
            "label": torch.randint(0, 5, (rows,), generator=generator) ** 2,
            "deep": TensorDict({"n": torch.arange(rows, dtype=torch.int32)}, [rows]),
            "text": [f"t{n}" for n in range(rows)],
        },
        [rows],
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_figures_are_those_of_pandas(tmp_path: Path, workers: int) -> None:
    data = made()
    found = tdmap.describe(data.memmap(tmp_path / "d"), num_workers=workers)
    expected = pandas.DataFrame(
        {"x": data["x"].numpy(), "label": data["label"].numpy(), "deep.n": data["deep", "n"].numpy()}
    )
    for name, column in expected.describe().items():
        one = found[name]
        assert one.count == column["count"] and one.min == column["min"] and one.max == column["max"]
        assert (one.mean, one.std) == pytest.approx((column["mean"], column["std"]), rel=1e-4)
    assert found.rows == 500 and found["text (length)"].count == 500 and not found.others
    head, *lines = repr(found).splitlines()[1:]
    assert "500 rows" in repr(found) and head.split() == "column count NaN min max mean std 5% 50% 95%".split()
    shown = {line.split()[0]: line.split()[7:10] for line in lines}
    assert shown["deep.n"] == list(found["deep.n"].texts[4:]) and shown["label"][1] == "4"


def test_ragged_entries_count_by_their_lengths() -> None:
    words, ids = Ragged.from_list(["a", "bbb", ""]), Ragged.from_list([[1], [], [2, 3]])
    found = tdmap.describe(TensorDict({"x": torch.arange(3), "word": words, "ids": ids}, [3]), num_workers=0)
    assert (found["word (length)"].max, found["word (length)"].count, found["x"].mean) == (3, 3, 1)
    assert found["ids (length)"].max == 2


@tensorclass
class Rows:
    x: torch.Tensor
    word: Any
    ids: Any
    json: Any


FORMS = ["columns", "objects", "files", "shards", "lazy stack", "tensorclass"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunksize", [1, None])
def test_figures_do_not_depend_on_how_rows_are_stored(form: str, chunksize: int | None, tmp_path: Path) -> None:
    x, ids = torch.tensor([1.0, 5.0, torch.nan, 2.0]), [torch.arange(n) for n in (2, 2, 0, 5)]
    objects: dict[str, list[Any]] = {"word": ["a", None, "", "bbb"], "json": [{"a": 1}, None, {}, {"b": [2]}]}
    columns = {"word": Ragged.from_list(objects["word"]), "json": Ragged.from_objects(objects["json"])}
    data: Any = TensorDict({"x": x, "ids": Ragged.from_list(ids), **columns}, [4])
    if form == "objects":
        data.update({name: NonTensorStack(*map(NonTensorData, rows)) for name, rows in objects.items()})
    elif form == "files":
        data = data.memmap(tmp_path / "data")
    elif form == "shards":
        for number in range(2):
            data[2 * number : 2 * number + 2].memmap(tmp_path / str(number))
        data = tdmap.open([tmp_path / "0", tmp_path / "1"])
    elif form == "lazy stack":
        wrapped = [{name: NonTensorData(rows[row]) for name, rows in objects.items()} for row in range(4)]
        data = lazy_stack([TensorDict({"x": x[row], "ids": ids[row], **wrapped[row]}) for row in range(4)])
    elif form == "tensorclass":
        data = Rows(x=x, ids=data.get("ids"), **columns, batch_size=[4])
    found = tdmap.describe(data, num_workers=0, chunksize=chunksize)
    assert set(found) == {"x", "ids", "ids (length)", "word (length)"} and found.others == {"json": "no numbers"}
    assert (found["x"].count, found["x"].nan, found["x"].max) == (4, 1, 5)
    assert (found["ids"].count, found["ids"].min, found["ids"].max) == (9, 0, 4)
    assert (found["ids (length)"].min, found["ids (length)"].mean, found["ids (length)"].max) == (0, 2.25, 5)
    word = found["word (length)"]
    assert (word.count, word.nan, word.min, word.max, word.mean) == (4, 1, 0, 3, pytest.approx(4 / 3))


def test_quantiles_of_shards_are_as_accurate_as_those_of_one_dataset(tmp_path: Path) -> None:
    x = torch.cat([torch.tensor([500_000.0]), torch.linspace(1, 1_000_000, 999)])
    for number in range(2):
        TensorDict({"x": x[500 * number :][:500]}, [500]).memmap(tmp_path / str(number))
    found = tdmap.describe(tdmap.open([tmp_path / "0", tmp_path / "1"]), num_workers=0)["x"]
    assert found == tdmap.describe(TensorDict({"x": x}, [1000]), num_workers=0)["x"]
    assert found.quantiles == pytest.approx(np.quantile(x, (0.05, 0.5, 0.95)), rel=0.011)


@pytest.mark.parametrize("kind", ["tensordict", "tensor", "ragged"])
@pytest.mark.parametrize("mapped", [False, True])
def test_parts_have_every_row_once(tmp_path: Path, kind: str, mapped: bool) -> None:
    numbers = torch.arange(101)
    words = Ragged.from_list([f"w{n}" for n in range(101)])
    data: Any = {
        "tensordict": TensorDict({"n": numbers}, [101]),
        "tensor": numbers,
        "ragged": TensorDict({"n": numbers, "word": words}, [101]),
    }[kind]

    def listed(part: Any) -> list[int]:
        if kind == "ragged":
            assert part["word"] == [f"w{n}" for n in part["n"].tolist()]
        return (part if kind == "tensor" else part["n"]).tolist()

    out = tmp_path / "parts" if mapped and kind != "tensor" else None
    train, test = tdmap.train_test_split(data, 0.2, seed=4, out=out, num_workers=2)
    assert (len(train), len(test)) == (81, 20)
    assert sorted(listed(train) + listed(test)) == list(range(101))
    again = tdmap.train_test_split(data, 20, seed=4, num_workers=0)
    assert [listed(part) for part in again] == [listed(train), listed(test)]
    other = tdmap.train_test_split(data, 0.2, seed=5, num_workers=0)
    assert listed(other[1]) != listed(test)
    assert [listed(part) for part in tdmap.train_test_split(data, 1, shuffle=False)] == [list(range(100)), [100]]


def test_each_label_has_its_share() -> None:
    data = made(1000)
    train, test = tdmap.train_test_split(data, 0.3, seed=1, stratify="label", num_workers=0)
    for label in data["label"].unique():
        share = int((test["label"] == label).sum()) / int((data["label"] == label).sum())
        assert abs(share - 0.3) < 0.02
    assert sorted(torch.cat([train["deep", "n"], test["deep", "n"]]).tolist()) == list(range(1000))
    assert train["deep", "n"].tolist() != sorted(train["deep", "n"].tolist())


CLASSES = {
    "rare": [100, *[1] * 100],
    "pairs": [100, *[3] * 30],
    "tail": [max(1307 // (n + 1), 1) for n in range(800)],
    "two": [7, 8],
    "many": [2] * 500,
}


@pytest.mark.parametrize("size", [1, 0.1, np.float32(0.25), Fraction(1, 4), 0.5, 0.9])
@pytest.mark.parametrize("kind", ["numbers", "strings", "labels"])
@pytest.mark.parametrize("case", CLASSES)
def test_each_label_is_within_a_row_of_its_share(case: str, kind: str, size: Any) -> None:
    sizes = np.array(CLASSES[case])
    numbers = torch.from_numpy(np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes)))
    rows = len(numbers)
    words = [f"w{number}" for number in numbers.tolist()]
    data = TensorDict({"label": words if kind == "strings" else numbers, "n": torch.arange(rows)}, [rows])
    stratify = words if kind == "labels" else "label"
    train, test = tdmap.train_test_split(data, size, seed=3, stratify=stratify, num_workers=0)
    count = size if isinstance(size, int) else round(rows * float(size))
    assert (len(train), len(test)) == (rows - count, count)
    found = np.bincount(numbers[test["n"]].numpy(), minlength=len(sizes))
    assert (np.abs(found - sizes * count / rows) < 1).all()
    assert sorted(torch.cat([train["n"], test["n"]]).tolist()) == list(range(rows))
    again = tdmap.train_test_split(data, size, seed=3, stratify=stratify, num_workers=2)
    assert torch.equal(again[1]["n"], test["n"]) and torch.equal(again[0]["n"], train["n"])


def test_rare_labels_are_chosen_at_random() -> None:
    labels = torch.arange(100)
    found = [tdmap.train_test_split(labels, 20, seed=n, stratify=labels, num_workers=0)[1] for n in range(60)]
    counts = torch.cat(found).bincount(minlength=100)
    assert counts.min() >= 1 and counts.max() <= 30


def test_sizes_that_leave_nothing_are_told() -> None:
    for size in (0, 0.0, 1.0, 10, -1, True, math.nan, math.inf, Fraction(1, 100)):
        with pytest.raises(ValueError, match="leaves a part without rows"):
            tdmap.train_test_split(torch.arange(10), size)
    with pytest.raises(TypeError, match="share or a number of rows: got .*split the test part again"):
        tdmap.train_test_split(torch.arange(10), (0.1, 0.2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shuffle=True"):
        tdmap.train_test_split(made(10), 2, stratify="label", shuffle=False)
    with pytest.raises(ValueError, match="one number or string a row"):
        tdmap.train_test_split(made(10), 2, stratify=torch.zeros(3))


def test_rows_are_spread_by_their_strings() -> None:
    words = ["cat", "dog", "cat", "cat", "dog", "cat"] * 10
    rows = TensorDict({"x": torch.arange(60), "n": {"word": words}}, [60])
    numbers = torch.tensor([word == "dog" for word in words])
    train, test = tdmap.train_test_split(rows, 0.3, seed=1, stratify=("n", "word"), num_workers=0)
    assert sorted(test["n", "word"]) == ["cat"] * 12 + ["dog"] * 6
    for labels in (words, np.array(words), numbers):
        again = tdmap.train_test_split(rows, 0.3, seed=1, stratify=labels, num_workers=0)
        assert sorted(again[1]["n", "word"]) == ["cat"] * 12 + ["dog"] * 6
    with pytest.raises(ValueError, match=r"one number or string a row, \[60\]"):
        tdmap.train_test_split(rows, 0.3, stratify=words[:3])
