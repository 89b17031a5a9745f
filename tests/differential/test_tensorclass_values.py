"""What a field makes of a value: flags x annotations x values x batch sizes x ways in, against the reference."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.differential.harness import Case, compare_case
from tests.differential.harness.strategies import examples

FLAGS = ("", "autocast", "nocast", "frozen", "shadow", "tensor_only")

ANNOTATIONS = (
    *("torch.Tensor", "int", "float", "bool", "str", "dict", "list", "tuple", "np.ndarray", "TensorDict", "D"),
    *("object", "typing.Any", "torch.Tensor | None", "int | None", "D | None", "str | int", "torch.Tensor | float"),
    *("typing.Optional[float]", "typing.List[int]", "typing.Literal['a']", "'torch.Tensor'", "'NotDefined'"),
)

VALUES = {
    "number": ("3", "2.5", "True", "np.float64(2.0)", "np.int32(4)", "torch.tensor(3)", "torch.tensor([1.5])"),
    "text": ("'text'", "'3'", "''", "b'bytes'"),
    "array": ("np.arange(3)", "np.array(['a', 'b', 'c'])", "torch.arange(3)", "torch.zeros(3, 2)"),
    "sequence": ("[1, 2, 3]", "['a', 'b', 'c']", "(1, 2, 3)", "[]", "[[1], [2], [3]]", "[torch.zeros(2)] * 3"),
    "object": ("{'a': 1}", "{1}", "None", "1j", "len", "torch.float32", "range(3)"),
    "collection": ("TD({'x': torch.ones(3)}, [3])", "D(torch.ones(3), n=2, batch_size=[3])", "NonTensorData('q')"),
}

WAYS = {
    "construct": "B({value}, batch_size={batch})",
    "assign": "B(None, batch_size={batch}); c.x = {value}; c",
    "set": "B(None, batch_size={batch}).set('x', {value})",
    "keyword": "B(x={value}, batch_size={batch}, device='cpu')",
}

# Where the reference converts a thing to nonsense, or fails by accident, this project keeps the value or says no.
AUTOCAST_DEPARTS = {
    *("object", "int | None", "typing.Optional[float]"),  # calls object(value); forgets its rule for numbers
    *("D", "dict"),  # makes an instance around any value; dicts whose keys are tensors
}
REFUSED_BY_TENSOR_ONLY = {
    *VALUES["text"],
    *VALUES["object"],
    *("np.array(['a', 'b', 'c'])", "['a', 'b', 'c']", "NonTensorData('q')"),
} - {"None", "{'a': 1}"}


@st.composite
def sources(draw: st.DrawFn, flag: str, group: str) -> str:
    annotation = draw(st.sampled_from(ANNOTATIONS[:1] if flag == "tensor_only" else ANNOTATIONS))
    values = [value for value in VALUES[group] if flag != "tensor_only" or value not in REFUSED_BY_TENSOR_ONLY]
    value = draw(st.sampled_from(values))
    batch = draw(st.sampled_from(("[3]", "[]")))
    if value == "np.array(['a', 'b', 'c'])":
        batch = "[]"  # with three rows it is a column here: a departure
    ways = {"frozen": ("construct", "keyword"), "tensor_only": ("construct", "keyword", "assign")}
    way = draw(st.sampled_from(ways.get(flag, sorted(WAYS))))  # set() of the reference overlooks tensor_only
    if flag == "autocast" and annotation in AUTOCAST_DEPARTS:
        annotation = "typing.Any"
    definition = f"class B(TensorClass{f', {flag}=True' if flag else ''}):\n  x: {annotation}"
    call = WAYS[way].format(value=value, batch=batch)
    making, _, rest = call.partition("; ")
    return f"import typing\nB = define({definition!r})(globals())\nc = {making}\n{rest or 'c'}\n(c.x, c)"


PAIRS = [
    (flag, group)
    for flag in FLAGS
    for group in sorted(VALUES)
    if (flag, group) not in (("autocast", "collection"), ("tensor_only", "text"))
]


@pytest.mark.parametrize(("flag", "group"), PAIRS)
@examples(12)
@given(st.data())
def test_value(flag: str, group: str, data: st.DataObject) -> None:
    source = data.draw(sources(flag, group))
    lines = compare_case(Case("tensorclass values", source, "any error"))
    assert not lines, "\n".join(["", source, *lines])
