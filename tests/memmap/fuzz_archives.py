"""Coverage-guided fuzzing of archives with atheris: ``python fuzz_archives.py [-max_total_time=60] FOLDER``.

Each input is a list of edits of an archive. Whatever comes of them, loading it must give a dataset whose every byte can
be read, or a ``DatasetError``; unpacking it must give a folder, or nothing at all. Every thousand inputs, the number of
those that loaded is printed.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tensordict_lite.memmap", "json"]):
    import torch

    from tensordict_lite import NonTensorData, TensorDict, lazy_stack, unpack_memmap
    from tensordict_lite.errors import DatasetError

ROOT = Path(sys.argv.pop()) if len(sys.argv) > 1 and not sys.argv[-1].startswith("-") else Path("fuzz-archives")
WORK = ROOT / "work"
ORIGINALS: list[bytes] = []
COUNTS = {"inputs": 0, "loaded": 0, "unpacked": 0}


def make_originals() -> None:
    saved = TensorDict(
        {
            "a": torch.arange(4),
            "b": {"c": torch.ones(4, 3), "weird/key": torch.zeros(4, dtype=torch.bool)},
            "note": NonTensorData({"k": [1, "x"]}, batch_size=[4]),
            "lazy": lazy_stack([TensorDict({"r": torch.ones(4, i + 1)}, [4]) for i in range(2)], 1),
            "jagged": torch.nested.nested_tensor([torch.ones(i + 1, 2) for i in range(4)], layout=torch.jagged),
            "strided": torch.nested.nested_tensor([torch.ones(i + 1, 5 - i) for i in range(4)]),
        },
        [4],
    )
    for compression in (None, "deflate", "bzip2", "lzma"):
        saved.memmap(ROOT / "x.tdz", compression=compression)
        ORIGINALS.append((ROOT / "x.tdz").read_bytes())
    saved.memmap(ROOT / "d")
    with zipfile.ZipFile(ROOT / "y.zip", "w", zipfile.ZIP_DEFLATED) as made:
        for file in sorted((ROOT / "d").rglob("*")):
            made.write(file, file.relative_to(ROOT / "d"))
    ORIGINALS.append((ROOT / "y.zip").read_bytes())


def edited(source: atheris.FuzzedDataProvider) -> bytes:
    content = bytearray(ORIGINALS[source.ConsumeIntInRange(0, len(ORIGINALS) - 1)])
    for _ in range(source.ConsumeIntInRange(1, 4)):
        near = [at for at in range(len(content) - 2) if content[at : at + 2] == b"PK"] or [0]
        at = near[source.ConsumeIntInRange(0, len(near) - 1)] + source.ConsumeIntInRange(0, 70)
        if source.ConsumeIntInRange(0, 4) == 0:
            at = source.ConsumeIntInRange(0, len(content))
        new = source.ConsumeBytes(source.ConsumeIntInRange(0, 16))
        stop = at + (len(new) if source.ConsumeBool() else source.ConsumeIntInRange(0, 12))
        content[at:stop] = new
    return bytes(content)


def one(data: bytes) -> None:
    COUNTS["inputs"] += 1
    if COUNTS["inputs"] % 1000 == 0:
        print(COUNTS, file=sys.stderr, flush=True)
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    path = WORK / "x.tdz"
    path.write_bytes(edited(atheris.FuzzedDataProvider(data)))
    try:
        loaded = TensorDict.load_memmap(path)
    except DatasetError:
        loaded = None
    if loaded is not None:
        COUNTS["loaded"] += 1
        for leaf in loaded._leaves():
            for part in leaf.unbind() if leaf.is_nested else [leaf]:
                part.as_subclass(torch.Tensor).clone()
    assert os.listdir(WORK) == ["x.tdz"]
    try:
        unpack_memmap(path, WORK / "out")
        COUNTS["unpacked"] += 1
    except DatasetError:
        assert os.listdir(WORK) == ["x.tdz"]


if __name__ == "__main__":
    os.makedirs(ROOT, exist_ok=True)
    make_originals()
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
