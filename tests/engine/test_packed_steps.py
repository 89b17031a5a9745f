"""What the library has workers call goes by pickle, unless something of the user's is in it."""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest
import torch

import tdmap
from tdmap.keys.reducing import CutChunk
from tdmap.ops.reduce import FoldChunk
from tdmap.reducers import Sum
from tdmap.runtime.wire.packing import Packer, unpack
from tensordict_lite import TensorDict

MINE = functools.partial(os.path.join, "a")


class Mine(Sum):
    """A reducer of somebody else's."""


def test_a_step_of_our_own_goes_by_pickle() -> None:
    data = Packer(private=True).dumps_step(FoldChunk(Sum("x"), None))
    assert data is not None and unpack(data).reducer.key == "x"


@pytest.mark.parametrize("mapper", [lambda x: x, test_a_step_of_our_own_goes_by_pickle, MINE, os])
def test_functions_and_modules_are_for_dill(mapper: Any) -> None:
    assert Packer(private=True).dumps_step(FoldChunk(Sum("x"), mapper)) is None


def test_what_is_not_ours_is_for_dill() -> None:
    assert Packer(private=True).dumps_step(MINE) is None


def test_a_function_that_a_step_has_twice_stays_one() -> None:
    def shared() -> None: ...

    cut = CutChunk(None, None, None, None, {"a": shared, "b": shared})  # type: ignore[arg-type,dict-item]
    packer = Packer(private=True)
    found = unpack(packer.dumps_step(cut) or packer.dumps(cut, by_value=True))
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
