"""Text to tokens on every core: jagged, padded or packed."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tdmap.data.store import OutputFolder, destination
from tdmap.datasets.jagged import Jagged
from tdmap.datasets.jaggedmap import OnJagged, plan_of, spans_of
from tdmap.datasets.table import Table
from tdmap.execution import Execution
from tdmap.functions import user_function
from tdmap.memory.scratch import temporary_folder
from tdmap.ops.map import map as map_chunks
from tdmap.output.output import travels
from tdmap.run.fingerprint import function_parts
from tdmap.run.operation import entry_point
from tensordict_lite import TensorDict
from tensordict_lite.gathering import offsets_of
from tensordict_lite.paths import absolute_path

if TYPE_CHECKING:
    from typing import Unpack

    from tdmap.execution import WorkerOptions


class Tokenizer:
    """One face for the tokenizers that there are.

    Args:
        tokenizer: of `transformers` or `tokenizers`, or a function of a list of strings that returns a sequence of
            whole numbers for each.

    Raises:
        TypeError: it cannot be called.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.fast = getattr(tokenizer, "backend_tokenizer", None) or (
            tokenizer if hasattr(tokenizer, "encode_batch") and hasattr(tokenizer, "to_str") else None
        )
        if self.fast is None and not callable(tokenizer):
            raise TypeError(
                f"a tokenizer or a function of a list of strings is needed, got a {type(tokenizer).__name__}."
            )
        if self.fast is None:
            self.tokenizer = user_function(tokenizer)

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run, or a dataset that is opened again, must find unchanged."""
        if self.fast is None:
            return function_parts(self.tokenizer)
        state = json.loads(self.fast.to_str())
        state.pop("truncation", None)  # left by whoever called it last
        state.pop("padding", None)
        digest = hashlib.blake2b(json.dumps(state, sort_keys=True).encode(), digest_size=16)
        return {"tokenizer": digest.hexdigest()}

    @property
    def pad_id(self) -> int:
        """The token that shorter rows are filled up with.

        Raises:
            ValueError: the tokenizer has none; says how to give it one.
        """
        found = getattr(self.tokenizer, "pad_token_id", None)
        if found is None and getattr(self.tokenizer, "padding", None):
            found = self.tokenizer.padding["pad_id"]
        if found is None and self.fast is not None:
            raise ValueError(
                "the tokenizer has no pad token: set tokenizer.pad_token = tokenizer.eos_token (transformers), or "
                "tokenizer.enable_padding(pad_id=...) (tokenizers)."
            )
        return 0 if found is None else int(found)

    def __call__(self, texts: list[str], max_length: int | None) -> list[Sequence[int]]:
        """The tokens of each text, no more than `max_length`."""
        if not texts:
            return []
        if self.fast is not None and self.fast is not self.tokenizer:
            options = {"truncation": True, "max_length": max_length} if max_length is not None else {}
            return list(self.tokenizer(texts, return_attention_mask=False, **options)["input_ids"])
        if self.fast is not None:
            self.fast.no_padding()
            if max_length is None:
                self.fast.no_truncation()
            else:
                self.fast.enable_truncation(max_length)
            encode = getattr(self.fast, "encode_batch_fast", self.fast.encode_batch)  # which leaves offsets out
            return [encoding.ids for encoding in encode(texts)]
        found = self.tokenizer(texts)
        found = found["input_ids"] if hasattr(found, "keys") else found
        if not isinstance(found, Iterable):
            raise _no_ids(type(found).__name__)
        found = list(found)
        odd = next((row for row in found if isinstance(row, str) or not isinstance(row, (Sized, Iterable))), None)
        if odd is not None:
            raise _no_ids(f"{type(odd).__name__} for one of them")
        if len(found) != len(texts):
            raise ValueError(f"the tokenizer was called with {len(texts)} texts, and returned {len(found)} rows.")
        return found if max_length is None else [row[:max_length] for row in found]

    def jagged(self, texts: list[str], max_length: int | None, dtype: torch.dtype) -> Jagged:
        """The tokens of each text, as jagged rows."""
        rows = self(texts, max_length)
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        total = int(lengths.sum())
        try:
            flat = np.fromiter(itertools.chain.from_iterable(rows), np.int64, total)
        except (TypeError, ValueError) as error:
            raise _no_ids(f"something else ({error})") from error
        return Jagged(torch.from_numpy(flat).to(dtype), offsets_of(lengths), check=False)


def _no_ids(found: str) -> TypeError:
    return TypeError(
        f"a tokenizer returns a sequence of whole numbers for each of the texts that it gets: got {found}."
    )


@contextlib.contextmanager
def one_thread_each() -> Iterator[None]:
    """Workers tokenise side by side, so that each of them needs one thread, and forking them is no accident."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = before or "false"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)


class ToTokens:
    """Tokenises chunks of text."""

    def __init__(self, tokenizer: Tokenizer, max_length: int | None, dtype: torch.dtype, pad: bool, left: bool) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.dtype = dtype
        self.pad = pad
        self.left = left

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged."""
        options = f"{self.max_length} {self.dtype} {self.pad} {self.left}"
        return {**self.tokenizer.identity_parts(), "options": options}

    def __call__(self, rows: Jagged) -> Jagged | TensorDict:
        tokens = self.tokenizer.jagged(rows.tolist(), self.max_length, self.dtype)
        return padded(tokens, self.max_length, self.tokenizer.pad_id, self.left) if self.pad else tokens


def padded(tokens: Jagged, max_length: int | None, pad_id: int, left: bool = False) -> TensorDict:
    """Rows of tokens filled up to one length: `input_ids` and `attention_mask` int64 `[n, max_length]`."""
    ids, mask = tokens.pad(max_length, pad_id, left)
    return TensorDict({"input_ids": ids, "attention_mask": mask.to(torch.int64)}, [len(tokens)])


@entry_point
def tokenise(
    dataset: Any,
    tokenizer: Any,
    key: str | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    max_length: int | None = None,
    pad: bool = False,
    pack: int | None = None,
    left: bool = False,
    dtype: torch.dtype = torch.int64,
    overwrite: bool = False,
    resume: bool = False,
    chunksize: int | None = None,
    **options: Unpack[WorkerOptions],
) -> Any:
    """Tokenise a column of text on several processes.

    Args:
        dataset: a `Jagged` of strings, a list of them, or what `Table.of` takes.
        tokenizer: of `transformers` or `tokenizers`, or a function of a list of strings that returns a sequence of
            whole numbers for each.
        key: the column. Needed where the dataset has several columns of text.
        out: folder for the result. None: in memory.
        max_length: longer rows lose their end.
        pad: fill shorter rows up to `max_length` with the tokenizer's pad token.
        pack: cut all tokens, one row after the other, into blocks of so many. What does not fill a block is left out.
        left: fill up before the tokens.
        dtype: of the tokens.
        overwrite: the folder may hold a dataset, which the new one replaces when it is whole.
        resume: with `out`, but not with `pack`: an interrupted call goes on when it is made again.
        chunksize: texts that a worker takes at a time.
        **options: about workers, as `tdmap.map`.

    Returns:
        A `Jagged` of tokens; with `pad`, a TensorDict of `input_ids` and `attention_mask` `[n, max_length]`; with
        `pack`, a TensorDict of `values`, `document` and `position` `[blocks, pack]` (see `Jagged.pack`).

    Raises:
        ValueError: options do not go together, or the tokenizer has no pad token.
        FileExistsError: `out` holds something; told before anything is done.
        KeyError: there is no such column.
        TypeError: the column is not text.

    Example:
        >>> codes = lambda texts: [[ord(letter) for letter in text] for text in texts]
        >>> tokenise(["ab", "c"], codes, num_workers=0).tolist()
        [[97, 98], [99]]
        >>> tokenise(["ab", "c"], codes, max_length=3, pad=True, num_workers=0)["input_ids"]
        tensor([[97, 98,  0],
                [99,  0,  0]])
    """
    for name, size in (("max_length", max_length), ("pack", pack)):
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(f"{name} must be a number of tokens, at least 1: got {size!r}.")
    if pad and (max_length is None or pack is not None):
        raise ValueError("pad=True fills rows up to max_length, which is needed, and pack=None.")
    if resume and (out is None or pack is not None):
        raise ValueError("resume=True keeps its journal in out, which is needed, and pack=None.")
    place = destination(out, overwrite)
    if out is not None and pack is not None and not overwrite:
        OutputFolder.of(place).require_free(None, False)  # the text is tokenised into another folder first
    texts = column_of_text(dataset, key)
    one = Tokenizer(tokenizer)
    if pad:
        _ = one.pad_id  # missing: told before anything is done
    fn = ToTokens(one, max_length, dtype, pad, left)
    with one_thread_each():
        if pad:
            wrapped = OnJagged(fn, texts, travels(Execution.of(**options)))
            size = chunksize or plan_of(texts, None).size
            return map_chunks(
                spans_of(texts), wrapped, out=out, overwrite=overwrite, resume=resume, chunksize=size, **options
            )
        if pack is None:
            return texts.map(fn, out, overwrite=overwrite, resume=resume, chunksize=chunksize, **options)
        with temporary_folder("tdmap-tokens", None if out is None else _beside(out)) as scratch:
            tokens = texts.map(fn, os.path.join(scratch, "tokens"), chunksize=chunksize, **options)
            return tokens.pack(pack, out, overwrite=overwrite, **options)


def _beside(out: str | os.PathLike[str]) -> str:
    parent = os.path.dirname(absolute_path(out))
    os.makedirs(parent, exist_ok=True)
    return parent


def column_of_text(dataset: Any, key: str | None) -> Jagged:
    """The text of a dataset.

    Raises:
        KeyError: there is no such column; lists those of text.
        TypeError: it is not text.
    """
    if isinstance(dataset, list):
        dataset = Jagged.from_list(dataset)
    if isinstance(dataset, Jagged) and key is None:
        found = dataset
    else:
        table = Table.of(dataset)
        names = [name for name, column in table.jagged.items() if column.kind == "str"]
        if key is None and len(names) == 1:
            key = names[0]
        if key not in table.jagged:
            what = f"no column of text {key!r}" if key is not None else "no key= was given"
            raise KeyError(f"{what}: there are {', '.join(map(repr, names)) or 'none'}.")
        found = table.jagged[key]
    if found.kind != "str":
        raise TypeError(f"rows of text are needed, got {found!r}.")
    return found


def fixed_rows(tokenizer: Tokenizer, texts: list[str], max_length: int) -> tuple[Tensor, Tensor]:
    """Tokens and mask, int64 `[n, max_length]` each."""
    rows = padded(tokenizer.jagged(texts, max_length, torch.int64), max_length, tokenizer.pad_id)
    return rows["input_ids"], rows["attention_mask"]
