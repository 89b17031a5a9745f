"""Random numbers from a given generator, for distributions that use only the global one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tensordict_lite.keys import unravel_key

if TYPE_CHECKING:
    from tensordict_lite.base import TensorDictBase

__all__ = ["Randomness"]


class Randomness:
    """The source of randomness of a module, see ``generator`` of :class:`ProbabilisticTensorDictModule`."""

    def __init__(self, source: Any) -> None:
        if isinstance(source, bool) or not (source is None or isinstance(source, (torch.Generator, int, str, tuple))):
            raise TypeError(f"generator= is a torch.Generator, a seed, a key or None, got {source!r}")
        if isinstance(source, int):
            source = torch.Generator().manual_seed(source)
        self._source = unravel_key(source) if isinstance(source, (str, tuple)) else source

    def of(self, tensordict: TensorDictBase) -> Any:
        """A block in which the global generator has the state of this one."""
        if self._source is None:
            return contextlib.nullcontext()
        if torch.compiler.is_compiling():
            raise RuntimeError("generator= cannot be used under torch.compile, which has its own random numbers")
        if isinstance(self._source, torch.Generator):
            return _use(self._source)
        return self._from_entry(tensordict)

    @contextlib.contextmanager
    def _from_entry(self, tensordict: TensorDictBase) -> Iterator[None]:
        entry = tensordict.get(self._source, None)
        if entry is None:
            yield
            return
        value = entry if isinstance(entry, Tensor) else entry._as_value()
        if isinstance(value, torch.Generator):
            with _use(value):
                yield
            return
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ValueError(
                f"Generator key {self._source!r} resolved to a tensor of {value.numel()} elements; expected a scalar "
                "seed (one number, an integer)"
            )
        generator = torch.Generator().manual_seed(int(value))
        with _use(generator):
            yield
        seed = torch.empty((), dtype=torch.int64).random_(generator=generator)
        if isinstance(value, Tensor):
            tensordict.set(self._source, seed.to(value.dtype).reshape(value.shape).to(value.device))
        else:
            tensordict.set_non_tensor(self._source, int(seed))

    def __deepcopy__(self, memo: Any) -> Randomness:
        """Python cannot copy a generator: the copy starts from the same state."""
        new = Randomness(None)
        new._source = self._source
        if isinstance(self._source, torch.Generator):
            new._source = torch.Generator(self._source.device)
            new._source.set_state(self._source.get_state())
        return new

    def __getstate__(self) -> dict[str, Any]:
        source = self._source
        if isinstance(source, torch.Generator):
            return {"device": str(source.device), "state": source.get_state()}
        return {"source": source}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._source = state.get("source")
        if "state" in state:
            self._source = torch.Generator(state["device"])
            self._source.set_state(state["state"])


@contextlib.contextmanager
def _use(generator: torch.Generator) -> Iterator[None]:
    """Swap the state of the generator into the global one of its device, and restore that afterwards."""
    device = generator.device
    on_cpu = device.type == "cpu"
    module = torch if on_cpu else torch.get_device_module(device)
    where = () if on_cpu else (device,)
    before = module.get_rng_state(*where)
    module.set_rng_state(generator.get_state(), *where)
    try:
        yield
    finally:
        generator.set_state(module.get_rng_state(*where))
        module.set_rng_state(before, *where)
