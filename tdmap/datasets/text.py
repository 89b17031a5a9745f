"""Text to tokens on every core: ragged, padded or packed."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import operator
import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tdmap.arguments import require_integer
from tdmap.data.entries import no_column
from tdmap.data.kinds import Data, Dataset, stored_entry
from tdmap.data.objects import objects_of
from tdmap.data.reader import rows_of
from tdmap.datasets.columns import joined, rows_in
from tdmap.execution import Execution
from tdmap.functions import user_function
from tdmap.memory.rowfiles import SharedTensors
from tdmap.memory.scratch import temporary_folder
from tdmap.ops.map import map as map_chunks
from tdmap.output.outputfolder import destination
from tdmap.pipeline.ragged import require_block_columns
from tdmap.run.fingerprint import function_parts, source_parts
from tdmap.run.operation import entry_point
from tensordict_lite import Ragged, TensorDict
from tensordict_lite.gathering import offsets_of
from tensordict_lite.paths import absolute_path
from tensordict_lite.ragged import is_ragged

if TYPE_CHECKING:
    from typing import Unpack

    from tdmap.execution import WorkerOptions


TOKENS = "input_ids"
"""The entry of tokens, as `transformers` calls it."""

CHUNK_VALUES = 1 << 20
"""Elements of a chunk of blocks."""


class Tokenizer:
    """The tokenizers of `transformers` and `tokenizers`, and functions, called in one way.

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
                f"tokenizer must be a tokenizer or a function of a list of strings: got a {type(tokenizer).__name__}."
            )
        if self.fast is None:
            self.tokenizer = user_function(tokenizer)

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run, or a dataset that is opened again, must find unchanged."""
        if self.fast is None:
            return function_parts(self.tokenizer)
        state = json.loads(self.fast.to_str())
        state.pop("truncation", None)  # left by the last call
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

    def ragged(self, texts: list[str], max_length: int | None, dtype: torch.dtype, eos: int | None = None) -> Any:
        """The tokens of each text, as ragged rows; with `eos` behind each, which counts for `max_length`."""
        rows = self(texts, max_length if eos is None or max_length is None else max_length - 1)
        if eos is not None:
            rows = [[*row, eos] for row in rows]
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        total = int(lengths.sum())
        try:
            for row in rows:
                operator.index(next(iter(row), 0))  # NumPy cuts fractions off, and reads text as a number
            flat = np.fromiter(itertools.chain.from_iterable(rows), np.int64, total)
        except (TypeError, ValueError) as error:
            raise _no_ids(f"something else ({error})") from error
        if total and not dtype.is_floating_point and dtype is not torch.int64:
            limits, least, most = torch.iinfo(dtype), int(flat.min()), int(flat.max())
            if least < limits.min or most > limits.max:
                raise OverflowError(
                    f"{dtype} does not hold the token {most if most > limits.max else least}: pass a wider dtype=."
                )
        return Ragged._over("tensor", torch.from_numpy(flat).to(dtype), offsets_of(lengths))


def _no_ids(found: str) -> TypeError:
    return TypeError(f"a tokenizer must return a sequence of integers for each text: got {found}.")


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
    """Tokenises a column of text."""

    def __init__(
        self, key: Any, tokenizer: Tokenizer, max_length: int | None, dtype: torch.dtype, eos: int | None, pad: bool,
        left: bool,
    ) -> None:  # fmt: skip
        self.key = key
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.dtype = dtype
        self.eos = eos
        self.pad = pad
        self.left = left

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged."""
        options = f"{self.key} {self.max_length} {self.dtype} {self.eos} {self.pad} {self.left}"
        return {**self.tokenizer.identity_parts(), "options": options}

    def __call__(self, rows: TensorDict) -> TensorDict:
        texts = objects_of(stored_entry(rows, self.key))
        if None in texts:
            raise TypeError(
                f"row {texts.index(None)} of the chunk has no text in {self.key!r}: fill or filter it before."
            )
        tokens = self.tokenizer.ragged(texts, self.max_length, self.dtype, self.eos)
        if self.pad:
            return padded(tokens, self.max_length, self.tokenizer.pad_id, self.left)
        return TensorDict({TOKENS: tokens}, [len(rows)])


def padded(tokens: Ragged, max_length: int | None, pad_id: int, left: bool = False) -> TensorDict:
    """Rows of tokens filled up to one length: `input_ids` and `attention_mask` int64 `[n, max_length]`."""
    ids, mask = tokens.pad(max_length, pad_id, left)
    return TensorDict({TOKENS: ids, "attention_mask": mask.to(torch.int64)}, [len(tokens)])


@entry_point
def tokenise(
    data: Dataset[Any],
    tokenizer: Any,
    key: Any = None,
    *,
    out: str | os.PathLike[str] | None = None,
    max_length: int | None = None,
    eos: int | None = None,
    pad: bool = False,
    left: bool = False,
    pack: int | None = None,
    columns: Sequence[str] = (),
    dtype: torch.dtype = torch.int64,
    overwrite: bool = False,
    resume: bool = False,
    chunksize: int | None = None,
    **options: Unpack[WorkerOptions],
) -> TensorDict:
    """Tokenise a column of text on several processes.

    Args:
        data: a TensorDict with a column of text, a list of strings, or a `Ragged` of them.
        tokenizer: of `transformers` or `tokenizers`, or a function of a list of strings that returns a sequence of
            whole numbers for each.
        key: the column. Required if the dataset has several columns of text.
        out: folder for the result. None: in memory.
        max_length: truncate longer rows.
        eos: a token to append to each text.
        pad: pad shorter rows to `max_length` with the tokenizer's pad token.
        left: pad before the tokens.
        pack: concatenate all tokens and cut them into blocks of this size, like `pack`.
        columns: with `pack`, as `pack`.
        dtype: dtype of the tokens; with `pad` always int64.
        overwrite: replace the dataset in the folder when the new one is complete.
        resume: with `out` and without `pack`: the same call resumes after an interruption.
        chunksize: texts per chunk.
        **options: about workers, as `tdmap.map`.

    Returns:
        A TensorDict of `input_ids`: a `Ragged`; with `pad`, int64 `[n, max_length]`, and `attention_mask` of the same
        shape; with `pack`, `[blocks, pack]`.

    Raises:
        ValueError: options exclude each other, or the tokenizer has no pad token.
        FileExistsError: `out` is not empty; raised before any work.
        KeyError: there is no such column.
        TypeError: the column is not text, or the tokenizer returns something else than whole numbers.
        OverflowError: a token does not fit `dtype`.

    Example:
        >>> codes = lambda texts: [[ord(letter) for letter in text] for text in texts]
        >>> tokenise(["ab", "c"], codes, num_workers=0)["input_ids"].tolist()
        [[97, 98], [99]]
        >>> tokenise(["ab", "c"], codes, max_length=3, pad=True, num_workers=0)["input_ids"]
        tensor([[97, 98,  0],
                [99,  0,  0]])
    """
    for name, size in (("max_length", max_length), ("pack", pack)):
        if size is not None:
            require_integer(name, size, 1)
    if pad and (max_length is None or pack is not None):
        raise ValueError("pad=True needs max_length=, and pack=None.")
    if pack is None and columns:
        raise ValueError("columns= needs pack=: pass both, or leave out columns=.")
    if resume and (out is None or pack is not None):
        raise ValueError("resume=True needs out=, where it keeps its log, and pack=None.")
    require_block_columns(columns)
    store = destination(out, overwrite)
    if store is not None and pack is not None and not overwrite:
        store.require_free()  # the text is tokenised into another folder first
    rows, key = text_in(data, key)
    one = Tokenizer(tokenizer)
    if pad:
        _ = one.pad_id  # missing: told before anything is done
    fn = ToTokens(key, one, max_length, dtype, eos, pad, left)
    with one_thread_each():
        if pack is None:
            return map_chunks(rows, fn, out=out, overwrite=overwrite, resume=resume, chunksize=chunksize, **options)
        with temporary_folder("tdmap-tokens", None if out is None else _beside(out)) as scratch:
            tokens = map_chunks(rows, fn, out=os.path.join(scratch, "tokens"), chunksize=chunksize, **options)
            return pack_rows(tokens, TOKENS, pack, out, columns=columns, overwrite=overwrite, **options)


def text_in(data: Data, key: Any) -> tuple[Any, Any]:
    """The rows of a dataset with its column of text alone, and the key of that.

    Raises:
        KeyError: there is no such column; lists those of text.
        TypeError: it is not text.
    """
    if isinstance(data, (list, tuple)):
        data = Ragged.from_list(data)
    rows = rows_in(data)
    like = rows_of(rows).like
    named = {joined(name): name for name in like.keys(True, True, lambda kind: True)}
    texts = [name for name, each in named.items() if _is_text(stored_entry(like, each))]
    if key is None and len(texts) > 1:
        raise KeyError(f"pass key=: columns of text are {', '.join(map(repr, texts))}")
    if key is None:
        key = next(iter(texts or named), "")
    if joined(key) not in named:
        raise KeyError(no_column(joined(key), texts))
    key = named[joined(key)]
    if not _is_text(stored_entry(like, key)):
        found = _kind_of(stored_entry(like, key))
        raise TypeError(f"the column {joined(key)!r} must be text: it is {found}.")
    return rows.select(key), key


def _is_text(entry: Any) -> bool:
    if is_ragged(entry):
        return entry.kind == "str"
    if not getattr(entry, "_is_non_tensor", False):
        return False
    return all(isinstance(value, str) for value in objects_of(entry))


def _kind_of(entry: Any) -> str:
    if isinstance(entry, Tensor):
        return f"{entry.dtype} {list(entry.shape)}"
    return repr(entry) if isinstance(entry, Ragged) else f"a {type(entry).__name__}"


# -- blocks ------------------------------------------------------------------------------------------------------------


@entry_point
def pack(
    data: Dataset[Any],
    key: Any,
    size: int,
    *,
    out: str | os.PathLike[str] | None = None,
    columns: Sequence[str] = (),
    overwrite: bool = False,
    resume: bool = False,
    **options: Unpack[WorkerOptions],
) -> TensorDict:
    """Concatenate the rows of a ragged column and cut them into blocks of one size.

    Args:
        data: a TensorDict with a ragged column of numbers, or a `Ragged`, whose key is `"rows"`.
        key: the column. Rows that are not contiguous are first gathered in memory.
        size: elements per block. Remaining elements that do not fill a block are dropped.
        out: folder for the result. None: in memory.
        columns: further columns, int32 `[blocks, size]`: `"document"`, the row number of each element, and
            `"position"`, its position in that row.
        overwrite: replace the dataset in the folder when the new one is complete.
        resume: with `out`: the same call resumes after an interruption.
        **options: about workers, as `tdmap.map`.

    Returns:
        A TensorDict of the column `[blocks, size, ...]`, under its key, and `columns`.

    Raises:
        KeyError: there is no such column.
        TypeError: the column is not a ragged column of numbers.
        ValueError: the elements do not fill a block.

    Example:
        >>> rows = TensorDict({"input_ids": Ragged.from_list([[1, 2, 3], [4], [5, 6]])}, [3])
        >>> blocks = pack(rows, "input_ids", 2, columns=["document"], num_workers=0)
        >>> blocks["input_ids"].tolist(), blocks["document"].tolist()
        ([[1, 2], [3, 4], [5, 6]], [[0, 0], [0, 1], [2, 2]])
    """
    return pack_rows(data, key, size, out, columns=columns, overwrite=overwrite, resume=resume, **options)


def pack_rows(data: Data, key: Any, size: int, out: Any, *, columns: Sequence[str] = (), **options: Any) -> TensorDict:
    """`pack`, within another call."""
    require_block_columns(columns)
    rows = rows_in(data)
    column = rows.get(key, None)
    if column is None:
        raise KeyError(no_column(joined(key), [joined(each) for each in rows.keys(True)]))
    if not is_ragged(column) or column.kind != "tensor":
        raise TypeError(f"the column {joined(key)!r} must be a ragged column of numbers: it is {_kind_of(column)}.")
    flat, offsets = (tensor.as_subclass(Tensor) for tensor in column.flat())
    require_integer("size", size, 1)
    if len(flat) < size:
        raise ValueError(f"{len(flat)} elements do not fill one block of {size!r}.")
    count = len(flat) // size
    numbers = TensorDict({"block": torch.arange(count)}, [count])
    execution = Execution(**{name: value for name, value in options.items() if name not in _OWN})
    shared = SharedTensors([flat, offsets], execution.in_processes)
    fn = PackBlocks(shared, key, size, tuple(columns), [flat, offsets])
    chunk = max(min(CHUNK_VALUES // size, -(-count // 8)), 1)
    packed: TensorDict = map_chunks(numbers, fn, out=out, chunksize=chunk, **options)
    return packed


_OWN = ("overwrite", "resume")


class PackBlocks:
    """Cuts blocks out of flat values."""

    def __init__(
        self, shared: SharedTensors, key: Any, size: int, columns: tuple[str, ...], sources: list[Tensor]
    ) -> None:
        self.shared = shared
        self.key = key
        self.size = size
        self.columns = columns
        self._sources = sources

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sources": []}

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged."""
        parts = {"block": f"{self.key} {self.size} {self.columns}"}
        for name, source in zip(("values", "offsets"), self._sources):
            parts |= {f"{name} {key}": text for key, text in source_parts(source).items()}
        return parts

    def __call__(self, numbers: TensorDict) -> TensorDict:
        flat, offsets = (tensor.as_subclass(Tensor) for tensor in self.shared.tensors)
        first, count = int(numbers["block"][0]), len(numbers["block"])
        begin, end = first * self.size, (first + count) * self.size
        shape = (count, self.size)
        result = TensorDict({}, [count])
        result[self.key] = flat[begin:end].reshape(*shape, *flat.shape[1:])
        if self.columns:
            at = torch.arange(begin, end)
            document = torch.searchsorted(offsets, at, right=True) - 1
            found = {"document": document, "position": at - offsets[document]}
            for name in self.columns:
                result[name] = found[name].to(torch.int32).reshape(shape)
        return result


def _beside(out: str | os.PathLike[str]) -> str:
    parent = os.path.dirname(absolute_path(out))
    os.makedirs(parent, exist_ok=True)
    return parent


def fixed_rows(tokenizer: Tokenizer, texts: list[str], max_length: int) -> tuple[Tensor, Tensor]:
    """Tokens and mask, int64 `[n, max_length]` each."""
    rows = padded(tokenizer.ragged(texts, max_length, torch.int64), max_length, tokenizer.pad_id)
    return rows[TOKENS], rows["attention_mask"]
