"""Views that negate or conjugate, which NumPy has not, are numbers as all others."""

import pytest
import torch

import tdmap
from tdmap import reducers
from tensordict_lite import TensorDict

NAMES = (
    "Checksum CovarianceMatrix First Histogram Last Max Mean Min MinMax Quantile Std Sum TopK Unique ValueCounts Var"
)


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("name", NAMES.split())
@pytest.mark.parametrize("kind", ["negated", "imaginary", "conjugate"])
@pytest.mark.parametrize("grouped", [False, True])
def test_every_reducer_takes_views(name: str, kind: str, grouped: bool) -> None:
    numbers = torch.complex(torch.arange(6.0), torch.arange(6.0))
    view = {"negated": torch._neg_view(numbers.real), "imaginary": numbers.conj().imag, "conjugate": numbers.conj()}[
        kind
    ]

    def answer(values: torch.Tensor) -> str:
        data = TensorDict({"x": values, "k": torch.arange(6) % 2}, [6])
        reducer = getattr(reducers, name)("x")
        try:
            if grouped:
                return repr(tdmap.group_by(data, "k").reduce({"y": reducer}, num_workers=0).tolist())
            found = tdmap.reduce(data, reducer, num_workers=0)
        except (TypeError, ValueError, NotImplementedError) as error:
            return f"{type(error).__name__}: {error}"
        return repr(found.tolist() if hasattr(found, "tolist") else found)

    assert answer(view) == answer(view.resolve_neg().resolve_conj().clone())
