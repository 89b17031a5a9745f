"""Print options as a context and a decorator, and the way back from text."""

import pytest
import torch

from tensordict_lite import TensorDict, get_printoptions, set_printoptions


@pytest.fixture
def td() -> TensorDict:
    return TensorDict({"b": torch.zeros(3, 4), "a": {"c": torch.zeros(3, 1, dtype=torch.bfloat16)}}, [3], device="cpu")


def test_print_options_nest_decorate_and_come_back(td):
    before = get_printoptions()
    with set_printoptions(compact=False), set_printoptions(show_device=False):
        assert not get_printoptions()["show_device"] and not get_printoptions()["compact"]

    @set_printoptions(compact=False)
    def text():
        return repr(td)

    assert text().startswith("TensorDict(\n") and get_printoptions() == before
