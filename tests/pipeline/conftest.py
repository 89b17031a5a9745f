"""What the tests of pipelines share."""

import pytest
import torch

from tensordict_lite import TensorDict

WORKERS = {
    "here": {"num_workers": 0},
    "one process": {"num_workers": 1},
    "two processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "executor": "thread"},
}


@pytest.fixture(params=list(WORKERS))
def workers(request):
    """Options about workers."""
    return WORKERS[request.param]


@pytest.fixture
def data() -> TensorDict:
    """Forty rows with numbers that tell which row it is."""
    row = torch.arange(40)
    return TensorDict({"x": row, "image": row.float()[:, None, None].expand(40, 3, 4).clone()}, [40])
