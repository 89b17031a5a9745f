"""The classic: how often each word occurs in the licences and docs of the packages that are installed here.

    python examples/word_count.py --top 20 --megabytes 8 --workers 2

The text becomes a dataset of blocks, ``uint8 [blocks, 16384]``, and the words are counted in both ways that there are:

- *fold*: each chunk of blocks to a `collections.Counter`, and the counters added up. The vocabulary is in memory.
- *by key*: each block to a row for each of its words, and the rows grouped by word. Nothing needs to fit into memory.

Both are checked against one plain `Counter` over the text.
"""

from __future__ import annotations

import argparse
import operator
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

import tdmap
from tensordict_lite import TensorDict

BLOCK = 16384
WIDTH = 24
"""Bytes of the longest word that counts."""

WORD = re.compile(rb"\b[a-z]{1,%d}\b" % WIDTH)
PROSE = re.compile(r"(readme|licen[cs]e|copying|notice|authors|changelog|news)[^/]*$|\.(txt|md|rst)$", re.IGNORECASE)


# -------- the text


def installed_texts(limit: int) -> list[bytes]:
    """About ``limit`` bytes of text files that come with installed packages, in the order of their names."""
    paths = set()
    for package in metadata.distributions():
        for file in package.files or ():
            if PROSE.search(str(file)) and not str(file).endswith((".py", ".pyc")):
                paths.add(Path(str(package.locate_file(file))).resolve())
    texts, size = [], 0
    for path in sorted(paths):
        text = path.read_bytes() if path.is_file() else b""
        if text and b"\0" not in text and max(map(len, text.split())) < BLOCK:
            texts.append(text)
            size += len(text)
        if size >= limit:
            break
    return texts


def blocks_of(text: bytes) -> Iterator[bytes]:
    """The text in pieces of at most `BLOCK` bytes, cut between words."""
    start = 0
    while len(text) - start > BLOCK:
        stop = start + BLOCK
        while not text[stop : stop + 1].isspace():
            stop -= 1
        yield text[start:stop]
        start = stop
    yield text[start:]


def save_blocks(texts: list[bytes], folder: Path) -> TensorDict:
    """The text as a memory-mapped dataset; blocks are filled up with zeros."""
    joined = b"\n".join(texts)
    blocks = np.array(list(blocks_of(joined)), dtype=f"S{BLOCK}")
    rows = torch.from_numpy(blocks.view(np.uint8).reshape(len(blocks), BLOCK))
    return TensorDict({"text": rows}, [len(rows)]).memmap(folder)


# -------- counting


def words_of(blocks: TensorDict) -> list[bytes]:
    """All words in some blocks, in lower case."""
    return WORD.findall(blocks["text"].numpy().tobytes().lower())


def count_words(blocks: TensorDict) -> Counter[bytes]:
    """How often each word occurs in some blocks."""
    return Counter(words_of(blocks))


def word_rows(blocks: TensorDict) -> TensorDict:
    """A row for each word in some blocks: its bytes, filled up with zeros."""
    words = np.array(words_of(blocks), dtype=f"S{WIDTH}")
    rows = torch.from_numpy(words.view(np.uint8).reshape(len(words), WIDTH))
    return TensorDict({"word": rows}, [len(rows)])


def fold(data: TensorDict, workers: int) -> Counter[bytes]:
    """Map each chunk to a counter, reduce by adding them."""
    total: Counter[bytes] = tdmap.map_reduce(data, count_words, operator.add, num_workers=workers)
    return total


def by_key(data: TensorDict, folder: Path, workers: int) -> Counter[bytes]:
    """Write a row for each word, and count the rows of each group."""
    words = tdmap.flat_map(data, word_rows, out=folder, num_workers=workers)
    groups = tdmap.group_by(words, "word").reduce({"n": tdmap.reducers.Count()}, num_workers=workers)
    names = groups["word"].numpy().view(f"S{WIDTH}").ravel()
    return Counter(dict(zip(names.tolist(), groups["n"].tolist())))


# -------- the main program


def main() -> None:
    """Run the example from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--top", type=int, default=20, help="how many words to show")
    parser.add_argument("--megabytes", type=float, default=8, help="of text, as far as there is so much")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    texts = installed_texts(int(options.megabytes * 1e6))
    if not texts:
        sys.exit("no installed package has text files here")
    with tempfile.TemporaryDirectory(prefix="tdmap-words-") as folder:
        data = save_blocks(texts, Path(folder) / "blocks")
        counted, seconds = {}, {}
        for name, count in (("fold", fold), ("by key", lambda d, n: by_key(d, Path(folder) / "words", n))):
            start = time.perf_counter()
            counted[name] = count(data, options.workers)
            seconds[name] = time.perf_counter() - start
    plain = Counter(WORD.findall(b"\n".join(texts).lower()))
    for name, counter in counted.items():
        assert counter == plain, f"{name} counts other words than a plain Counter"
    size = sum(map(len, texts)) / 1e6
    print(f"{plain.total():,} words, {len(plain):,} different ones, in {len(texts)} files of {size:.1f} MB")
    print(", ".join(f"{name}: {spent:.2f} s" for name, spent in seconds.items()))
    most = plain.most_common(options.top)
    for word, n in most:
        print(f"{n:>9,}  {word.decode():<14} {'▇' * round(40 * n / most[0][1])}")
    print("checked: a plain Counter gives the same numbers")


if __name__ == "__main__":
    main()
