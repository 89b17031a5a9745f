"""Out of the library and back: dicts, arrays, pytrees, state dicts, pickles; autograd."""

from tests.differential.harness import parse_cases

CASES = parse_cases(
    "convert",
    r"""
nm[:1, :1].tolist()
td.tolist(convert_tensors="numpy"), td.tolist(convert_nodes=False), td.tolist(tolist_first=True)
td.tolist(convert_tensors=True, tolist_first=True)
td.to_dict(convert_tensors=True), td.to_dict(convert_tensors="numpy")
TD({"a": None, "b": 1}, []).to_dict(), TD({"a": None, "b": 1}, []).to_dict(retain_none=False)
td.to_dict(convert_tensors=True, tolist_first=True)
td.to_namedtuple()._fields
TD.from_pytree([torch.ones(2), {"a": (torch.ones(2), 1)}]).to_pytree()
td.to_lazystack()
td.to_lazystack(1)
nm.to_lazystack(1)
td.as_tensor()
td.data is td
td.detach_() is td
td.float().requires_grad_().requires_grad
td.float().requires_grad_(False).requires_grad
x = td.float().clone().requires_grad_(); x.sum(reduce=True).backward(); x.grad
x = td.float().clone().requires_grad_(); (x * 2).sum().backward(); x.grad["b"]
x = td.float().clone().requires_grad_(); (x * 2).backward(x.data); x.grad["b"]
x = td.float().clone().requires_grad_(); (x * 2).sum().backward(); x.zero_grad(); x.grad
x = td.float().clone().requires_grad_(); (x * 2).sum().backward(); x.zero_grad(set_to_none=False);
    x.grad["b"]
x = td.float().clone().requires_grad_(); x.detach().requires_grad
x = td.float().clone().requires_grad_(); x.data.requires_grad
x = td.float().clone().requires_grad_(); x.zero_()
td.zero_grad() is td
td.state_dict(flatten=False), td.state_dict(prefix="p.").keys(), td.state_dict(keep_vars=True).keys()
x = td.clone().zero_(); x.load_state_dict(td.state_dict())
x = td.clone().zero_(); x.load_state_dict(td.state_dict()) is x
x = td.clone().zero_(); x.load_state_dict(td.state_dict()); x["b"]
x = td.clone().zero_(); x.load_state_dict(td.state_dict(flatten=False)); x["b"]
x = td.empty(); x.load_state_dict(td.state_dict()); x
x = td.clone().zero_(); x.load_state_dict(td.select("a").state_dict())
x = td.clone().zero_(); x.load_state_dict(td.select("a").state_dict(), strict=False)
x = TD({}, []); x.load_state_dict(nm.state_dict(), assign=True); x
pickle.loads(pickle.dumps(td.lock_())).is_locked
copy.copy(td)["n"] is td["n"], copy.copy(td)["a"] is td["a"]
copy.deepcopy(td)["a"] is td["a"]
copy.deepcopy(td.lock_()).is_locked
copy.copy(td.lock_()).is_locked
import io; b = io.BytesIO(); torch.save(td, b); b.seek(0); torch.load(b, weights_only=False)
import io; b = io.BytesIO(); torch.save(td, b); b.seek(0); torch.load(b, weights_only=True)
td.to_tensordict() is td, td.to_tensordict()["a"] is td["a"]
nt.to_tensordict(retain_none=False)
TD({"a": None}, []).to_tensordict(retain_none=False)
td.lock_().to_tensordict().is_locked
# round trips
pickle.loads(pickle.dumps(deep))
copy.deepcopy(deep)
copy.copy(deep)
deep.to_dict()
deep.to_namedtuple()
deep.state_dict()
deep.numpy()
deep.tolist()
deep.to_tensordict()
deep.bytes()
deep.param_count()
deep.depth
TD.from_dict(deep.to_dict(), batch_size=[2])
deep.clone().zero_().load_state_dict(deep.state_dict())
fl.clone().requires_grad_(), fl.clone().requires_grad_().detach(), (fl.clone().requires_grad_() * 2).requires_grad
x = fl.clone().requires_grad_(); (x["a"].sum() + x["n", "c"].sum()).backward(); x.grad
x = fl.clone().requires_grad_(); (x * x).sum(reduce=True).backward(); x.grad
x = fl.clone().requires_grad_(); x.exp().sum().backward(); x.grad["n"]
x = fl.clone().requires_grad_(); x[0].sum(reduce=True).backward(); x.grad["b"]
x = fl.clone().requires_grad_(); torch.stack([x, x]).sum(reduce=True).backward(); x.grad["b"]
x = fl.clone().requires_grad_(); x.reshape(-1).select("b").sum(reduce=True).backward(); x["b"].grad
x = fl.clone().requires_grad_(); torch.autograd.grad(x * 2, x, x.data)
x = torch.ones(2, requires_grad=True) * 2; copy.deepcopy(TD(a=x))["a"]
x = torch.ones(2, requires_grad=True) * 2; copy.deepcopy(lazy_stack([TD(a=x), TD(n=TD(a=x))]))[1]["n", "a"]
copy.deepcopy(C(torch.ones(3, requires_grad=True) * 2, batch_size=[3])).x
x = torch.ones(2, requires_grad=True); copy.deepcopy(TD(a=x * 2))["a"].sum().backward(); x.grad
x = torch.arange(4.0); y = copy.deepcopy(TD(a=x, b=x[:2])); y["a"][0] = 9; y["b"]
x = torch.ones(1).expand(3); copy.deepcopy(TD(a=x))["a"].stride()
x = torch.ones(100, 3); copy.deepcopy(TD(a=x[:2]))["a"].untyped_storage().nbytes()
# one tensor of all leaves
td.tolist(convert_tensors=True, convert_nodes=False)
td.numpy()["a"][0, 0] = 7; td["a"][0]
fl.requires_grad_().numpy()
P = collections.namedtuple("P", "a b n"); x = td.to_namedtuple(P); (type(x).__name__, type(x.n).__name__)
TD({"a b": torch.zeros(1)}).to_namedtuple()
x = TD({"p": c, "l": ds}, [3]).lock_().to_tensordict(); (type(x["p"]), type(x["l"]), x.is_locked)
nt.select("a", "s").to_struct_array()
TD(s=NonTensorStack("ab", "c" * 15), batch_size=[2]).to_struct_array()
x = td.to_lazystack(0); x[1]["a"].zero_(); td["a"][1], x.to_lazystack(0) is x
td.densify() is td
type(TD({"l": ds}, [3]).densify()["l"])
TD.from_pytree([torch.zeros(2, 3), torch.ones(2)], auto_batch_size=True).batch_size
torch.utils._pytree.tree_map(lambda x: x[0], td).batch_size, torch.utils._pytree.tree_map(torch.sum,
    td)["n"].batch_size
torch.utils._pytree.tree_leaves(NonTensorData("x"))
x = torch.utils._pytree.tree_map(lambda x: x + 1, lz); (type(x), x)
x = td.clone().zero_(); v = x["a"]; x.lock_().load_state_dict(td.state_dict()); x["a"] is v
td.exclude("a").load_state_dict(td.state_dict())
td.clone().load_state_dict(td.exclude("a").state_dict())
td.exclude("a").load_state_dict(td.state_dict(), strict=False)
x = TD({"a": torch.zeros(3, 4), "b": torch.zeros(3), "n": {"c": torch.zeros(3, 2)}});
    x.load_state_dict(td.state_dict())
s = td.state_dict(); x = td.clone(); x.load_state_dict(s, assign=True)["a"] is s["a"]
td.state_dict()._metadata["n"]["batch_size"]
TD({"a.b": torch.zeros(1), "a": {"b": torch.zeros(1)}}).state_dict()
x = TD({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}});
    x.clone().zero_().load_state_dict(x.state_dict(flatten=False))
merge_tensordicts(TD(x=1, n=TD(y=1)), TD(x=5, n=TD(y=6, z=7)), callback_exist={("n", "y"): lambda *v: sum(v)})
x = TD(x=1, n=TD(y=1)); merge_tensordicts(x, TD(n=TD(z=7))); x
lib.collate([{"k": torch.zeros(2)}, {"k": torch.ones(2)}]), lib.collate(td) is td
lib.collate([(td, 1), (td, 2)])
lib.collate([(TD(x=torch.ones(n)), n) for n in (1, 2)], pad_keys={"x": 0})
lib.collate([{"d": TD(x=torch.ones(n))} for n in (1, 2)], pad_keys={"x": 0})
lib.collate([td, td], mask_key="m")
lib.collate([td, td], pad_keys={"a": 0}, nested_keys=["a"])
x = TD({"n": TD({"d": [["a", "b"], ["c", "d"]]}, [2])}, [2]); y = x.to_dict(); y["n"]["d"][0][0] = "Z";
    type(y["n"]["d"][0]) is list, x["n", "d"]
x = TD({"a": torch.full((2, 3), 0.1)}, [2]); t = torch.tensor(0.1, dtype=torch.float64);
    ((x == t).all(), (x < t).any())
x = nt.clone(); x.set("s", "other"); x.load_state_dict(nt.state_dict(flatten=False))
x = nt.clone(); x.set("s", "other"); x.load_state_dict(nt.state_dict())
td.to_namedtuple(dest_cls=collections.namedtuple("Two", "a b"))
td.select("a", "n").to_namedtuple(dest_cls=collections.namedtuple("Two", "a n"))
c.to_namedtuple(dest_cls=collections.namedtuple("Two", "x t"))
x = td.lock_(); (x.expand_as(x).is_locked, x.expand_as(x)["n"].is_locked, x.expand_as(torch.zeros(2, 3)).is_locked)
Auto(torch.ones(3), batch_size=[3]).set_non_tensor("n", torch.ones(2)).get("n").tolist()
""",
)
