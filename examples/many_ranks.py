"""Preprocess a dataset with several programs, then train on it with all of them: one folder, one epoch, no row twice.

    torchrun --standalone --nproc-per-node 2 examples/many_ranks.py --folder work

Every rank normalises its own part of the rows into one folder. Kill it at any instant and start it again: it goes on.
Then a small model is trained with DistributedDataParallel, for which every rank must have as many batches as others.
In the middle of the second epoch the position is saved. A run with another number of ranks goes on there:

    torchrun --standalone --nproc-per-node 3 examples/many_ranks.py --folder work --go-on
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import tdmap
from tensordict_lite import TensorDict

EPOCHS, STOP_AFTER = 2, 20


def make_points(folder: Path, rows: int) -> None:
    """A dataset of points in two rings: ``point`` float32 ``[2]``, ``ring`` float32, ``row`` int64."""
    generator = torch.Generator().manual_seed(0)
    angle = 6.2832 * torch.rand(rows, generator=generator)
    ring = (torch.arange(rows) % 2).float()
    radius = 1 + ring + 0.2 * torch.randn(rows, generator=generator)
    point = torch.stack([radius * angle.cos(), radius * angle.sin()], -1)
    TensorDict({"point": point, "ring": ring, "row": torch.arange(rows)}, [rows]).memmap(folder)


def features(chunk: TensorDict) -> TensorDict:
    """The points, their squares, and which ring they are of."""
    x = torch.cat([chunk["point"], chunk["point"] ** 2], -1)
    return TensorDict({"x": x, "ring": chunk["ring"], "row": chunk["row"]}, chunk.batch_size)


def train(data: TensorDict, folder: Path, go_on: bool) -> list[int]:
    """Train for two epochs, or what is left of them; the rows of the last one that this rank has seen."""
    batches = data.pipeline(seed=0).shuffle(seed=0).batch(32).shard("auto", even="drop")
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    position = json.loads((folder / "position.json").read_text()) if go_on else None
    for epoch in range(0 if position is None else position["epoch"], EPOCHS):
        seen: list[int] = []
        elements = batches.iter(num_workers=1, epoch=epoch)
        if position is not None:
            elements.load_state_dict(position)
            position = None
        for step, batch in enumerate(elements):
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch["x"]).squeeze(-1), batch["ring"])
            optimizer.zero_grad()
            loss.backward()  # all ranks meet here
            optimizer.step()
            seen += batch["row"].tolist()
            if not go_on and epoch == EPOCHS - 1 and step + 1 == STOP_AFTER:
                if dist.get_rank() == 0:  # one state serves all ranks
                    (folder / "position.json").write_text(json.dumps(elements.state_dict()))
                elements.close()
                break
    return seen


def main() -> None:
    """Run this rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=6_400)
    parser.add_argument("--go-on", action="store_true", help="go on where an earlier run has saved its position")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, folder = dist.get_rank(), options.folder
    if rank == 0 and not (folder / "points" / "meta.json").exists():
        make_points(folder / "points", options.rows)
    dist.barrier()

    points = TensorDict.load_memmap(folder / "points")
    if not options.go_on:
        part = points.map(features, out=folder / "features", num_workers=1, shard="auto")
        print(f"rank {rank}: {0 if part is None else len(part):,} rows of {len(points):,}")
    dist.barrier()  # all are done, and whoever was last has made the dataset whole

    seen = train(tdmap.merge_shards(folder / "features"), folder, options.go_on)
    everyone: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, seen)
    if rank == 0:
        check(everyone, folder / "rows.json", options.go_on)
    dist.destroy_process_group()


def check(everyone: list[list[int]], notes: Path, go_on: bool) -> None:
    """Every rank has had as many rows, and no row of the last epoch was used twice, in this run or the one before."""
    rows = [row for rank in everyone for row in rank]
    before = json.loads(notes.read_text()) if go_on else []
    assert len({len(rank) for rank in everyone}) == 1, "the ranks had different numbers of batches"
    assert len({*rows, *before}) == len(rows) + len(before), "a row was used twice"
    notes.write_text(json.dumps(rows))
    print(f"checked: {len(rows):,} rows of the last epoch, {len(rows) // len(everyone)} a rank, each used once")


if __name__ == "__main__":
    main()
