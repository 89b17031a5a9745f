"""Preference pairs and prompts for training language models: tokenised once, memory-mapped ever after."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from tdmap.arguments import require_integer
from tdmap.datasets.text import Tokenizer, fixed_rows, one_thread_each
from tdmap.ops.flat_map import flat_map
from tensordict_lite import TensorClass, TensorDict
from tensordict_lite.memmap.disk.files import is_there
from tensordict_lite.packages import need

ROOT = "~/.cache/tdmap/data"
PAIRS, PROMPTS = "CarperAI/openai_summarize_comparisons", "CarperAI/openai_summarize_tldr"
CHUNK_ROWS = 256
"""Rows that a worker tokenises at a time."""

_ALSO = {"valid": ("validation", "valid1"), "validation": ("valid",)}
"""What splits are called elsewhere."""


class RewardData(TensorClass):
    """Texts to be scored by a reward model.

    Attributes:
        input_ids: int64 `[n, max_length]`, tokens.
        attention_mask: int64 `[n, max_length]`, 1 where tokens are.
        rewards: float `[n, max_length]`, or None: the score at each token.
        end_scores: float `[n]`, or None: the score of the whole text.
    """

    input_ids: Tensor
    attention_mask: Tensor
    rewards: Tensor | None = None
    end_scores: Tensor | None = None


class PairwiseDataset(TensorClass):
    """Pairs of a preferred and a rejected text.

    Attributes:
        chosen_data: the preferred texts.
        rejected_data: the rejected texts.
    """

    chosen_data: RewardData
    rejected_data: RewardData

    @classmethod
    def from_dataset(
        cls,
        split: str,
        dataset_name: str | None = None,
        max_length: int = 550,
        root_dir: str | os.PathLike[str] | None = None,
        from_disk: bool = False,
        num_workers: int | None = None,
        *,
        tokenizer: Any = None,
    ) -> PairwiseDataset:
        """Tokenise a dataset with the columns `prompt`, `chosen` and `rejected`, or open the result of an earlier call.

        A text is the prompt, a newline and the answer, truncated at `max_length` tokens and padded with the pad token.
        Pairs that are then equal are left out. The same call resumes after an interruption.

        Args:
            split: `"train"`, `"valid"`...
            dataset_name: name of a dataset on the Hugging Face hub, or with `from_disk` a folder that `save_to_disk`
                wrote. Default: `"CarperAI/openai_summarize_comparisons"`.
            max_length: tokens of a text.
            root_dir: folder of tokenised datasets. Default: `~/.cache/tdmap/data`.
            from_disk: read the folder `dataset_name`, with `datasets.load_from_disk`.
            num_workers: number of processes. Default: the cores that this process may use.
            tokenizer: as in `tdmap.datasets.tokenise`. Default: the GPT-2 tokenizer of `transformers`, with the
                end-of-text token as pad token.

        Returns:
            Memory-mapped, batch size `[pairs]`.

        Raises:
            ImportError: `datasets` (or `transformers`) is not installed; says what to install.
            ValueError: the split is unknown, a column is missing, all pairs are equal, or the tokenizer has no pad
                token.
        """
        names = ("prompt", "chosen", "rejected")
        data = _prepared(
            split, dataset_name or PAIRS, max_length, root_dir, from_disk, num_workers, tokenizer, names, pairs
        )
        chosen, rejected = (RewardData.from_tensordict(data[key]) for key in PARTS)
        return cls(chosen_data=chosen, rejected_data=rejected, batch_size=data.batch_size)


class PromptData(TensorClass):
    """Prompts with their answers.

    Attributes:
        input_ids: int64 `[n, max_length]`, tokens of prompt and answer.
        attention_mask: int64 `[n, max_length]`, 1 where tokens are.
        prompt_rindex: int64 `[n]`, the position of the prompt's last token.
        labels: int64 `[n, max_length]`, or None: the tokens to learn.
        logits, loss: for results of a model.
    """

    input_ids: Tensor
    attention_mask: Tensor
    prompt_rindex: Tensor
    labels: Tensor | None = None
    logits: Tensor | None = None
    loss: Tensor | None = None

    @classmethod
    def from_dataset(
        cls,
        split: str,
        dataset_name: str | None = None,
        max_length: int = 550,
        root_dir: str | os.PathLike[str] | None = None,
        from_disk: bool = False,
        num_workers: int | None = None,
        *,
        tokenizer: Any = None,
    ) -> PromptData:
        """Tokenise a dataset with the columns `prompt` and `label`, or open the result of an earlier call.

        Arguments and errors are those of `PairwiseDataset.from_dataset`; the default dataset is
        `"CarperAI/openai_summarize_tldr"`. `labels` are the tokens.
        """
        names = ("prompt", "label")
        data = _prepared(
            split, dataset_name or PROMPTS, max_length, root_dir, from_disk, num_workers, tokenizer, names, prompts
        )
        found = data.copy()
        found["labels"] = data["input_ids"]
        return cls.from_tensordict(found)


PARTS = ("chosen_data", "rejected_data")

Tokenised: TypeAlias = "Callable[[dict[str, list[str]], Tokenizer, int], TensorDict]"
"""Makes rows of some columns of text, with a tokenizer, and so many tokens of each text."""


class Prepare:
    """Reads rows of a Hugging Face dataset in workers, and tokenises them.

    Args:
        dataset: opened by name in each worker.
        tokenised, tokenizer, max_length: see `Tokenised`.
    """

    def __init__(self, dataset: Any, tokenised: Tokenised, tokenizer: Tokenizer, max_length: int) -> None:
        self.dataset = dataset
        self.tokenised = tokenised
        self.tokenizer = tokenizer
        self.max_length = max_length

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged."""
        parts = {"dataset": str(self.dataset._fingerprint), "max_length": str(self.max_length)}
        return {**parts, **self.tokenizer.identity_parts(), "kind": self.tokenised.__name__}

    def __call__(self, rows: TensorDict) -> TensorDict:
        first, count = int(rows["row"][0]), len(rows["row"])
        return self.tokenised(self.dataset[first : first + count], self.tokenizer, self.max_length)


def pairs(columns: dict[str, list[str]], tokenizer: Tokenizer, max_length: int) -> TensorDict:
    """Pairs that differ."""
    found = {}
    for part, name in zip(PARTS, ("chosen", "rejected")):
        texts = [f"{prompt}\n{answer}" for prompt, answer in zip(columns["prompt"], columns[name])]
        ids, mask = fixed_rows(tokenizer, texts, max_length)
        found[part] = TensorDict({"input_ids": ids, "attention_mask": mask}, [len(ids)])
    chosen, rejected = (found[part] for part in PARTS)
    differ = (chosen["input_ids"] != rejected["input_ids"]) | (chosen["attention_mask"] != rejected["attention_mask"])
    return cast(TensorDict, TensorDict(found, [len(differ)])[differ.any(1)])


def prompts(columns: dict[str, list[str]], tokenizer: Tokenizer, max_length: int) -> TensorDict:
    """Prompts and answers."""
    texts = [f"{prompt}\n{answer}" for prompt, answer in zip(columns["prompt"], columns["label"])]
    ids, mask = fixed_rows(tokenizer, texts, max_length)
    lengths = [len(row) for row in tokenizer(list(columns["prompt"]), max_length)]
    last = torch.tensor(lengths, dtype=torch.int64).sub_(1).clamp_(min=0)
    return TensorDict({"input_ids": ids, "attention_mask": mask, "prompt_rindex": last}, [len(ids)])


def _prepared(
    split: str,
    name: str,
    max_length: int,
    root_dir: str | os.PathLike[str] | None,
    from_disk: bool,
    num_workers: int | None,
    tokenizer: Any,
    columns: tuple[str, ...],
    tokenised: Tokenised,
) -> Any:
    """The tokenised rows, which lie in a folder of their own for each dataset, split, length and tokenizer."""
    require_integer("max_length", max_length, 1)
    one = Tokenizer(_default_tokenizer() if tokenizer is None else tokenizer)
    _ = one.pad_id  # missing: told before anything is done
    root = Path(os.path.expanduser(os.fspath(root_dir if root_dir is not None else ROOT)))
    dataset = _load(split, name, from_disk, columns) if from_disk else None
    known: dict[str, Any] = {"tokenizer": one.identity_parts(), "name": os.path.abspath(name) if from_disk else name}
    if dataset is not None:
        known["data"] = dataset._fingerprint  # one that was saved again under the same name is another
    digest = hashlib.blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=6).hexdigest()
    folder = root / Path(name).name / f"{tokenised.__name__}-{split}-{max_length}-{digest}"
    if is_there(folder / "meta.json"):
        return TensorDict.load_memmap(folder)
    if dataset is None:
        dataset = _load(split, name, from_disk, columns)
    index = TensorDict({"row": torch.arange(len(dataset))}, [len(dataset)])
    with one_thread_each():
        data = flat_map(
            index,
            Prepare(dataset, tokenised, one, max_length),
            out=folder,
            chunksize=CHUNK_ROWS,
            resume=True,
            num_workers=num_workers,
        )
    if not len(data):
        raise ValueError(f"no pair of {name!r} is left: all of them are equal in their first {max_length} tokens.")
    return data


def _default_tokenizer() -> Any:
    tokenizer = need("transformers", "rlhf", "the default tokenizer").AutoTokenizer.from_pretrained("gpt2")
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _load(split: str, name: str, from_disk: bool, columns: tuple[str, ...]) -> Any:
    """A split of a dataset with these columns.

    Raises:
        ValueError: there is none, or a column is missing or no text.
    """
    datasets = need("datasets", "rlhf", "reading datasets of the Hugging Face hub")
    found = datasets.load_from_disk(name) if from_disk else datasets.load_dataset(name)
    if hasattr(found, "keys"):
        chosen = next((one for one in (split, *_ALSO.get(split, ())) if one in found), None)
        if chosen is None:
            raise ValueError(f"{name!r} has no split {split!r}. Splits: {', '.join(map(repr, found))}.")
        found = found[chosen]
    missing = [column for column in columns if column not in found.column_names]
    if missing:
        raise ValueError(f"{name!r} has no column {missing[0]!r}. Columns: {', '.join(map(repr, found.column_names))}.")
    for column in columns:
        if getattr(found.features[column], "dtype", None) not in ("string", "large_string"):
            raise ValueError(f"the column {column!r} of {name!r} must be text: got {found.features[column]}.")
    return found.select_columns(list(columns))
