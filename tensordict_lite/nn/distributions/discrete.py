"""Categories as one-hot tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, RelaxedOneHotCategorical

__all__ = ["OneHotCategorical", "rand_one_hot"]


def rand_one_hot(values: Tensor, do_softmax: bool = True) -> Tensor:
    """One random category for each row of the last dimension, as a one-hot ``torch.long`` tensor of the same shape.

    Args:
        values: logits, or probabilities with ``do_softmax=False``.
        do_softmax: take the softmax first.

    Example:
        >>> rand_one_hot(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), do_softmax=False)
        tensor([[0, 1],
                [1, 0]])
    """
    return OneHotCategorical(**{"logits" if do_softmax else "probs": values}).sample()


class OneHotCategorical(Categorical):
    """:class:`torch.distributions.Categorical` with one-hot ``torch.long`` values.

    Args:
        logits: unnormalised log-probabilities, the categories in the last dimension. A last dimension of size 1 is
            removed first.
        probs: probabilities instead.
        **kwargs: passed to :class:`torch.distributions.Categorical`.

    Raises:
        ValueError: both or neither of ``logits`` and ``probs``.

    Example:
        >>> dist = OneHotCategorical(logits=torch.tensor([0.0, 2.0, 1.0]))
        >>> dist.mode, dist.log_prob(torch.tensor([0, 1, 0]))
        (tensor([0, 1, 0]), tensor(-0.4076))
    """

    num_params = 1

    def __init__(self, logits: Tensor | None = None, probs: Tensor | None = None, **kwargs: Any) -> None:
        super().__init__(probs=_without_last_one(probs), logits=_without_last_one(logits), **kwargs)

    def expand(self, batch_shape: Any, _instance: Any = None) -> OneHotCategorical:
        """The same distribution with another batch shape, as views."""
        logits = self.logits.expand(torch.Size(batch_shape) + self.logits.shape[-1:])
        return OneHotCategorical(logits=logits, validate_args=False)

    def _one_hot(self, category: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(category, self.logits.shape[-1])

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of the category of a one-hot tensor: the position of its maximum."""
        return super().log_prob(value.argmax(-1))  # type: ignore[no-untyped-call]

    @property
    def mode(self) -> Tensor:
        """The most likely category, the first of several."""
        return self._one_hot(self.logits.argmax(-1))

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode."""
        return self.mode

    def sample(self, sample_shape: Sequence[int] | None = None) -> Tensor:
        """One-hot samples of shape ``[*sample_shape, *batch_shape, categories]``."""
        return self._one_hot(super().sample(torch.Size(sample_shape or ())))  # type: ignore[no-untyped-call]

    def rsample(self, sample_shape: Sequence[int] | None = None) -> Tensor:
        """One-hot samples with the gradient of a relaxed sample of temperature 1 (straight through)."""
        temperature = torch.ones((), dtype=self.logits.dtype, device=self.logits.device)
        relaxed = RelaxedOneHotCategorical(temperature, logits=self.logits).rsample(torch.Size(sample_shape or ()))
        hard = self._one_hot(relaxed.argmax(-1)).to(relaxed.dtype)
        return hard + (relaxed - relaxed.detach())


def _without_last_one(values: Tensor | None) -> Tensor | None:
    return values if values is None or values.ndim == 0 or values.shape[-1] != 1 else values[..., 0]
