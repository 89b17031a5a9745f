"""Out of the library and back: dicts, arrays, pytrees, state dicts, pickles; autograd."""

from __future__ import annotations

from tests.differential.harness import parse_cases

CASES = parse_cases(
    "convert",
    r"""
td.numpy()
nt.numpy()
td.tolist()
nt.tolist()
nm[:1, :1].tolist()
td.tolist(convert_tensors=True)
td.tolist(convert_tensors="numpy")
td.tolist(convert_nodes=False)
td.tolist(tolist_first=True)
td.tolist(convert_tensors=True, tolist_first=True)
td.to_dict()
nt.to_dict()
td.to_dict(convert_tensors=True)
td.to_dict(convert_tensors="numpy")
TD({"a": None, "b": 1}, []).to_dict()
TD({"a": None, "b": 1}, []).to_dict(retain_none=False)
td.to_dict(convert_tensors=True, tolist_first=True)
td.to_namedtuple()
td.to_namedtuple()._fields
nt.to_namedtuple()
td.to_pytree()
TD.from_pytree([torch.ones(2), {"a": (torch.ones(2), 1)}]).to_pytree()
td.to_lazystack()
td.to_lazystack(1)
nm.to_lazystack(1)
td.densify()
lz.densify()  #! may work
td.as_tensor()
td.data
td.data is td
td.grad
td.detach()
td.detach_() is td
td.requires_grad
td.float().requires_grad_().requires_grad
td.requires_grad_()
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
td.state_dict()
td.state_dict(flatten=False)
td.state_dict(prefix="p.").keys()
td.state_dict(keep_vars=True).keys()
nt.state_dict()
x = td.clone().zero_(); x.load_state_dict(td.state_dict())
x = td.clone().zero_(); x.load_state_dict(td.state_dict()) is x
x = td.clone().zero_(); x.load_state_dict(td.state_dict()); x["b"]
x = td.clone().zero_(); x.load_state_dict(td.state_dict(flatten=False)); x["b"]
x = td.empty(); x.load_state_dict(td.state_dict()); x
x = td.clone().zero_(); x.load_state_dict(td.select("a").state_dict())
x = td.clone().zero_(); x.load_state_dict(td.select("a").state_dict(), strict=False)
x = TD({}, []); x.load_state_dict(nm.state_dict(), assign=True); x
pickle.loads(pickle.dumps(td))
pickle.loads(pickle.dumps(td.lock_())).is_locked
pickle.loads(pickle.dumps(nt))
copy.copy(td)
copy.copy(td)["n"] is td["n"]
copy.copy(td)["a"] is td["a"]
copy.deepcopy(td)["a"] is td["a"]
copy.deepcopy(td.lock_()).is_locked
copy.copy(td.lock_()).is_locked
import io; b = io.BytesIO(); torch.save(td, b); b.seek(0); torch.load(b, weights_only=False)
import io; b = io.BytesIO(); torch.save(td, b); b.seek(0); torch.load(b, weights_only=True)
td.to_tensordict() is td
td.to_tensordict()
td.to_tensordict()["a"] is td["a"]
nt.to_tensordict()
nt.to_tensordict(retain_none=False)
TD({"a": None}, []).to_tensordict(retain_none=False)
td.lock_().to_tensordict().is_locked
ds.to_tensordict()
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
fl.clone().requires_grad_()
fl.clone().requires_grad_().detach()
(fl.clone().requires_grad_() * 2).requires_grad
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
""",
)
