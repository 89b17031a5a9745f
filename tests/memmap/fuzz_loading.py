"""Coverage-guided fuzzing of the loader with atheris: ``python fuzz_loading.py [-max_total_time=60] FOLDER``.

Each input is a list of edits of a saved dataset. Whatever comes of them, loading it must give a dataset whose
every byte can be read, or a ``DatasetError``, and must create no file.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tensordict_lite.memmap", "json"]):
    import torch

    from tensordict_lite import NonTensorData, TensorDict, lazy_stack
    from tensordict_lite.errors import DatasetError

ROOT = Path(sys.argv.pop()) if len(sys.argv) > 1 and not sys.argv[-1].startswith("-") else Path("fuzz-dataset")
TEMPLATE, WORK = ROOT / "template", ROOT / "work"


def make_template() -> None:
    TensorDict(
        {
            "a": torch.arange(4),
            "b": {"c": torch.ones(4, 3), "weird/key": torch.zeros(4, dtype=torch.bool)},
            "note": NonTensorData({"k": [1, "x"]}, batch_size=[4]),
            "lazy": lazy_stack([TensorDict({"r": torch.ones(4, i + 1)}, [4]) for i in range(2)], 1),
            "jagged": torch.nested.nested_tensor([torch.ones(i + 1, 2) for i in range(4)], layout=torch.jagged),
            "strided": torch.nested.nested_tensor([torch.ones(i + 1, 5 - i) for i in range(4)]),
        },
        [4],
    ).memmap(TEMPLATE)


def one(data: bytes) -> None:
    source = atheris.FuzzedDataProvider(data)
    shutil.rmtree(WORK, ignore_errors=True)
    shutil.copytree(TEMPLATE, WORK)
    files = sorted(p for p in WORK.rglob("*") if p.is_file())
    metas = [p for p in files if p.suffix == ".json"]
    for _ in range(source.ConsumeIntInRange(1, 4)):
        path = metas[source.ConsumeIntInRange(0, len(metas) - 1)]
        if source.ConsumeIntInRange(0, 5) == 0:
            path = files[source.ConsumeIntInRange(0, len(files) - 1)]
        content = path.read_bytes()
        start = source.ConsumeIntInRange(0, len(content))
        stop = min(len(content), start + source.ConsumeIntInRange(0, 12))
        path.write_bytes(content[:start] + source.ConsumeBytes(source.ConsumeIntInRange(0, 16)) + content[stop:])
    before = {str(p): p.stat().st_size for p in WORK.rglob("*") if p.is_file()}
    try:
        loaded = TensorDict.load_memmap(WORK)
    except DatasetError:
        loaded = None
    if loaded is not None:
        for leaf in loaded._leaves():
            for part in leaf.unbind() if leaf.is_nested else [leaf]:
                part.as_subclass(torch.Tensor).clone()
    assert {str(p): p.stat().st_size for p in WORK.rglob("*") if p.is_file()} == before


if __name__ == "__main__":
    os.makedirs(ROOT, exist_ok=True)
    if not TEMPLATE.exists():
        make_template()
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
