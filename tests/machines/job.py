"""The main job, run by `test_other_machines.py` in an interpreter from which something was taken away.

Free of what newer versions of torch and Python have: it runs with the oldest ones that the project names.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import traceback
from pathlib import Path

import torch

try:
    import tdmap
    from tdmap.reducers import Count, Mean
    from tdmap.runtime.workers.launch import start_methods
    from tensordict_lite import MemoryMappedTensor, TensorDict
except ImportError:
    traceback.print_exc()

ROWS = 600


def normalise(chunk: TensorDict) -> TensorDict:
    return TensorDict({"image": chunk["image"].float() / 127.5 - 1, "label": chunk["label"]}, chunk.batch_size)


def invert(chunk: TensorDict) -> None:
    chunk["image"].bitwise_not_()


def tokens(chunk: TensorDict) -> list[str]:
    return [f"row {int(label)}" for label in chunk["label"]]


def kill_once(chunk: TensorDict, flag: str) -> TensorDict:
    if not os.path.exists(flag):
        Path(flag).touch()
        os._exit(9)
    return chunk.clone()


def source(folder: Path) -> TensorDict:
    torch.manual_seed(0)
    image = torch.randint(0, 256, (ROWS, 3, 8, 8), dtype=torch.uint8)
    return TensorDict({"image": image, "label": torch.arange(ROWS)}, [ROWS]).memmap(folder / "photos")


def main_job(folder: Path, method: str | None, workers: int) -> None:
    """Everything that a week of use calls, on real files and processes."""
    options = {"num_workers": workers, "mp_start_method": method, "chunksize": 200}
    data = source(folder)
    want = data["image"].clone().float() / 127.5 - 1
    image = data["image"].clone()

    ready = tdmap.map(data, normalise, out=folder / "ready", resume=True, **options)
    assert torch.equal(ready["image"], want)
    assert torch.equal(tdmap.map(data, normalise, **options)["image"], want)
    assert torch.equal(tdmap.map(image, torch.Tensor.float, **options), image.float())
    assert tdmap.map(data, invert, **options) is None
    assert torch.equal(data["image"], image.bitwise_not())
    got = tdmap.map(data, kill_once, fn_kwargs={"flag": str(folder / "flag")}, **options) if workers else data
    assert torch.equal(got["label"], torch.arange(ROWS))
    named = tdmap.map(data, lambda c: c.copy().set("text", tokens(c)), out=folder / "texts", **options)
    assert named["text"][7] == "row 7"

    again = tdmap.map(data, torch.clone, out=folder / "texts", overwrite=True, **options)
    assert sorted(again.keys()) == ["image", "label"]

    odd = tdmap.filter(data, lambda c: c["label"] % 2 == 1, out=folder / "odd", **options)
    assert torch.equal(odd["label"], torch.arange(ROWS)[1::2])
    twice = tdmap.flat_map(data, lambda c: torch.cat([c, c]), out=folder / "twice", num_workers=workers)
    assert len(twice) == 2 * ROWS
    mixed = tdmap.shuffle(data, seed=0, out=folder / "mixed", num_workers=workers)
    assert torch.equal(tdmap.sort(mixed, "label", num_workers=workers)["label"], data["label"])
    groups = tdmap.group_by(data, lambda c: c["label"] % 3, name="rest").reduce({"n": Count()}, num_workers=workers)
    assert groups["n"].tolist() == [200, 200, 200]
    mean = tdmap.reduce(ready, {"mean": Mean("image", dim=None)}, **options)["mean"]
    assert torch.allclose(mean.double(), want.double().mean())
    batches = list(data.pipeline().shuffle(seed=1).map(normalise).batch(64).iter(num_workers=workers))
    assert sum(len(batch) for batch in batches) == ROWS
    data.save(folder / "all.tdz")
    assert torch.equal(TensorDict.load(folder / "all.tdz")["label"], data["label"])
    tdmap.close_pools()


def make_temporary_files(folder: Path) -> None:
    """Memory that has no file elsewhere has one here; it must be gone when this process is."""
    tempfile.tempdir = str(folder)
    held = MemoryMappedTensor.zeros(10), TensorDict({"x": torch.ones(3)}, [3]).share_memory_()
    assert list(folder.iterdir()), held
    print("temporary files made")


def refuse(method: str) -> None:
    """What is said where there is no such start method."""
    try:
        options = {"executor": "ray"} if method == "ray" else {"mp_start_method": method}
        tdmap.map(torch.arange(10), torch.neg, **options)
    except ValueError as error:
        print(error)


def examine(folder: Path) -> None:
    """What `tdmap doctor` finds."""
    from tdmap.doctor import examine as look

    report = look(folder)
    print(report.verdict, report.facts["start methods"], *(check.found for check in report.problems))


def run() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("folder", type=Path)
    words.add_argument("--method")
    words.add_argument("--workers", type=int, default=2)
    words.add_argument("--temporary", type=Path)
    words.add_argument("--refused")
    words.add_argument("--import-only", action="store_true")
    words.add_argument("--doctor", action="store_true")
    given = words.parse_args()
    if given.import_only:
        return
    if given.refused:
        return refuse(given.refused)
    if given.doctor:
        return examine(given.folder)
    if given.temporary:
        make_temporary_files(given.temporary)
    print("methods", start_methods())
    main_job(given.folder, given.method, given.workers)
    print("done")


if __name__ == "__main__":
    run()
