"""Lines of text and chats become blocks of tokens for a language model: read, clean, de-duplicate, tokenise, pack.

    python examples/language_data.py --megabytes 32 --workers 2

Writes JSON Lines as crawls have them: lines that were cut, empty documents, duplicates, some documents of several
megabytes, the messages of chats. Then it does what a user would do, and checks each step against plain Python.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tdmap
from tdmap.datasets import read, tokenise, write
from tensordict_lite import TensorDict

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "n", "r", "st")]
SOURCES = ("web", "books", "code", "wiki")


def make_lines(path: Path, megabytes: float, seed: int) -> dict[str, Any]:
    """Write JSON Lines of about so many megabytes; what is in them."""
    generator = np.random.default_rng(seed)
    texts: list[str] = []
    sizes: Counter[str] = Counter()
    torn = written = number = 0
    with path.open("w") as file:
        while written < megabytes * 1e6:
            words = int(generator.lognormal(5, 1)) + 1
            kind = generator.random()
            if kind < 0.10 and texts:
                text = texts[int(generator.integers(len(texts)))]
            elif kind < 0.105:
                text = ""
            else:
                huge = number % 20_000 == 1_000
                text = " ".join(WORDS[i] for i in generator.integers(len(WORDS), size=700_000 if huge else words))
            source = SOURCES[number % len(SOURCES)]
            line = json.dumps({"id": number, "source": source, "text": text, "tags": ["a", "b"][: number % 3]})
            number += 1
            if generator.random() < 0.0006:
                line, torn = line[: len(line) // 2], torn + 1
            else:
                texts.append(text)
                sizes[source] += 1
            file.write(line + "\n")
            written += len(line) + 1
    return {"texts": texts, "torn": torn, "sources": sizes}


def has_text(rows: TensorDict) -> torch.Tensor:
    """Which rows have text."""
    return torch.tensor([bool(text.strip()) for text in rows["text"]])


def cleaned(rows: TensorDict) -> TensorDict:
    """Rows with text in one case, and its length beside it."""
    texts = [text.strip().lower() for text in rows["text"]]
    return rows.copy().update({"text": texts, "letters": torch.tensor([len(text) for text in texts])})


class Words:
    """Each word is a token; `tokenizers` and `transformers` go in its place."""

    def __init__(self) -> None:
        self.known = {word: number + 1 for number, word in enumerate(WORDS)}

    def __call__(self, texts: list[str]) -> list[list[int]]:
        return [[self.known[word] for word in text.split()] for text in texts]


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Print how long a step took."""
    begin = time.perf_counter()
    yield
    print(f"{name:<22}{time.perf_counter() - begin:8.2f} s")


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None, help="keeps the datasets; default: a temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        made = make_lines(folder / "lines.jsonl", args.megabytes, seed=0)
        run(folder, made, args.workers)


def run(folder: Path, made: dict[str, Any], workers: int) -> None:
    """All steps, each checked."""
    torn: list[Any] = []
    with timed("read"):
        lines = read(folder / "lines.jsonl", folder / "lines", on_error=torn.append)
    assert len(torn) == made["torn"] and len(lines) == len(made["texts"])
    with timed("filter"):
        full = tdmap.filter(lines, has_text, out=folder / "full", num_workers=workers)
    with timed("clean"):
        clean = tdmap.map(full, cleaned, out=folder / "clean", num_workers=workers)
    with timed("drop duplicates"):
        once = tdmap.drop_duplicates(clean, "text", out=folder / "once", num_workers=workers)
    expected = list(dict.fromkeys(text.lower() for text in made["texts"] if text.strip()))
    assert len(once) == len(expected) and once[len(once) - 1]["text"] == expected[-1]
    with timed("statistics"):
        count = tdmap.value_counts(lines, "source", num_workers=workers)
    assert dict(zip(count["source"], count["count"].tolist())) == dict(made["sources"])
    with timed("shuffle"):
        shuffled = tdmap.shuffle(once, seed=0, out=folder / "shuffled", num_workers=workers)
    with timed("tokenise"):
        tokens = tokenise(
            shuffled, Words(), "text", out=folder / "tokens", eos=0, dtype=torch.int32, num_workers=workers
        )
    with timed("pack"):
        blocks = tdmap.datasets.pack(tokens, "input_ids", 1024, out=folder / "blocks", num_workers=workers)
    total = sum(len(text.split()) + 1 for text in expected)
    assert int(tokens["input_ids"].lengths.sum()) == total and len(blocks) == total // 1024
    with timed("write Parquet"):
        write(once, folder / "once.parquet")
    again = read(folder / "once.parquet", columns=["text", "tags"])
    assert again["tags"][:3] == once["tags"][:3] and again["text"][:3] == once["text"][:3]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(lines):,} lines ({len(torn)} torn), {len(once):,} texts, {total:,} tokens, driver {peak:,.0f} MB")
    print("checked: plain Python gives the same rows, tokens and statistics")


if __name__ == "__main__":
    main()
