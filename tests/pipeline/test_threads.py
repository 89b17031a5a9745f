"""Torch's threads while a pipeline runs: the calling process leaves the cores to the workers."""

import torch

from tensordict_lite import TensorDict


def _pipeline(seen):
    data = TensorDict({"x": torch.arange(1000)}, [1000])

    def note(td):
        seen.append(torch.get_num_threads())
        return td

    # After a buffer and a count, the order of rows is known in the calling process only.
    return data.pipeline().shuffle(seed=0, buffer=100).take(500).batch(50).map(note)


def test_one_thread_beside_workers_and_the_callers_own_in_between():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen: list[int] = []
        for _ in _pipeline(seen).iter(num_workers=2):
            assert torch.get_num_threads() == 2
        assert set(seen) == {1}
        seen.clear()
        for _ in _pipeline(seen).iter(num_workers=0):
            pass
        assert set(seen) == {2}
    finally:
        torch.set_num_threads(before)
