"""Tokenising, preference pairs and prompts: with a tokenizer that is trained here, and datasets on disk."""

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tdmap.datasets.pairwise import PairwiseDataset, PromptData, RewardData
from tdmap.datasets.text import tokenise
from tensordict_lite import Ragged, TensorDict
from tensordict_lite.memmap.tensor import MemoryMappedTensor

tokenizers = pytest.importorskip("tokenizers")
datasets = pytest.importorskip("datasets")

TEXTS = [" ".join(f"word{(number * step) % 37}" for step in range(number % 11)) for number in range(300)]


@pytest.fixture(scope="module")
def fast() -> Any:
    """A tokenizer of `tokenizers`, trained on the texts."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>", "<pad>"], show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def hugging(fast: Any) -> Any:
    """The same one as transformers has it."""
    transformers = pytest.importorskip("transformers")  # slow: not for those who only collect
    return transformers.PreTrainedTokenizerFast(tokenizer_object=fast, unk_token="<unk>", pad_token="<pad>")


def wanted(hugging: Any, texts: list[str], max_length: int | None = None) -> list[list[int]]:
    """What the tokenizer says itself, one text at a time."""
    return [hugging(text)["input_ids"][:max_length] for text in texts]


@pytest.mark.parametrize("kind", ["hugging", "fast", "function"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("max_length", [None, 7])
def test_tokens_are_those_of_the_tokenizer(
    tmp_path: Path, hugging: Any, fast: Any, kind: str, workers: int, max_length: int | None
) -> None:
    tokenizer = {"hugging": hugging, "fast": fast, "function": lambda texts: wanted(hugging, texts)}[kind]
    texts = TensorDict({"text": Ragged.from_list(TEXTS)}, [len(TEXTS)]).memmap(tmp_path / "texts")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tokenise(
            texts, tokenizer, out=tmp_path / "out", max_length=max_length, num_workers=workers, resume=True
        )
    rows = wanted(hugging, TEXTS, max_length)
    assert found["input_ids"].tolist() == rows
    again = tokenise(Ragged.from_list(TEXTS), tokenizer, max_length=max_length, num_workers=workers)
    assert again["input_ids"].tolist() == rows


@pytest.mark.parametrize("left", [False, True])
def test_padded_rows_have_a_mask(tmp_path: Path, hugging: Any, left: bool) -> None:
    found = tokenise(TEXTS, hugging, max_length=9, pad=True, left=left, out=tmp_path / "out", num_workers=2)
    for row, tokens in zip(found, wanted(hugging, TEXTS, 9), strict=True):
        blank = [hugging.pad_token_id] * (9 - len(tokens))
        assert row["input_ids"].tolist() == (blank + tokens if left else tokens + blank)
        ones, zeros = [1] * len(tokens), [0] * len(blank)
        assert row["attention_mask"].tolist() == (zeros + ones if left else ones + zeros)


def test_packed_blocks_hold_all_tokens(tmp_path: Path, hugging: Any) -> None:
    found = tokenise(TEXTS, hugging, pack=16, columns=["document"], out=tmp_path / "out", num_workers=2)
    flat = [(token, number) for number, row in enumerate(wanted(hugging, TEXTS)) for token in row]
    flat = flat[: len(flat) // 16 * 16]
    assert list(zip(found["input_ids"].flatten().tolist(), found["document"].flatten().tolist(), strict=True)) == flat
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def codes(texts: list[str]) -> list[list[int]]:
    return [[ord(letter) for letter in text] for text in texts]


@pytest.mark.parametrize("options", [{}, {"pad": True, "max_length": 2}, {"pack": 2}], ids=str)
def test_a_dataset_of_tokens_is_replaced_when_it_is_asked_for(tmp_path: Path, options: Any) -> None:
    out = tmp_path / "out"
    TensorDict({"old": torch.arange(3)}, [3]).memmap(out)

    def untouched(texts: list[str]) -> list[list[int]]:
        raise AssertionError("nothing is tokenised that has no place")

    with pytest.raises(FileExistsError, match="overwrite=True"):
        tokenise(["ab", "cd"], untouched, out=out, num_workers=0, **options)
    with pytest.raises(ZeroDivisionError):
        tokenise(["ab", "cd"], lambda texts: 1 // 0, out=out, overwrite=True, num_workers=0, **options)
    assert TensorDict.load_memmap(out)["old"].tolist() == [0, 1, 2]
    tokens = tokenise(["ab", "cd"], codes, out=out, overwrite=True, num_workers=2, **options)
    assert tokens["input_ids"].tolist() == [[97, 98], [99, 100]]
    assert os.listdir(tmp_path) == ["out"] and "old" not in TensorDict.load_memmap(out).keys()
    with pytest.raises(ValueError, match="out must be its path"):
        tokenise(["ab"], codes, overwrite=True, num_workers=0, **options)


def test_the_column_is_found_in_any_dataset(hugging: Any) -> None:
    rows = TensorDict({"x": torch.arange(300), "in": {"text": TEXTS}}, [300])
    for data, key in [(rows, None), (rows, ("in", "text")), (rows, "in.text"), ({"text": TEXTS}, "text")]:
        assert tokenise(data, hugging, key, num_workers=0)["input_ids"].tolist() == wanted(hugging, TEXTS)
    with pytest.raises(KeyError, match="no column 'y'. Columns: 'in.text'"):
        tokenise(rows, hugging, "y")
    with pytest.raises(TypeError, match=r"the column 'x' must be text: it is torch.int64 \[300\]"):
        tokenise(rows, hugging, "x")
    with pytest.raises(KeyError, match=r"pass key=: columns of text are 'a', 'b'"):
        tokenise({"a": ["x"], "b": ["y"]}, hugging)
    with pytest.raises(TypeError, match="must be text"):
        tokenise(Ragged.from_list([[1]]), hugging)


def test_options_that_do_not_fit_are_told(fast: Any, hugging: Any) -> None:
    with pytest.raises(ValueError, match="max_length"):
        tokenise(TEXTS, hugging, pad=True)
    with pytest.raises(ValueError, match="out"):
        tokenise(TEXTS, hugging, resume=True)
    bare = pytest.importorskip("transformers").PreTrainedTokenizerFast(tokenizer_object=fast, unk_token="<unk>")
    with pytest.raises(ValueError, match=r"no pad token: set tokenizer\.pad_token"):
        tokenise(TEXTS, bare, max_length=4, pad=True)
    with pytest.raises(ValueError, match="called with 1 texts, and returned 2"):
        tokenise(["a"], lambda texts: [[1], [2]], num_workers=0)
    with pytest.raises(TypeError, match="a tokenizer or a function"):
        tokenise(["a"], 3)


def pairs() -> dict[str, list[str]]:
    """Prompts with two answers; every fifth pair is equal, every seventh differs behind the tenth token only."""
    found: dict[str, list[str]] = {"prompt": [], "chosen": [], "rejected": []}
    for number in range(600):
        found["prompt"].append(f"word{number % 37} word{number % 5}")
        answer = f"word{number % 31}"
        other = answer if number % 5 == 0 else f"word{(number + 1) % 31}"
        if number % 7 == 0:
            answer, other = "word1 " * 40 + answer, "word1 " * 40 + "word9 word8"
        found["chosen"].append(answer)
        found["rejected"].append(other)
    return found


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    made = datasets.Dataset.from_dict({**pairs(), "other": list(range(600))})
    splits = datasets.DatasetDict(train=made, valid1=made.select(range(50)))
    splits.save_to_disk(str(tmp_path / "comparisons"))
    return tmp_path / "comparisons"


def expected(hugging: Any, max_length: int) -> list[tuple[list[int], list[int]]]:
    """The pairs by a plain loop."""
    found = []
    data = pairs()
    for prompt, chosen, rejected in zip(data["prompt"], data["chosen"], data["rejected"], strict=True):
        rows = []
        for answer in (chosen, rejected):
            tokens = hugging(f"{prompt}\n{answer}")["input_ids"][:max_length]
            rows.append(tokens + [hugging.pad_token_id] * (max_length - len(tokens)))
        if rows[0] != rows[1]:
            found.append((rows[0], rows[1]))
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_pairs_are_those_of_a_plain_loop(tmp_path: Path, saved: Path, hugging: Any, workers: int) -> None:
    data = PairwiseDataset.from_dataset(
        "train", str(saved), 20, tmp_path / "root", True, num_workers=workers, tokenizer=hugging
    )
    rows = expected(hugging, 20)
    assert 0 < len(rows) < 600
    assert type(data) is PairwiseDataset and type(data.chosen_data) is RewardData
    assert data.batch_size == (len(rows),)
    assert data.chosen_data.input_ids.tolist() == [chosen for chosen, _ in rows]
    assert data.rejected_data.input_ids.tolist() == [rejected for _, rejected in rows]
    assert torch.equal(data.chosen_data.attention_mask, (data.chosen_data.input_ids != hugging.pad_token_id).long())
    assert isinstance(data.chosen_data.input_ids, MemoryMappedTensor)
    assert data.chosen_data.rewards is None and data.chosen_data.end_scores is None
    part = data[:3]
    assert type(part) is PairwiseDataset and part.chosen_data.input_ids.shape == (3, 20)


def test_pairs_are_tokenised_once(tmp_path: Path, saved: Path, hugging: Any) -> None:
    options: Any = {"max_length": 12, "root_dir": tmp_path / "root", "from_disk": True, "tokenizer": hugging}
    first = PairwiseDataset.from_dataset("train", str(saved), num_workers=0, **options)
    folders = list((tmp_path / "root").glob("*/*"))
    written = [(path, path.stat().st_mtime_ns) for path in folders[0].rglob("*.memmap")]
    again = PairwiseDataset.from_dataset("train", str(saved), num_workers=0, **options)
    assert [(path, path.stat().st_mtime_ns) for path in folders[0].rglob("*.memmap")] == written
    assert torch.equal(first.chosen_data.input_ids, again.chosen_data.input_ids)
    PairwiseDataset.from_dataset("valid", str(saved), num_workers=0, **options)
    PairwiseDataset.from_dataset("train", str(saved), num_workers=0, **{**options, "max_length": 13})
    assert len(list((tmp_path / "root").glob("*/*"))) == 3


def test_missing_splits_and_columns_are_told(tmp_path: Path, saved: Path, hugging: Any) -> None:
    options: Any = {"root_dir": tmp_path / "root", "from_disk": True, "tokenizer": hugging, "num_workers": 0}
    with pytest.raises(ValueError, match="no split 'test'. Splits: 'train', 'valid1'"):
        PairwiseDataset.from_dataset("test", str(saved), **options)
    with pytest.raises(ValueError, match="no column 'label'. Columns: 'prompt'"):
        PromptData.from_dataset("train", str(saved), **options)
    same = datasets.Dataset.from_dict({"prompt": ["a"], "chosen": ["b"], "rejected": ["b"]})
    same.save_to_disk(str(tmp_path / "same"))
    with pytest.raises(ValueError, match="all of them are equal"):
        PairwiseDataset.from_dataset("train", str(tmp_path / "same"), **options)
    assert not os.path.exists(tmp_path / "root" / "comparisons")


def test_prompts_know_where_they_end(tmp_path: Path, hugging: Any) -> None:
    rows = {"prompt": [f"word{n} word{n + 1}" for n in range(30)], "label": [f"word{n % 7}" for n in range(30)]}
    datasets.DatasetDict(train=datasets.Dataset.from_dict(rows)).save_to_disk(str(tmp_path / "d"))
    data = PromptData.from_dataset("train", str(tmp_path / "d"), 16, tmp_path / "r", True, 2, tokenizer=hugging)
    assert type(data) is PromptData and data.batch_size == (30,)
    for row, prompt, label in zip(data, rows["prompt"], rows["label"], strict=True):
        tokens = hugging(f"{prompt}\n{label}")["input_ids"][:16]
        assert row.input_ids[: len(tokens)].tolist() == tokens
        assert int(row.prompt_rindex) == len(hugging(prompt)["input_ids"]) - 1
        assert torch.equal(row.labels, row.input_ids)


@pytest.mark.parametrize(
    ("rows", "found"),
    [(None, "NoneType"), (["h"], "str for one"), ([1], "int for one"), ([["h"]], "something else")]
    + [([row], "something else") for row in (["7"], [1.5, 2], np.array([2.0]), torch.tensor([0.5]))],
)
def test_a_tokenizer_that_returns_no_numbers_is_told(rows: Any, found: str) -> None:
    with pytest.raises(TypeError, match=f"sequence of integers for each .*: got {found}"):
        tokenise(["text"], lambda texts: rows, num_workers=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_tokens_that_do_not_fit_are_named(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    ids = {"a": [limits.max], "": [], "b": [limits.min]}
    kept = tokenise(list(ids), lambda texts: [ids[text] for text in texts], dtype=dtype, num_workers=0)
    assert [row.tolist() for row in kept["input_ids"]] == [[limits.max], [], [limits.min]]
    for token in (limits.max + 1, limits.min - 1):
        with pytest.raises(OverflowError, match=rf"{dtype} does not hold the token {token}: pass a wider dtype="):
            tokenise(["a b"], lambda texts, token=token: [[0, token]], dtype=dtype, num_workers=0)


@pytest.mark.parametrize("options", [{"pack": 0}, {"max_length": -1}, {"max_length": 1.5}, {"pack": True}])
def test_numbers_of_tokens_are_checked_at_once(options: Any) -> None:
    with pytest.raises(ValueError, match="must be an integer of at least 1"):
        tokenise(["text"], lambda texts: [[1]] * len(texts), num_workers=0, **options)
