"""What operations make of their arguments: how rows are cut, and what is done about failures."""

from __future__ import annotations

from dataclasses import replace

import torch

from tdmap.data.kinds import Data, data_length, instead_of_data, is_data
from tdmap.data.reader import rows_of
from tdmap.data.sizes import row_bytes_of
from tdmap.job import Policy
from tdmap.plan import MIN_CHUNKS, ChunkPlan, default_chunk_size, make_plan
from tdmap.process_state import running_operation
from tdmap.rowerrors import MODES, OnError, mode_of
from tdmap.runtime.skipping import DROP, PAD
from tdmap.seeding import base_seed

OUTPUT_FACTOR = 4
"""Without `out`, a row's result is taken to be so many times its bytes (uint8 to float32)."""

LEAVING_OUT = ("raise", "skip", "drop")
"""What `on_error` may be where results lack the rows that raise: "skip" and "drop" are the same there."""


def plan_for(
    data: Data,
    dim: int,
    chunksize: int | None,
    num_chunks: int | None,
    out: Data | None,
    factor: int = 1,
    min_chunks: int = MIN_CHUNKS,
    results_vary: bool = False,
) -> ChunkPlan:
    """How the rows are cut, once the arguments have been checked.

    Args:
        data, dim, chunksize, num_chunks: as `map`.
        out: of `map`, where it exists already.
        factor: default chunks are so many times larger.
        min_chunks: there are at least so many, rows permitting.
        results_vary: the function returns rows that may be of any size, so that default chunks wait for the first one.

    Raises:
        TypeError: `data` is no tensor or collection.
        IndexError: `dim` is out of range.
        ValueError: both sizes are given, or one is out of range.
    """
    if not is_data(data):
        running = running_operation()
        name = "map" if running is None else running.name
        raise TypeError(f"{name} needs a tensor or a collection of tensors, got {instead_of_data(data)}")
    dims = len(data.shape)
    if not isinstance(dim, int) or not -dims <= dim < dims:
        raise IndexError(
            f"dim={dim} is out of range for data of shape {tuple(data.shape)}: "
            + (f"use {-dims} to {dims - 1}." if dims else "it has no dimension to cut.")
        )
    dim %= dims
    rows = rows_of(data, dim)
    if dim and not rows.is_view:
        raise ValueError(f"the rows of several folders lie along dimension 0: they cannot be cut along dim={dim}.")
    if rows.is_remote:
        factor *= REMOTE_CHUNKS
    length = data_length(data, dim)
    own = max(row_bytes_of(data, length) // factor, 1)
    result = own * OUTPUT_FACTOR if out is None or out is data else row_bytes_of(out, length) // factor
    most = default_chunk_size(length, own, min_chunks=min_chunks) if out is None and results_vary else 0
    plan = make_plan(
        length,
        dim=dim,
        chunksize=chunksize,
        num_chunks=num_chunks,
        row_bytes=own + result,
        most=most,
        min_chunks=min_chunks,
    )
    if rows.blocks and chunksize is None and num_chunks is None and rows.blocks[0] * own <= BLOCK_BYTES:
        block = rows.blocks[0]
        plan = replace(plan, size=max(plan.size // block, 1) * block, lead=0, most=0)
    return plan


BLOCK_BYTES = 32 << 20
"""Default chunks are whole blocks of a dataset that is stored in blocks, unless a block has more bytes."""

REMOTE_CHUNKS = 32
"""Default chunks of rows that are fetched from a store are so many times larger: a request for each takes its time."""


def policy_for(
    seed: int | None,
    generator: torch.Generator | None,
    retries: int,
    timeout: float | None,
    on_error: OnError = "raise",
    skip: str = PAD,
) -> Policy:
    """How failures and randomness are handled; `skip` says what results have for rows that raise.

    Raises:
        ValueError: an option is out of range.
    """
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ValueError(f"retries must be an integer of at least 0: got {retries!r}.")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be a number of seconds above 0, or None: got {timeout!r}.")
    mode = mode_of(on_error, MODES if skip == PAD else LEAVING_OUT)
    skip = "" if mode == "raise" else DROP if mode == "drop" else skip
    return Policy(base_seed(seed, generator), retries, timeout, skip=skip)
