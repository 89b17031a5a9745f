"""Stacks whose members differ in keys, shapes and batch sizes: every operation, against the reference."""

import pytest

from tests.differential.harness import Case, compare_case

MEMBERS = {
    "keys and shapes": 'TD({{"a": torch.arange(3) + {k}, "b": torch.ones(3, {k} + 1), "k{k}": torch.zeros(3)}}, [3])',
    "lengths": 'TD({{"a": torch.arange({k} + 1), "n": {{"v": torch.ones({k} + 1, 2)}}}}, [{k} + 1])',
    "nested": 'TD({{"n": {{"a": torch.ones(3, {k} + 1), "s": "text {k}"}}, "t": "same"}}, [3])',
    "texts": 'TD({{"a": torch.arange(3), "s": "one", "l": ["p", "q", "{k}"]}}, [3])',
}

ROWS = """
list(x.keys())
list(x.keys(True))
list(x.keys(True, True))
("a" in x.keys(), "k0" in x.keys(), "b" in x)
(x.batch_size, x.stack_dim, len(x), x.names, x.device)
x.get("a")
x.get("b")
x.get("a", as_list=True)
x.get("b", as_list=True)
x.get("k0")
x.get("k0", 5)
x.get(("n", "a"), as_list=True)
x.get("b", as_padded_tensor=True)
x.get("b", as_padded_tensor=True, padding_value=-1.0)
x["s"]
x["l"]
x["n", "s"]
x["t"]
x[0]
x[-1]
x[:2]
x[[1, 0]]
x[torch.tensor([True, False, True])]
x[torch.tensor([2, 2, 0])]
x[7]
x[1]["n"]
x.clone()
x.clone(False)
x.select("a")
x.exclude("a")
x.select("k0", strict=False)
x + 1
x * x
x == x
x.apply(lambda leaf: leaf + 1)
x.apply(lambda leaf: None if leaf.ndim > 1 else leaf)
x.named_apply(lambda name, leaf: leaf * 2 if name == "a" else leaf)
x.unbind(0)
x.split(1)
x.unsqueeze(0)
x.permute(*range(x.ndim))
x.insert(1, x[0].clone()); x
x.append(x[0].clone()); x
x.pop("a"); x
x.rename_key_("a", "z"); x
x.rename_key_("k0", "z"); x
del x["a"]; x
del x["k1"]; x
x["z"] = "word"; x
x.set("z", [m["a"] for m in x.tensordicts]); x
x.update(x.clone() * 0); x
x.update_(x.clone() * 0); x
x.set_("k0", x.get("a")); x
x.fill_("a", 7); x
x.zero_()
x.lock_(); x.set_("a", x.get("a") * 0); x
x.lock_(); x["a"] = x.get("a")
x.lock_(); (x.is_locked, x[0].is_locked, x[:1].is_locked, x.clone().is_locked)
x.contiguous()
x.to(torch.float64)
x.is_empty()
x.numel()
pickle.loads(pickle.dumps(x))
copy.deepcopy(x)
torch.stack([x, x.clone()])
torch.cat([x, x.clone()], 0)
maybe_dense_stack(x.tensordicts)
TD({"x": x}, [3])
TD({"x": x}, [3])[1]
TD({"x": x}, [3])[[2, 0]]
TD({"x": x}, [3])["x", "a"]
""".strip().splitlines()


def _source(kind: str, order: list[int]) -> str:
    return ", ".join(MEMBERS[kind].format(k=k) for k in order)


# Where this project answers and the reference refuses, or gives a value of batch size -1.
MAY_WORK = {'x.fill_("a", 7); x'}
BETTER = {("lengths", 'x["z"] = "word"; x')}


@pytest.mark.parametrize(
    ("kind", "dim"), [(kind, 0) for kind in MEMBERS] + [(k, -1) for k in MEMBERS if k != "lengths"]
)
def test_ragged_stacks_answer_as_the_reference(kind: str, dim: int) -> None:
    wrong = []
    for row in ROWS:
        if (kind, row) not in BETTER:
            source = f"x = lazy_stack([{_source(kind, [1, 0, 2])}], {dim}); {row}"
            lines = compare_case(Case("ragged", source, "may work" if row in MAY_WORK else None))
            wrong += [source, *lines] if lines else []
    assert not wrong, "\n".join(wrong)
