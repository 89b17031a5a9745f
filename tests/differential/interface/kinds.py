"""Every kind of collection, each as the source that makes it: what the methods of the interface are drawn over."""

import re

FLAGS = ("autocast", "nocast", "frozen", "tensor_only", "shadow")

CLASSES = """
@tensorclass
class Plain:
    a: torch.Tensor
    n: TensorDict
    s: str = "text"
    o: torch.Tensor = None

class Outer(TensorClass):
    a: torch.Tensor
    n: Plain

class Typed(TypedTensorDict):
    a: torch.Tensor
    n: TensorDict
""" + "".join(
    f"""
class With_{flag}(TensorClass["{flag}"]):
    a: torch.Tensor
    n: TensorDict
"""
    for flag in FLAGS
)

CLASS_NAMES = tuple(re.findall(r"^class (\w+)", CLASSES, re.MULTILINE))


def _entries(size: tuple[int, ...]) -> str:
    """Leaves of two dtypes on two levels, counting up."""
    a = f"'a': torch.arange(1.0, 1.0 + 2 * math.prod({size})).view(*{size}, 2)"
    return f"{a}, 'n': TD({{'b': torch.arange(math.prod({size})).view({size})}}, {size})"


def _dense(size: tuple[int, ...], more: str = "") -> str:
    return f"TD({{{_entries(size)}}}, {size}{more})"


def _holding(entry: str) -> str:
    return f"TD({{'a': torch.ones(3, 2), {entry}}}, [3])"


def _object(cls: str, size: tuple[int, ...] = (3,)) -> str:
    return f"{cls}(**{{{_entries(size)}}}, batch_size={list(size)})"


KINDS = {
    "0 dims": _dense(()),
    "1 dim": _dense((3,)),
    "2 dims": _dense((2, 3)),
    "3 dims": _dense((2, 1, 3)),
    "4 dims": _dense((1, 2, 1, 2)),
    "no rows": _dense((0,)),
    "no entries": "TD({}, [3])",
    "named": _dense((2, 3), ", names=['x', 'y']"),
    "on a device": _dense((3,), ", device='cpu'"),
    "transposed": _dense((3, 2)) + ".transpose(0, 1)",
    "every other row": _dense((5,)) + "[::2]",
    "expanded": _dense((1,)) + ".expand(3)",
    "locked": _dense((3,)) + ".lock_()",
    "deeper batch": "TD({'a': torch.ones(3, 2), 'n': TD({'b': torch.zeros(3, 2, 4)}, [3, 2])}, [3])",
    "dtypes": _holding("'h': torch.ones(3).half(), 'c': torch.ones(3, dtype=torch.complex64), 'm': torch.ones(3) > 0"),
    "text": _holding("'s': 'text'"),
    "objects": _holding("'s': NonTensorStack('x', 'y', 'z')"),
    "a set": _holding("'s': NonTensorData({1, 2}, batch_size=[3])"),
    "metadata": _holding("'m': MetaData('whole')"),
    "unbatched": _holding("'u': UnbatchedTensor(torch.ones(4, 5))"),
    "tensorclass": _object("Plain"),
    "tensorclass 2 dims": _object("Plain", (2, 3)),
    **{f"tensorclass {flag}": _object(f"With_{flag}") for flag in FLAGS},
    "tensorclass of tensorclass": f"Outer(a=torch.ones(3), n={_object('Plain')}, batch_size=[3])",
    "tensorclass in a tree": f"TD({{'c': {_object('Plain')}}}, [3])",
    "typed": _object("Typed"),
    "lazy stack": f"lazy_stack([{_dense((3,))}, {_dense((3,))} + 1], 0)",
    "lazy stack, dim 1": f"lazy_stack([{_dense((3,))}, {_dense((3,))} + 1], 1)",
    "lazy stack of lazy stacks": f"lazy_stack([lazy_stack([{_dense((3,))}, {_dense((3,))} + 1]) for _ in range(2)])",
    "ragged lazy stack": "lazy_stack([TD({'a': torch.ones(3, i), f'k{i}': torch.ones(3)}, [3]) for i in (1, 2)], 0)",
    "lazy stack in a tree": f"TD({{'a': torch.ones(2), 'l': lazy_stack([{_dense((3,))}, {_dense((3,))}])}}, [2])",
    "lazy stack of tensorclasses": f"lazy_stack([{_object('Plain')}, {_object('Plain')}], 0)",
    "mapped": _dense((3,)) + ".memmap()",
    "mapped tensorclass": _object("Plain") + ".memmap()",
    "parameters": "Params(TD({'a': torch.ones(3, 2), 'n': TD({'b': torch.ones(3)}, [3])}, [3]))",
    "requiring grad": _dense((3,)).replace("arange(math", "arange(0.0, math") + ".requires_grad_()",
    "NonTensorData": "NonTensorData('text', batch_size=[3])",
    "NonTensorStack": "NonTensorStack('x', 'y', 'z')",
}
"""Name to source; ``x`` of an expression is what the source makes."""
