"""Preference pairs, from text to a reward model that has learnt what people prefer; nothing is downloaded.

    python examples/reward_pairs.py --pairs 2000 --workers 2

Makes comparisons of summaries on disk (the preferred one repeats the subject of its prompt), trains a small tokenizer,
and has `PairwiseDataset` tokenise the pairs. A tiny model learns to give the preferred ones the higher score, and is
tested on pairs that it has not seen.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import datasets
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from tdmap.datasets import PairwiseDataset, RewardData

THINGS = "river mountain library engine garden violin harbour comet market forest bridge lantern".split()
GOOD = ("is described in detail", "matters most here", "was found to be the cause")
BAD = ("nothing is said", "it is unclear", "who knows")


def make_comparisons(folder: Path, pairs: int) -> None:
    """A dataset with the columns prompt, chosen and rejected."""
    generator = torch.Generator().manual_seed(0)

    def pick(words: list[str] | tuple[str, ...]) -> str:
        return words[int(torch.randint(len(words), (), generator=generator))]

    columns: dict[str, list[str]] = {"prompt": [], "chosen": [], "rejected": []}
    for _ in range(pairs):
        thing = pick(THINGS)
        columns["prompt"].append(f"summarise the report about the {thing} and the {pick(THINGS)}")
        columns["chosen"].append(f"the {thing} {pick(GOOD)}")
        columns["rejected"].append(f"the {pick(THINGS)} : {pick(BAD)}")
    table = datasets.Dataset.from_dict(columns)
    cut = pairs * 4 // 5
    splits = {"train": table.select(range(cut)), "valid": table.select(range(cut, pairs))}
    datasets.DatasetDict(splits).save_to_disk(str(folder))


def make_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """A tokenizer of some hundred words, trained on the comparisons."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<pad>"], show_progress=False)
    train = datasets.load_from_disk(str(folder))["train"]
    tokenizer.train_from_iterator((row[key] for row in train for key in row), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")


class RewardModel(nn.Module):
    """The mean of the words' vectors, and a score of it."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 32)
        self.score = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, texts: RewardData) -> Tensor:
        mask = texts.attention_mask.unsqueeze(-1)
        mean = (self.words(texts.input_ids) * mask).sum(1) / mask.sum(1)
        return self.score(mean).squeeze(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2_000)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as scratch:
        source, root = Path(scratch) / "comparisons", Path(scratch) / "tokenised"
        make_comparisons(source, arguments.pairs)
        tokenizer = make_tokenizer(source)

        def load(split: str) -> PairwiseDataset:
            return PairwiseDataset.from_dataset(
                split, str(source), 32, root, from_disk=True, num_workers=arguments.workers, tokenizer=tokenizer
            )

        data, valid = load("train"), load("valid")
        began = time.perf_counter()
        load("train")
        print(f"{len(data):,} pairs to learn from, {len(valid):,} to be tested on")
        print(f"opened again in {1000 * (time.perf_counter() - began):.0f} ms")
        model = RewardModel(len(tokenizer))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for epoch in range(4):
            for batch in data.pipeline().shuffle(seed=0).batch(64).iter(num_workers=arguments.workers, epoch=epoch):
                margin = model(batch.chosen_data) - model(batch.rejected_data)
                loss = -nn.functional.logsigmoid(margin).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            right = (model(valid.chosen_data) > model(valid.rejected_data)).float().mean().item()
        print(f"{right:.0%} of the pairs that it has not seen are told apart")
        assert right > 0.9, "the model has learnt nothing"
        print("checked: the preferred answer gets the higher score")


if __name__ == "__main__":
    main()
