"""Collections of every kind, the same on each rank but for their values."""

import dataclasses
import importlib
from typing import Any

import torch

__all__ = ["KINDS", "PAIR", "make", "same"]

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip

KINDS = (
    "flat", "nested", "dtypes", "scalar", "tensorclass", "lazy", "lazy nested", "objects", "rows of objects",
    "zero rows", "no entries", "views", "large", "parameters", "named",
)  # fmt: skip
"""Those whose structure all ranks know; ``make`` knows "ragged", "locked" and "expanded" as well."""

PAIR: dict[str, Any] = {}


def _pair(library: Any) -> Any:
    """A tensorclass of a library."""
    if library.__name__ not in PAIR:

        class Pair:
            x: torch.Tensor
            label: str = "p"

        Pair.__module__, Pair.__qualname__ = __name__, "Pair"
        made = library.tensorclass(Pair)
        PAIR[library.__name__] = made
        globals()["Pair"] = made
    return PAIR[library.__name__]


def make(kind: str, value: int, library: str = "tensordict_lite") -> Any:
    """A collection of a kind, whose values all say ``value``."""
    lib = importlib.import_module(library)
    td = lib.TensorDict
    full = lambda *size, dtype=torch.float32: torch.full(size, value, dtype=dtype)  # noqa: E731
    if kind == "flat":
        return td({"b": full(3, 2), "a": full(3)}, [3])
    if kind == "nested":
        return td({"a": full(3), "n": {"b": full(3, 2, dtype=torch.float64), "m": {"c": full(3)}}}, [3])
    if kind == "dtypes":
        return td({f"{dtype}": full(3, dtype=dtype) for dtype in DTYPES}, [3])
    if kind == "scalar":
        return td({"a": full()}, [])
    if kind == "tensorclass":
        return td({"p": _pair(lib)(x=full(3, 2), label=f"label {value}", batch_size=[3])}, [3])
    if kind in ("lazy", "lazy nested"):
        stack = lib.lazy_stack([td({"a": full(3), "n": {"c": full(3)}}, [3]) * place for place in range(2)], 1)
        return stack if kind == "lazy" else td({"s": stack, "a": full(3, 2)}, [3, 2])
    if kind == "ragged":
        return lib.lazy_stack([td({"a": full(place + 1), "b": full(2)}) for place in range(2)])
    if kind == "objects":
        return td({"a": full(3), "s": f"text {value}", "n": {"o": {"set", value}, "c": full(3)}}, [3])
    if kind == "rows of objects":
        rows = [td({"a": full(), "s": f"{value} {place}"}) for place in range(3)]
        return torch.stack(rows)
    if kind == "zero rows":
        return td({"a": full(0, 2), "n": {"b": full(0)}}, [0])
    if kind == "no entries":
        return td({}, [4])
    if kind == "views":
        big = full(4, 6)
        return td({"t": big.t()[:3], "s": big.view(6, 4)[:3, ::2]}, [3])
    if kind == "expanded":
        return td({"a": full(1).expand(3)}, [3])
    if kind == "large":
        return td({"l": full(300, 1000), "m": full(300, 100), "s": full(300)}, [300])
    if kind == "parameters":
        return lib.TensorDictParams(td({"w": full(3, 2), "n": {"b": full(2)}}))
    if kind == "named":
        return td({"a": full(3)}, [3], names=["rows"])
    if kind == "locked":
        return make("nested", value, library).lock_()
    raise KeyError(kind)


def same(a: Any, b: Any) -> None:
    """Asserts that two collections are of one class, structure and content."""
    assert type(a) is type(b), (type(a), type(b))
    assert a.batch_size == b.batch_size and a.names == b.names and a.is_locked == b.is_locked
    if hasattr(a, "tensordicts"):
        assert a.stack_dim == b.stack_dim and len(a.tensordicts) == len(b.tensordicts)
        for mine, theirs in zip(a.tensordicts, b.tensordicts, strict=True):
            same(mine, theirs)
        return
    assert set(a.keys()) == set(b.keys())
    fields = dataclasses.is_dataclass(a)
    for key in a.keys():
        mine, theirs = (getattr(one, key) if fields else one[key] for one in (a, b))
        if isinstance(mine, torch.Tensor):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
        elif hasattr(mine, "batch_size") and hasattr(mine, "keys"):
            same(mine, theirs)
        else:
            mine, theirs = (one.tolist() if hasattr(one, "tolist") else one for one in (mine, theirs))
            assert mine == theirs, (key, mine, theirs)
