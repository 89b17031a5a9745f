"""``all`` and ``any`` of few and many elements, which are computed in two ways, against torch."""

import pytest
import torch

from tensordict_lite import TensorDict


@pytest.mark.parametrize("shape", [(), (0,), (1,), (32,), (33,), (4, 8), (3, 11), (2, 0, 3), (2, 2, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64])
def test_all_and_any_of_few_and_many_elements_are_those_of_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    ones = torch.ones(shape, dtype=dtype)
    spoiled = [ones, ones * 0, ones.transpose(0, -1) if shape else ones]
    if ones.numel() > 1:
        one_zero, one_left = ones.clone(), ones * 0
        one_zero.view(-1)[-1], one_left.view(-1)[-1] = 0, 1
        spoiled += [one_zero, one_left, one_zero.expand(2, *shape)]
    if dtype.is_floating_point:
        spoiled += [ones * torch.nan, ones * -0.0]
    for value in spoiled:
        td = TensorDict({"a": value, "n": {"b": value.clone()}}, [])
        assert td.all() is bool(value.all()) and td.any() is bool(value.any())
