"""Coverage-guided fuzzing of consolidated files with atheris: ``python fuzz_files.py [-max_total_time=60] FOLDER``.

Each input is a list of edits of a file, most of them of its JSON. Whatever comes of them, loading it must give a tree
whose every byte can be read, or a ``DatasetError``. Every thousand inputs, the number of those that loaded is printed.
"""

from __future__ import annotations

import os
import struct
import sys
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tensordict_lite.consolidated", "tensordict_lite.memmap", "json"]):
    import torch

    from tensordict_lite import NonTensorData, TensorDict, from_consolidated, lazy_stack
    from tensordict_lite.errors import DatasetError

ROOT = Path(sys.argv.pop()) if len(sys.argv) > 1 and not sys.argv[-1].startswith("-") else Path("fuzz-files")
COUNTS = {"inputs": 0, "loaded": 0}
WORDS = [
    b"0", b"-1", b"4", b"1", b"999999999999", b"[]", b"[4]", b"{}", b"null", b'"x"', b'"torch.int64"',
    b'"torch.int8"', b'"TensorDict"', b'"LazyStackedTensorDict"', b'"NonTensorStack"', b"true", b"[4, 0]", b"8",
    b"16", b"64",
]  # fmt: skip


def make_original() -> bytes:
    TensorDict(
        {
            "a": torch.arange(4),
            "b": {"c": torch.ones(4, 3), "s": "x"},
            "lazy": lazy_stack([TensorDict({"r": torch.ones(4, i + 1)}, [4]) for i in range(2)], 1),
            "words": ["a", "b", "c", "d"],
            "note": NonTensorData({"k": 1}, batch_size=[4]),
            "j": torch.nested.nested_tensor([torch.ones(i + 1, 2) for i in range(4)], layout=torch.jagged),
        },
        [4],
    ).consolidate(ROOT / "original.bin")
    return (ROOT / "original.bin").read_bytes()


def edited(source: atheris.FuzzedDataProvider) -> bytes:
    (length,) = struct.unpack("<q", ORIGINAL[-8:])
    data, text = bytearray(ORIGINAL[: -8 - length]), bytearray(ORIGINAL[-8 - length : -8])
    for _ in range(source.ConsumeIntInRange(1, 4)):
        target = text if source.ConsumeIntInRange(0, 5) else data
        at = source.ConsumeIntInRange(0, len(target))
        if target is text and source.ConsumeBool():  # a whole value
            stop = min((i for i in range(at, len(text)) if text[i] in b",]}"), default=at)
            start = max((i for i in range(at) if text[i] in b",[:"), default=at) + 1
            text[start:stop] = WORDS[source.ConsumeIntInRange(0, len(WORDS) - 1)]
            continue
        target[at : at + source.ConsumeIntInRange(0, 12)] = source.ConsumeBytes(source.ConsumeIntInRange(0, 12))
    if not source.ConsumeIntInRange(0, 9):
        length = source.ConsumeInt(8)
    else:
        length = len(text)
    return bytes(data + text) + struct.pack("<q", length)


def one(data: bytes) -> None:
    COUNTS["inputs"] += 1
    if COUNTS["inputs"] % 1000 == 0:
        print(COUNTS, file=sys.stderr, flush=True)
    path = ROOT / "x.bin"
    content = edited(atheris.FuzzedDataProvider(data))
    path.write_bytes(content)
    try:
        loaded = from_consolidated(path)
    except DatasetError:
        return
    COUNTS["loaded"] += 1
    for leaf in loaded._leaves():
        for part in leaf.unbind() if leaf.is_nested else [leaf]:
            part.as_subclass(torch.Tensor).clone()
    assert path.read_bytes() == content


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.makedirs(ROOT, exist_ok=True)
    ORIGINAL = make_original()
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
