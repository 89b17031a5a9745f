"""Functions and reducers of the user within what the library has workers call."""

from typing import Any

import torch

import tdmap
from tdmap.keys.reducing import CutChunk
from tdmap.reducers import Sum
from tdmap.runtime.wire.packing import Packer, unpack
from tensordict_lite import TensorDict


class Mine(Sum):
    """A reducer of somebody else's."""


def test_a_function_that_a_step_has_twice_stays_one() -> None:
    def shared() -> None: ...

    cut = CutChunk(None, None, None, None, False)  # type: ignore[arg-type]
    cut.forms = {"a": shared, "b": shared}  # type: ignore[dict-item]
    found = unpack(Packer(private=True).dumps(cut))
    assert found.forms["a"] is found.forms["b"]


def test_subclasses_of_ready_made_reducers_stay_what_they_are() -> None:
    class Local(Sum):
        """By value, for nobody can import it."""

    class Twice(Local):
        def finish(self, state: Any) -> Any:
            return 2 * super().finish(state)

    Script = type("Script", (Sum,), {"__module__": "__main__"})
    data = TensorDict({"k": torch.arange(1000) % 3, "x": torch.ones(1000)}, [1000])
    for reducer, factor in ((Script("x"), 1), (Mine("x"), 1), (Local("x"), 1), (Twice("x"), 2)):
        found = tdmap.group_by(data, "k").reduce({"s": reducer}, num_workers=2, chunksize=100)
        assert found["s"].tolist() == [334 * factor, 333 * factor, 333 * factor]
        assert float(tdmap.reduce(data, reducer, num_workers=2, chunksize=100)) == 1000 * factor
