"""Print options as a context and a decorator, and the way back from text."""

import pytest
import torch

from tensordict_lite import TensorDict, get_printoptions, parse_tensor_dict_string, set_printoptions


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


@pytest.mark.parametrize("compact", [True, False])
def test_printed_form_parses_back(compact):
    td = TensorDict(
        {
            "obs": torch.zeros(3, 4),
            "next": TensorDict({"done": torch.zeros(3, 2, 1, dtype=torch.bool)}, [3, 2]),
            "meta": torch.zeros(3, dtype=torch.complex64, device="meta"),
            "e": {},
            "k" * 70: torch.zeros(3),
        },
        [3],
    )
    with set_printoptions(compact=compact):
        text = repr(td)
        again = parse_tensor_dict_string(text)
        assert repr(again) == text
