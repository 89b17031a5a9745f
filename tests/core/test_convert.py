"""``collate``, alone and in a ``DataLoader``, and the words that are read as bools."""

import functools

import pytest
import torch
from torch.utils.data import DataLoader

import tensordict_lite as tdl
import tensordict_lite.utils
from tensordict_lite import TensorDict


def test_collate_pads_masks_and_nests():
    samples = [
        TensorDict(ids=torch.ones(n, dtype=torch.long), points=torch.randn(n + 1, 3), score=torch.tensor(float(n)))
        for n in (2, 3)
    ]
    batch = tdl.collate(samples, pad_keys={"ids": 7}, nested_keys=["points"], mask_key="mask")
    assert batch["ids"].tolist() == [[1, 1, 7], [1, 1, 1]] and batch["mask", "ids"].sum() == 5
    assert batch["points"].is_nested and batch["score"].tolist() == [2, 3]
    loader = DataLoader(
        tdl.lazy_stack(samples),
        batch_size=2,
        collate_fn=functools.partial(tdl.collate, pad_keys={"ids": 7, "points": 0}),
    )
    assert next(iter(loader))["ids"].tolist() == [[1, 1, 7], [1, 1, 1]]
    with pytest.raises(KeyError, match="'q'"):
        tdl.collate(samples, pad_keys={"q": 0})
    for options in ({"mask_key": "m"}, {"pad_keys": {"ids": 0}, "nested_keys": ["ids"]}, {"nested_keys": ["ids"]}):
        with pytest.raises(ValueError):
            tdl.collate(samples, **options)


def test_new_tensor_is_pinned_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    td = TensorDict({"a": torch.ones(2), "n": {"b": torch.ones(2, 3)}}, [2])
    new = td.new_tensor([1, 2], pin_memory=True, requires_grad=True)
    assert len(pinned) == 2 and new["a"].requires_grad and new["n", "b"].tolist() == [1, 2]
    td.new_tensor([1, 2])
    assert len(pinned) == 2
