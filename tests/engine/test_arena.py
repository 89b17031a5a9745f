"""Shared memory for tensors: large ones can be written side by side, and descriptors do not run out."""

import torch

from tdmap.memory.shm import Arena
from tensordict_lite.memmap.disk.mapping import region_of


def small_arena() -> Arena:
    return Arena(block_bytes=1 << 16, alone_bytes=1 << 13, most_alone=3)


def files(tensors: list[torch.Tensor]) -> list[str]:
    return [region.handle.path for tensor in tensors if (region := region_of(tensor)) is not None]


def test_large_tensors_lie_in_files_of_their_own_as_long_as_they_are_few() -> None:
    arena = small_arena()
    large = [arena.empty(torch.int64, torch.Size([1024])) for _ in range(8)]
    small = [arena.empty(torch.uint8, torch.Size([100, 3])) for _ in range(4)]
    huge = arena.empty(torch.uint8, torch.Size([1 << 17]))
    found = files([*large, *small, huge])
    assert len(found) == 13 and len(set(found[:3])) == 3
    assert len(set(found[3:12])) == 1 and found[12] not in found[:12]
    for number, tensor in enumerate([*large, *small, huge]):
        tensor.fill_(number)
    assert [int(tensor.flatten()[-1]) for tensor in [*large, *small, huge]] == list(range(13))


def test_addresses_are_aligned() -> None:
    arena = small_arena()
    for count in (0, 1, 63, 5000, 1 << 14):
        tensor = arena.empty(torch.uint8, torch.Size([count]))
        assert tensor.numel() == count and (not count or tensor.data_ptr() % 64 == 0)


def test_copies_have_the_values_of_their_tensors() -> None:
    arena, rows = Arena(), torch.arange(1 << 17).view(1 << 9, 1 << 8)
    complex_rows = torch.complex(rows.double(), -rows.double())
    cases = [rows[0], rows, rows.T, rows[1:, 3:], rows[:1].expand(1 << 10, -1), rows.bfloat16(), rows[:0]]
    cases += [complex_rows, complex_rows.conj(), torch._neg_view(rows)]
    for case in cases + cases:  # large ones are written to the file, some behind others
        copy = arena.copy_of(case)
        assert torch.equal(copy, case) and copy.dtype == case.dtype and region_of(copy) is not None
