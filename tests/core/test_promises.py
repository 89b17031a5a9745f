"""What holds here and is not asked of the reference, one line of Python each, which is true.

The names are those of the differential cases; where both libraries agree, a line stands there instead.
"""

import pytest

from tests.differential.harness import Case, evaluate, parse_cases
from tests.differential.harness.namespace import PROJECT
from tests.differential.harness.snapshot import Leaf

PROMISES = parse_cases(
    "promise",
    r"""
# conversions and copies
x = torch.ones(3); alone, pair = copy.deepcopy([x, TD(a=x)]); pair["a"] is alone
x = torch.ones(3); y = copy.deepcopy(TD(a=x, n=TD(b=x))); y["a"] is y["n", "b"] and y["a"] is not x
x = TD.from_pytree({"a": [torch.zeros(2), (1, "s")], 3: {"k": []}}).to_pytree();
    x["a"][1][1] == "s" and type(x["a"][1]) is tuple and x[3] == {"k": []}
P = collections.namedtuple("P", "a b"); x = TD.from_pytree({"p": P(torch.ones(2), None)}).to_pytree();
    type(x["p"]) is P and x["p"].b is None
torch.utils._pytree.tree_map(lambda x: x[None], nm).names == [None, "x", "y"]
torch.utils._pytree.tree_map(lambda x: x[0], nm).names == ["y"]
a = np.array([("Rex", 9), ("Fido", 3)], dtype=[("name", "U10"), ("age", "i4")]); x = TD.from_struct_array(a);
    a["age"] += 1; x["age"].tolist() == [10, 4] and (x.to_struct_array() == a).all()
x = torch.zeros(6, requires_grad=True); y = TD(a=x, b=x); x.sum().backward(); y.bytes(count_duplicates=False) == 48
x = TD({"t": torch.rand(1, 3).as_strided((1, 3), (7, 1))}, [1]);
    x.contiguous()["t"] is x["t"] and x.contiguous(canonical=True)["t"].stride() == (3, 1)
x = TD({"t": torch.rand(2, 3).t()}, [3]); x.contiguous(inplace=True) is x and x["t"].is_contiguous()
# arithmetic and reductions
torch.equal((2 ** fl)["a"], 2 ** fl["a"]) and torch.equal((torch.tensor([2.0, 0.5, 3.0]) ** fl)["b"],
    torch.tensor([2.0, 0.5, 3.0]) ** fl["b"])
x, y = TD(a=torch.ones(2), n=TD(b=torch.ones(2))), TD(a=torch.ones(2), n=TD(z=torch.full((2,), 5.0)));
    z = x.sub(y, default=0.0); z["n", "b"].tolist() == [1, 1] and z["n", "z"].tolist() == [-5, -5]
x = td.copy_at_(td[[0, 0]], torch.tensor([1, 0])); torch.equal(x["a"][0], x["a"][1])
x = nm.quantile(torch.tensor([0.1, 0.5, 0.9]), (0, 1), keepdim=True); x["a"].shape == (3, 1, 1, 4)
x = TD({"a": torch.ones(2), "u": UnbatchedTensor(torch.zeros(4, 5))}, [2]);
    (x >= torch.tensor(1))["u"].shape == (4, 5)
# names of dimensions
x = lazy_stack(list(td.unbind(0))); x.update({"x": TD({}, [3, 4], names=["a", "b"])}); x.names == x["n"].names == ["a"]
x = TD({"a": torch.ones(2, 4), "b": TD({"c": torch.ones(2, 1, 4)}, [2, 1]), "s": "w"}, [2]);
    y = x.expand_as(TD({"b": TD({}, [3, 2, 5])}, [3, 2])); y["b", "c"].shape == (3, 2, 5, 4) and y["s"] == "w"
TD({"a": torch.ones(2), "n": TD({}, [2])}, [2]).expand_as(TD({}, [3, 2]))["n"].batch_size == (3, 2)
# lazy stacks
lz.tensordicts.append(TD()); (len(lz), lz.batch_size) == (3, (3, 2))
x = TD({}, [3]); x[1] = TD({"x": lazy_stack([TD(a=torch.ones(1)), TD(a=torch.ones(2))])});
    x["x"].batch_size == (3, 2) and [v.tolist() for v in x[0]["x"].get("a", as_list=True)] == [[0], [0, 0]]
lazy_stack([TD(a=torch.ones(2, 3)), TD(a=torch.ones(4, 5))]).get("a", as_nested_tensor=True).layout is torch.strided
x = TD({"l": lz}, [3]); x.get(("l", "a", "c"), 0) == x.pop(("l", "a", "c"), 0) == 0
x = TD({"l": lz}, [3]); ("l", "a") in x and ("l", "k0") not in x and ("l", "a", "c") not in x.keys(True)
x = TD({"x": ds}, [3]); x["x", "p", "q"] = torch.ones(3, 2); ds[1]["p", "q"].tolist() == [1, 1]
x = TD({"x": ds}, [3]); x.create_nested(("x", "r", "s")); ("r", "s") in ds[0].keys(True)
lazy_stack([c.clone(), c.set("y", torch.ones(3))]).y is None
x = lazy_stack([TD({"a": torch.ones(3, n)}, [3]) for n in (1, 2)]).pad([1, 0, 1, 0], 5);
    x.batch_size == (3, 4) and (x[0]["a"] == 5).all() and x.tensordicts[2]["a"].tolist() == [[5, 5]] + [[1, 1]] * 3
# writing in place
x = TD({"n": C(torch.zeros(2, 3), torch.zeros(2), batch_size=[2])}, [2]);
    x.update({"n": lazy_stack([C(torch.ones(3)), C(torch.ones(4))])}); y = x["n"].unbind(0);
    type(y[0]) is C and y[0].y == 0 and y[1].x.tolist() == [1] * 4
x = TD({"n": {"c": torch.zeros(2, 3), "e": torch.zeros(2)}}, [2]).lock_(); n, v = x["n"], x["n", "c"];
    x.update({"n": lazy_stack([TD(c=torch.ones(3)), TD(c=torch.ones(3) * 2)])}, inplace=True);
    x["n"] is n and x["n", "c"] is v and v.tolist() == [[1] * 3, [2] * 3]
td.set_at_("a", np.ones(4, dtype=np.int32), torch.tensor([0, 2])); td["a"].sum() == 8 + 22
td.update_at_({"a": np.ones(4)}, 1); td["a"][1].tolist() == [1] * 4
x = TD({}, [2]).set_non_tensor("i", 3).set_non_tensor("d", {"k": 1}).lock_();
    x.set_("i", 4)["i"] == 4 and x.set_("d", {"k": 2})["d"] == {"k": 2}
# objects
x = TD({"x": "a"}, [2]).lock_(); x[0] = TD({"x": "b"}); x["x"] == ["b", "a"] and x.get("x").is_locked
x = TD({"x": ["c", "b", "a"]}, [3]); y = x["x"]; y.sort(); y[0] = "changed"; x["x"] == ["c", "b", "a"]
x = NonTensorData(np.ones(3)) == NonTensorData(np.ones(3)); x.shape == () and bool(x)
x = TD().set_non_tensor("x", {"k": [1]}); y, z = x.clone(), x.clone(False); x["x"]["k"].append(2);
    (y["x"], z["x"]) == ({"k": [1]}, {"k": [1, 2]})
x = TD({"l": NonTensorStack(NonTensorData(["a"]), NonTensorData(["b", "c"]))}, [2]); x.set_("l", ["x"]);
    x["l"] == [["x"]] * 2
x = TD({"x": "a"}, [2]).lock_(); x.set_("x", ["b", "c"]); x["x"] == ["b", "c"]
[MetaData[t](v).data for t, v in ((list[int], [1]), (int | None, None))] == [[1], None]
x = TD({"m": MetaData("x")}, [2, 1]); x[0] = TD({"m": MetaData("y")}, [1]); x.get("m").tolist() == [["y"], ["x"]]
x = TD({"m": MetaData("x")}, [2]); x.update_at_({"m": MetaData("y")}, 0); x.get("m").tolist() == ["y", "x"]
# in place
td.lock_().__enter__(); td.__exit__(None, None, None); td.__enter__(); td.__exit__(None, None, None); not td.is_locked
td.lock_().unlock_().__enter__(); td.__exit__(None, None, None); td.__enter__(); td.__exit__(None, None, None);
    td.is_locked
p = Params(TD({"a": torch.ones(3), "n": {"b": torch.ones(3)}, "i": torch.arange(3)}, [3])).requires_grad_(False);
    p.repeat(2, inplace=True); [(k, v.requires_grad) for k, v in p.named_parameters()] == [("a", False),
    ("n.b", False)] and [k for k, _ in p.named_buffers()] == ["i"]
x = nn.Parameter(torch.ones(3)); p = Params(TD({"a": x, "b": x}, [3])).reshape(3, 1, inplace=True); p["a"] is p["b"]
m = list(ds.tensordicts); ds.roll(1, 0, inplace=True); all(any(x is y for y in ds.tensordicts) for x in m)
x, y = TD(a=torch.zeros(2)), TD(a=torch.ones(2)); z = lazy_stack([x, y, x]).roll(1, 0, inplace=True);
    z["a"][:, 0].tolist() == [0, 0, 1]
n = nm["n"].lock_(); nm.reshape(-1, inplace=True); nm["n"] is not n and n.batch_size == (2, 3, 5)
# unbatched tensors
x = TD({"a": torch.zeros(3, 5), "u": UnbatchedTensor(torch.ones(7))}, [3]); x.batch_size = [3, 5];
    x["u"].batch_size == (3, 5)
w = torch.ones(7, requires_grad=True); TD({"u": UnbatchedTensor(w)}, [3])[0]["u"].sum().backward(); w.grad.sum() == 7
""",
)


@pytest.mark.parametrize("case", PROMISES, ids=lambda case: case.source)
def test_holds(case: Case) -> None:
    outcome = evaluate(case, PROJECT)
    assert outcome.error is None, repr(outcome.error)
    assert outcome.value.value if isinstance(outcome.value, Leaf) else outcome.value
