"""Random tensorclasses (flags, fields, defaults) and lazy stacks through every operation, against the reference."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.differential.harness import Case, compare_case
from tests.differential.harness.strategies import dims, examples, indices, leaf_source

FLAGS = ("", "autocast=True", "nocast=True", "frozen=True", "tensor_only=True", "shadow=True")
HEADS = ("@tensorclass({flags})\nclass B:", "class B(TensorClass, {flags}):", "class B(TensorClass[{quoted}]):")

#: annotation, then the values that a user may give it; {b} is the batch size
FIELDS = {
    "torch.Tensor": ("torch.ones({b})", "torch.zeros({b} + (2,))", "torch.ones({b}).int()", "None"),
    "str": ("'text'", "'other'"),
    "int": ("3", "4"),
    "float": ("2.5", "3"),
    "torch.Tensor | None": ("None", "torch.ones({b})"),
    "str | None": ("None", "'text'"),
    "dict": ("{{'k': 1}}",),
    "TensorDict": ("TD({{'u': torch.ones({b})}}, {b})",),
    "D": ("D(torch.ones({b}), n=2, batch_size={b})",),
}

OPERATIONS = {
    "repr": lambda d, b: "repr(x)",
    "fields": lambda d, b: "[getattr(x, f.name) for f in dataclasses.fields(x)]",
    "get": lambda d, b: "[x.get(f.name) for f in dataclasses.fields(x)]",
    "index": lambda d, b: f"x[{d(indices(b))}]",
    "index fields": lambda d, b: "[getattr(x[0], f.name) for f in dataclasses.fields(x)]",
    "stack": lambda d, b: f"torch.stack([x, x], {d(dims(len(b)))})",
    "cat": lambda d, b: "torch.cat([x, x], 0)",
    "unbind": lambda d, b: "x.unbind(0)",
    "split": lambda d, b: "x.split(1)",
    "reshape": lambda d, b: "x.reshape(-1)",
    "unsqueeze": lambda d, b: "x.unsqueeze(0)",
    "clone": lambda d, b: "x.clone()",
    "add": lambda d, b: "x + 1",
    "apply": lambda d, b: "x.apply(lambda leaf: leaf.clone())",
    "equal": lambda d, b: "x == x",
    "to_dict": lambda d, b: "x.to_dict()",
    "to_tensordict": lambda d, b: "(x.to_tensordict(), x.to_tensordict(retain_none=True))",
    "from_tensordict": lambda d, b: "type(x).from_tensordict(x.to_tensordict()).to_tensordict()",
    "keys": lambda d, b: "(set(x.keys()), set(x.keys(True, True)))",
    "lock": lambda d, b: "x.lock_().is_locked",
    "to": lambda d, b: "x.to(torch.float64)",
    "state_dict": lambda d, b: "x.state_dict()",
    "copy": lambda d, b: "(copy.copy(x), copy.deepcopy(x))",
    "in a tree": lambda d, b: f"y = TD({{'x': x}}, {b}); (y['x'], y.clone(), set(y.keys(True)), y[0])",
    "lazy": lambda d, b: "lazy_stack([x, x]).batch_size",
    "sum": lambda d, b: "x.sum(0)",
    "set": lambda d, b: "x.set('f0', torch.zeros({b})); x".replace("{b}", str(b)),
    "assign": lambda d, b: f"x.f0 = torch.zeros({b}); x.f0",
    "assign row": lambda d, b: "x[0] = x[0].clone(); x",
    "absent": lambda d, b: "x.not_a_field",
    "assign absent": lambda d, b: "x.not_a_field = 1",
}


@st.composite
def instances(draw: st.DrawFn) -> tuple[str, tuple[int, ...]]:
    """The source of a tensorclass definition and of an instance of it, and the batch size."""
    batch = draw(st.sampled_from([(2,), (3,), (2, 3), (1,)]))
    flags = draw(st.sampled_from(FLAGS))
    head = draw(st.sampled_from(HEADS if flags else HEADS[:1]))
    lines, values = [], []
    kinds = draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=3))
    for number, kind in enumerate(["torch.Tensor", *kinds]):
        choices = FIELDS[kind][:3] if number == 0 else FIELDS[kind]
        value = draw(st.sampled_from(choices)).format(b=batch)
        if number and draw(st.booleans()) and kind not in ("dict", "TensorDict", "D"):
            lines.append(f"  f{number}: {kind} = {'None' if kind.endswith('None') else value}")
            if draw(st.booleans()):
                values.append(f"f{number}={value}")
        else:
            lines.append(f"  f{number}: {kind}")
            values.append(f"f{number}={value}")
    lines.sort(key=lambda line: " = " in line)
    quoted = repr(flags.partition("=")[0])
    definition = "\n".join([head.format(flags=flags, quoted=quoted), *lines])
    return f"x = define({definition!r})(globals())({', '.join(values)}, batch_size={batch})", batch


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
@examples(12)
@given(instances(), st.data())
def test_tensorclass(operation: str, instance: tuple[str, tuple[int, ...]], data: st.DataObject) -> None:
    source, batch = instance
    _check(f"{source}; {OPERATIONS[operation](data.draw, batch)}")


LAZY = {
    "index": lambda d, b: f"x[{d(indices(b))}]",
    "assign": lambda d, b: f"x[{d(indices(b))}] = 0; x",
    "get": lambda d, b: "[x.get(key) for key in x.keys()]",
    "as list": lambda d, b: "[x.get(key, as_list=True) for key in ('a', 'b')]",
    "padded": lambda d, b: "x.get('a', as_padded_tensor=True)",
    "keys": lambda d, b: "(list(x.keys()), list(x.keys(True, True)), 'a' in x, x.batch_size, x.stack_dim)",
    "unbind": lambda d, b: f"x.unbind({d(dims(len(b)))})",
    "clone": lambda d, b: "x.clone()",
    "add": lambda d, b: "x + 1",
    "add itself": lambda d, b: "x + x",
    "equal": lambda d, b: "x == x",
    "apply": lambda d, b: "x.apply(lambda leaf: leaf * 2)",
    "permute": lambda d, b: f"x.permute({list(d(st.permutations(range(len(b)))))})",
    "unsqueeze": lambda d, b: f"x.unsqueeze({d(dims(len(b)))})",
    "reshape": lambda d, b: "x.reshape(-1)",
    "split": lambda d, b: f"x.split(1, {d(dims(len(b)))})",
    "stack": lambda d, b: "torch.stack([x, x], 0)",
    "cat": lambda d, b: "torch.cat([x, x], 0)",
    "contiguous": lambda d, b: "x.contiguous()",
    "select": lambda d, b: "(x.select('b'), x.exclude('b'))",
    "set": lambda d, b: f"x['z'] = torch.ones({b}); x",
    "update": lambda d, b: "x.update(x.clone().zero_())",
    "pop": lambda d, b: "x.pop('b'); x",
    "append": lambda d, b: "x.append(x[0].clone()); x",
    "insert": lambda d, b: "x.insert(0, x[0].clone()); x",
    "lock": lambda d, b: "x.lock_(); (x.is_locked, x.unbind(x.stack_dim)[0].is_locked)",
    "cast": lambda d, b: "x.to(torch.float64)",
    "pickle": lambda d, b: "pickle.loads(pickle.dumps(x))",
    "repr": lambda d, b: "repr(x)",
    "zeros_like": lambda d, b: "torch.zeros_like(x)",
    "sum": lambda d, b: "x.sum(0)",
    "names": lambda d, b: "x.names",
    "tolist": lambda d, b: "x.tolist(convert_tensors=True)",
}


@st.composite
def lazy_stacks(draw: st.DrawFn) -> tuple[str, tuple[int, ...]]:
    """A lazy stack whose items share 'b', may differ in the shape of 'a', and may each own a key."""
    batch = draw(st.sampled_from([(), (2,), (2, 3)]))
    count, where = draw(st.integers(1, 3)), draw(st.integers(0, len(batch)))
    ragged, owners = draw(st.booleans()), draw(st.booleans())
    items = []
    for i in range(count):
        width = (i + 1,) if ragged else (2,)
        entries = [f"'a': {leaf_source((*batch, *width), 'float32', i)}", f"'b': {leaf_source(batch, 'float64', i)}"]
        if owners:
            entries.append(f"'own{i}': torch.ones({batch})")
        items.append(f"TD({{{', '.join(entries)}}}, {batch})")
    full = batch[:where] + (count,) + batch[where:]
    return f"x = lazy_stack([{', '.join(items)}], {where})", full


@pytest.mark.parametrize("operation", sorted(LAZY))
@examples(12)
@given(lazy_stacks(), st.data())
def test_lazy_stack(operation: str, stack: tuple[str, tuple[int, ...]], data: st.DataObject) -> None:
    source, batch = stack
    _check(f"{source}; {LAZY[operation](data.draw, batch)}")


def _check(source: str) -> None:
    lines = compare_case(Case("random", source, "any error"))
    assert not lines, "\n".join(["", source, *lines])
