"""What programs of a week came upon: text beside numbers, nested tensors, parameters that move, rows of odd keys."""

from tests.differential.harness import parse_cases

CASES = parse_cases(
    "unusual",
    r"""
TD(x=torch.ones(3), s="p", batch_size=[3]).where(Mask, 0)["s"]
TD(x=torch.ones(3), s="p", batch_size=[3]).where(Mask, torch.zeros(3))["s"]
torch.where(Mask, TD(x=torch.ones(3), s="p", batch_size=[3]), 0)["s"]
TD(x=torch.ones(3), s=NonTensorStack("a", "b", "c"), batch_size=[3]).where(Mask, 0)["s"]
TD(x=torch.ones(3), s="m", batch_size=[3]).where(Mask, TD(x=torch.zeros(3), batch_size=[3]))
TD(x=torch.ones(3), batch_size=[3]).where(Mask, TD(x=torch.zeros(3), s="m", batch_size=[3]))["s"]
TD(x=torch.ones(3), s="m", batch_size=[3]).where(Mask, TD(x=torch.zeros(3), batch_size=[3]), pad=0)["s"]
TD(x=torch.ones(3), s="m", batch_size=[3]).where(Mask, TD(x=torch.zeros(3), s="q", batch_size=[3]))["s"]
TD(n=TD(s="m", x=torch.ones(3), batch_size=[3]), batch_size=[3]).where(Mask, 0)["n", "s"]
TD(x=torch.ones(3), batch_size=[3]).where(Mask, TD(y=torch.zeros(3), batch_size=[3]))
td.get_at("a", [[0, 1], [1, 1]]), td.get_at("a", [0, 1]), td.get_at("a", [True, False, True])
td.set_at_("a", 1.0, [[0, 1], [1, 1]]); td["a"]
td.set_at_("a", 1.0, [0, 1]); td["a"]
td.set_at_("a", 1.0, [True, False, True]); td["a"]
lz.get_at("a", [[0, 1], [1, 1]])
TD(shape=torch.zeros(4, 5).shape)["shape"]
TD(p=collections.namedtuple("Pt", "a b")(torch.ones(2), torch.zeros(2)))["p"]
TD(p=collections.namedtuple("Pt", "a b")(1, 2))["p"]
TD(a=1, x=NonTensorData(None)).tolist(), TD(x=NonTensorData(None), y=1).tolist()
TD(s=NonTensorStack("x", None), batch_size=[2]).tolist()
TD(x=NonTensorData(None)).numpy()
pad_sequence([TD(q=torch.ones(2, 3)), TD(q=torch.ones(2, 4))], pad_dim=1, return_mask=True)
pad_sequence([TD(q=torch.ones(2, 3, 2)), TD(q=torch.ones(2, 4, 2))], pad_dim=1, return_mask=True)["masks", "q"]
pad_sequence([TD(q=torch.ones(2, 3)), TD(q=torch.ones(2, 4))], pad_dim=-1, return_mask=True)["masks", "q"]
pad_sequence([TD(x=torch.ones(3), y=torch.ones(3)), TD(x=torch.ones(3), z=torch.ones(3))])
torch.vmap(lambda p, x: x @ p["w"] + p["b"], (0, None))(
    TD(w=torch.ones(4, 2, 3), b=torch.zeros(4, 3)), torch.ones(5, 2))
torch.vmap(lambda p: p["w"] * 2, 1)(TD(w=torch.arange(12.0).view(3, 4), batch_size=[3]))
torch.vmap(lambda p: p + 1, 0)(TD(w=torch.ones(4, 2), b=torch.zeros(4, 3)))
repr(lazy_stack([TD(a=1), TD(a="x")])) is not None, repr(lazy_stack([TD(a=1), TD(a=TD(b=1))])) is not None
[x.tolist() for x in copy.deepcopy(TD(a=torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])))["a"].unbind()]
x = TD(a=torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])); [y.tolist() for y in x.zero_()["a"].unbind()]
TD(a=torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])).auto_batch_size_().batch_size
TD(a=torch.ones(2, 3), b=torch.zeros(2, 3), batch_size=[2, 3]).amax(dim="feature", reduce=True)
TD(a=torch.ones(2, 3), b=torch.zeros(2, 3), batch_size=[2, 3]).amin(dim="feature", reduce=True)
TD(a=torch.ones(2, 3), b=torch.zeros(2, 3), batch_size=[2, 3]).max(dim="feature", reduce=True)[0]
list(TD({("n", "b"): 1, "a": 2}).keys()), list(TD.from_dict({("n", "b"): 1, "a": 2}).keys())
TD.from_dict([("a", 1)])
Params(TD(a=torch.ones(2))).requires_grad_(False).to(torch.float64)["a"].requires_grad
[n for n, _ in Params(TD(a=torch.ones(2), b=nn.Buffer(torch.ones(2)))).to(torch.float64).named_parameters()]
x = TD.from_modules(nn.Linear(1, 1), nn.Linear(1, 1), as_module=True).to(torch.float64);
    [(n, p.is_leaf, p.requires_grad, p.dtype) for n, p in x.named_parameters()]
x = TD.from_modules(nn.Linear(1, 1), nn.Linear(1, 1), as_module=True).to("meta");
    [(n, p.is_leaf, p.device) for n, p in x.named_parameters()]
x = TD.from_module(nn.BatchNorm1d(2), as_module=True).double();
    sorted(n for n, _ in x.named_parameters()), sorted(n for n, _ in x.named_buffers())
lazy_stack([TD(t=torch.ones(n), s=f"t{n}", batch_size=[n]) for n in (2, 3)])["s"]
lazy_stack([TD(t=torch.ones(n), s=f"t{n}", batch_size=[n]) for n in (2, 3)]).get("s").tolist()
lazy_stack([TD(n=TD(s=f"t{n}", batch_size=[n]), batch_size=[n]) for n in (2, 3)])["n", "s"]
lazy_stack([TD(s="a", batch_size=[2, n]) for n in (2, 3)])["s"]
lazy_stack([TD(s="a", batch_size=[2, n]) for n in (2, 3)], 1)["s"]
lazy_stack([TD(t=torch.ones(n), s="a", batch_size=[n]) for n in (2, 3)]).densify(layout=torch.jagged)["s"]
NonTensorStack(NonTensorData("a", batch_size=[2]), NonTensorData("b", batch_size=[3])).tolist()
x = TD(s=["a", "b"], batch_size=[2]); y = x.to_dict(); y["s"][0] = "Z"; type(y["s"]) is list, x
x = TD(s=["a", "b"], batch_size=[2]); y = x.numpy(); y["s"][0] = "Z"; type(y["s"]) is list, x
x = TD(s=["a", "b"], batch_size=[2]); y = x.to_namedtuple(); y.s[0] = "Z"; type(y.s) is list, x
x = lazy_stack([TD(t=torch.ones(n), batch_size=[n]) for n in (2, 3)]); x.set("q", ["x", "y"]); x[0]["q"], x[1]["q"]
x = lazy_stack([TD(t=torch.ones(n), batch_size=[n]) for n in (2, 3)]); x["q"] = [["a", "b"], ["c", "d", "e"]]; x["q"]
x = lazy_stack([TD(s=f"t{n}", batch_size=[n]) for n in (2, 3)]); x["s"] = x["s"]; x["s"]
x = lazy_stack([TD(t=torch.ones(3), batch_size=[3]) for n in (2, 3)]); x["q"] = ["x", "y"]; x[0]["q"], x[1]["q"]
TD(x=torch.ones(3), n=TD(s="m", batch_size=[3]), batch_size=[3]).where(Mask, TD(x=torch.zeros(3), batch_size=[3]))
""",
)
