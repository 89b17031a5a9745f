"""Sizes that are symbols, as those of tensors that ``make_fx`` traces: no cache may ask for their hash."""

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tensordict_lite import TensorDict

OPERATIONS: dict[str, Callable[[TensorDict], TensorDict]] = {
    "reshape": lambda td: td.reshape(-1),
    "reshape by a size": lambda td: td.reshape(td.shape[0], -1),
    "view": lambda td: td.view(-1),
    "flatten": lambda td: td.flatten(),
    "unflatten": lambda td: td.unflatten(0, (2, -1)),
    "expand": lambda td: td.expand(2, *td.shape),
    "squeeze": lambda td: td.squeeze(),
    "split": lambda td: td.split(2)[0],
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_traced_sizes_may_be_symbols(operation: str) -> None:
    def traced(*tensors: torch.Tensor) -> list[torch.Tensor]:
        td = TensorDict({str(i): tensor for i, tensor in enumerate(tensors)}, tensors[0].shape[:3])
        out = OPERATIONS[operation](td)
        return [out[key] for key in td.keys()]

    graph = make_fx(traced, tracing_mode="symbolic")(*(torch.rand(4, 1, 3, 5) for _ in range(6)))
    # Of another size: what the graph was not specialised to. The number of parts is part of the graph.
    rows = 4 if operation == "split" else 6
    tensors = [torch.rand(rows, 1, 3, 7) for _ in range(6)]
    for found, expected in zip(graph(*tensors), traced(*tensors), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
