"""Several copies of one module with separate parameters, on the same input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.nn.base import TensorDictModuleBase
from tensordict_lite.nn.dispatching import dispatch
from tensordict_lite.nn.params import TensorDictParams

if TYPE_CHECKING:
    from tensordict_lite.base import TensorDictBase

__all__ = ["EnsembleModule"]


class EnsembleModule(TensorDictModuleBase):
    """Run ``num_copies`` copies of a module with :func:`torch.vmap`: every output gets a leading dimension.

    The stacked parameters are ``ensemble.params_td``, a :class:`TensorDictParams` of batch size ``[num_copies]``; each
    copy is reset with the ``reset_parameters`` of its sub-modules. ``ensemble.parameters()`` includes them and those of
    ``module``, which calls do not use. Randomness (dropout) differs between copies.

    Args:
        module: the module; its keys are those of the ensemble.
        num_copies: number of copies.
        expand_input: give all copies the same input; else the input has a leading dimension of ``num_copies``, with one
            row per copy. The second ensemble of a chain needs False.

    Example:
        >>> from tensordict_lite.nn import TensorDictModule
        >>> ensemble = EnsembleModule(TensorDictModule(torch.nn.Linear(4, 2), in_keys=["a"], out_keys=["b"]), 3)
        >>> ensemble(TensorDict({"a": torch.randn(10, 4)}, [10]))["b"].shape
        torch.Size([3, 10, 2])
    """

    def __init__(self, module: TensorDictModuleBase, num_copies: int, expand_input: bool = True) -> None:
        super().__init__()
        if isinstance(num_copies, bool) or not isinstance(num_copies, int) or num_copies < 1:
            raise ValueError(f"num_copies is a whole number from 1, got {num_copies!r}")
        self.in_keys = module.in_keys
        self.out_keys = module.out_keys
        self.module = module
        self.num_copies = num_copies
        self.expand_input = expand_input
        own = TensorDict.from_module(module)
        params: Any = own.data.expand(num_copies).clone()
        self.reset_parameters_recursive(params)
        params = params.apply(_as_own, own.expand(num_copies), filter_empty=False)
        self.params_td = TensorDictParams(params, no_convert=True)

    def _call_copy(self, tensordict: TensorDictBase, params: Any) -> Any:
        with params.to_module(self.module):
            return self.module(tensordict)

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: TensorDictBase) -> Any:
        """The outputs of all copies, stacked along a new first dimension.

        Raises:
            ValueError: without ``expand_input``, the first dimension of the input is not ``num_copies``.
        """
        if not self.expand_input and tensordict.batch_size[:1] != (self.num_copies,):
            raise ValueError(
                f"vmap: without expand_input the input of an ensemble of {self.num_copies} has a first dimension of "
                f"that size, but its batch size is {list(tensordict.batch_size)}"
            )
        in_dim = None if self.expand_input else 0
        run = torch.vmap(self._call_copy, (in_dim, 0), randomness="different")
        return run(tensordict, self.params_td)

    def reset_parameters_recursive(self, parameters: Any = None) -> Any:
        """Reset parameters in place, separately for each index of the batch dimensions.

        Args:
            parameters: parameters of ``module``, with the structure of :meth:`TensorDict.from_module` and batch
                dimensions; ``ensemble.params_td`` for those of the ensemble.

        Returns:
            A lazy stack of the reset parameters; for an empty batch size what ``module`` returns.

        Raises:
            ValueError: ``parameters`` is None.
        """
        if parameters is None:
            raise ValueError(
                "Ensembles are functional and require passing a TensorDict of parameters to "
                "reset_parameters_recursive: pass ensemble.params_td"
            )
        if not parameters.batch_dims:
            own = parameters.get("params_td", None)
            if own is None:
                return self.module.reset_parameters_recursive(parameters)
            return parameters.copy().set("params_td", self.reset_parameters_recursive(own))  # an ensemble of ensembles
        parts = [self.reset_parameters_recursive(part) for part in parameters.data.unbind(0)]
        return TensorDict.lazy_stack(parts, 0)

    _shown = ("module", "params_td")


def _as_own(stacked: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """A parameter where the module has a trainable one, a buffer elsewhere."""
    if own.requires_grad:
        return torch.nn.Parameter(stacked)
    return torch.nn.Buffer(stacked)
