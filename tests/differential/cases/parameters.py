"""Functional parameters and torch.func: `mods` is the library's `nn`, `nn` is torch's."""

from tests.differential.harness import parse_cases

CASES = parse_cases(
    "parameters",
    r"""
TD.from_module(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.BatchNorm1d(3)))
TD.from_module(nn.Sequential(nn.ReLU(), nn.Linear(1, 1)), filter_empty=False)
TD.from_module(nn.Linear(1, 1, bias=False), lock=True)
TD.from_module(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), use_state_dict=True)
lib.from_module(nn.Linear(1, 1)).is_locked
TD.from_module(nn.Linear(1, 2), as_module=True)
TD.from_modules(nn.Linear(1, 2), nn.Linear(1, 2))
TD.from_modules(nn.BatchNorm1d(2), nn.BatchNorm1d(2), as_module=True)
TD.from_modules(nn.Linear(1, 2), nn.Linear(1, 2), lazy_stack=True)
TD.from_modules(nn.Linear(2, 2), nn.Linear(3, 2), lazy_stack=True)[1]["weight"].shape
TD.from_modules(nn.Linear(1, 2), nn.Linear(1, 2), lazy_stack=True, as_module=True)
TD.from_modules(nn.LazyLinear(2), nn.LazyLinear(2), lazy_stack=True)
TD.from_modules(nn.Linear(1, 2), nn.Linear(1, 3))
TD.from_modules(nn.Linear(1, 2), nn.ReLU())
str(TD.from_modules(nn.LazyLinear(2), nn.LazyLinear(2))), str(TD.from_module(nn.LazyLinear(2)))
m = nn.Linear(2, 2); w = torch.zeros(2, 2); s = TD({"weight": w}).to_module(m);
    (m.weight, m.bias is TD.from_module(m)["bias"], sorted(m.state_dict()), s)
m = nn.Linear(2, 2); w = torch.zeros(2, 2); s = TD({"weight": w}).to_module(m, preserve_module_state=False);
    (m.weight is w, list(m.state_dict()), [k for k, _ in m.named_parameters()], s.to_module(m), sorted(k for k,
    _ in m.named_parameters()))
m = nn.Linear(2, 2); (TD({"weight": torch.zeros(2, 2)}).to_module(m, inplace=True).data, m.weight)
m = nn.BatchNorm1d(2); TD({"running_mean": nn.Parameter(torch.ones(2))}).to_module(m);
    (m.running_mean.requires_grad, type(m.running_mean), sorted(k for k, _ in m.named_buffers()))
m = nn.BatchNorm1d(2); TD({"running_mean": nn.Parameter(torch.ones(2))}).to_module(m, preserve_module_state=False);
    (type(m.running_mean), [k for k, _ in m.named_buffers()], [k for k, _ in m.named_parameters()])
m = nn.Linear(2, 2); TD({"nope": torch.zeros(2)}).to_module(m)
m = nn.Linear(2, 2); TD({"nope": {"a": torch.zeros(2)}}).to_module(m)
m = nn.Linear(2, 2); TD({"weight": torch.zeros(2, 2)}).to_module(m, return_swap=False)
m = nn.Linear(2, 2); g = TD(); (TD({"weight": torch.zeros(2, 2)}).to_module(m, swap_dest=g) is g, g)
m = nn.Linear(2, 2); TD({"weight": torch.zeros(2, 2)}).to_module(m, use_state_dict=True, inplace=True)
m = nn.Linear(2, 2); TD({"weight": torch.zeros(2, 2)}).to_module(m, memo={})
m = nn.Linear(2, 2); (TD({"weight": torch.zeros(2, 2), "bias": torch.ones(2)}).to_module(m,
    use_state_dict=True).keys(), m.weight, m.bias)
m = nn.Linear(2, 2); TD({"weight": torch.zeros(2, 2), "q": torch.ones(2)}).to_module(m, use_state_dict=True)
m = nn.BatchNorm1d(2); p = TD.from_module(m).data.clone(); s = p.to_module(m); s.__enter__();
    m.running_var = torch.zeros(2); s.__exit__(None, None, None); (p["running_var"], m.running_var)
# -- TensorDictParams
Params(TD({"a": torch.ones(2), "n": {"b": torch.zeros(2)}, "i": torch.arange(2), "h": torch.zeros(2,
    dtype=torch.bfloat16)}))
[(k, type(v), v.requires_grad) for k, v in Params(TD({"a": torch.ones(2), "i": torch.arange(2), "h": torch.zeros(2,
    dtype=torch.bfloat16), "f": torch.zeros(2, dtype=torch.half)})).items()]
p = Params(TD({"a": torch.ones(2), "n": {"b": torch.zeros(2)}, "i": torch.arange(2)}));
    ([k for k, _ in p.named_parameters()], [k for k, _ in p.named_buffers()])
[type(v) for v in Params(TD({"a": torch.ones(2), "p": nn.Parameter(torch.ones(2))}), no_convert=True).values()]
d = TD(a=torch.ones(2)); p = Params(d); (p["a"] is d["a"], type(d["a"]))
Params(TD(), a=torch.ones(2))
Params(a=torch.ones(2))
Params(lib.lazy_stack([TD(a=torch.ones(2))]))
p = Params(a=torch.ones(2)); p.update_({"a": torch.zeros(2)})
p = Params(a=torch.ones(2)); p.set_("a", torch.zeros(2))
p = Params(a=torch.ones(2)); p.apply_(lambda x: x.zero_())
p = Params(a=torch.ones(2)); p.fill_("a", 3.0)
p = Params(a=torch.ones(2)); p.set_at_("a", 3.0, 0)
p = Params(a=torch.ones(2)); p.add_(1)
p = Params(a=torch.ones(2)); p.clone()
w = nn.Parameter(torch.ones(2)); p = Params(TD({"a": w, "b": {"c": w}}));
    (len(list(p.parameters())), len(list(p.clone().parameters())))
p = Params(a=torch.ones(2)); p.register_get_post_hook(lambda self, v: v * 5);
    (p["a"], p.get("a"), list(p.values()), p.data["a"])
p = Params(a=torch.ones(2)); [type(f(p)) for f in (lambda q: q + 1, lambda q: q.select("a"),
    lambda q: q.to(torch.float64), lambda q: q.detach(), lambda q: q.data, lambda q: q.copy(), lambda q: q.expand(2),
    lambda q: q.cpu(), lambda q: q.apply(lambda x: x))]
p = Params(a=torch.ones(2)); p["z"] = torch.ones(2); p.set(("n", "y"), torch.ones(1));
    [k for k, _ in p.named_parameters()]
p = Params(a=torch.ones(2)); p.set("m", TD(z=torch.ones(2))); type(p["m", "z"])
p = Params(a=torch.ones(2)).lock_(); p.set("z", torch.ones(2))
p = Params(TD({"a": torch.ones(2)}, [2])); p.to(batch_size=[]).batch_size
a, b = Params(x=torch.zeros(2)), Params(x=torch.ones(2)); a.to_module(b); (b["x"] is a["x"], b["x"])
p = Params(a=torch.ones(2)); p()
p = Params(a=torch.ones(2)); p.nothing
type(torch.stack([Params(a=torch.ones(2)), Params(a=torch.ones(2))]))
type(Params(torch.stack([Params(a=torch.ones(2)), Params(a=torch.ones(2))]))["a"])
Params(a=torch.ones(2)).memmap_()
# -- torch.vmap
torch.vmap(lambda p: p["a"].sum())(Params(TD({"a": torch.ones(3, 2)}, [3])))
torch.vmap(lambda q: q + 1)(Params(TD({"a": torch.ones(3, 2)}, [3]))), torch.vmap(lambda q: q + 1, (0,), (0,))(fl)
torch.vmap(lambda q: q.set("o", q["a"].sum(-1)), (0,), (0,))(td), torch.vmap(lambda q: q["a"], -1)(nm)
torch.vmap(lambda q: q, -1)(nm).names, torch.vmap(lambda q: q, 1, 1)(nm), torch.vmap(lambda q: q, 0, 1)(nm)
torch.vmap(lambda q: q, 0, 5)(fl)
torch.vmap(lambda q: q, 5)(fl)
torch.vmap(lambda q: (q + 1, q["a"]), (0,), (0, 1))(nm), torch.vmap(lambda x: TD({"a": x}, []))(torch.ones(4, 2))
torch.vmap(lambda x: TD({"n": TD({"a": x}, [2])}, []))(torch.ones(4, 2))
torch.vmap(lambda x, q: q.set("z", q["b"] + x), (0, None))(torch.ones(5), td)
torch.vmap(lambda q: q.set_("b", q["b"] + 1))(td)
torch.vmap(lambda q: q.set("o", q["a"]))(td.lock_())
torch.vmap(lambda q: q)(nt), torch.vmap(lambda q: q + 1)(c)
torch.vmap(lambda q: q + 1, chunk_size=2)(fl.select("a", "b")), torch.vmap(lambda q: q, (0,))(deep)
torch.vmap(lambda q: q)(ds), torch.vmap(lambda q: q, 1)(ds), torch.vmap(lambda q: q, 0, 1)(ds)
torch.vmap(lambda q: q, 1, 1)(ds), torch.vmap(lambda q: q.set("o", q.get("a") + 1), (0,), (0,))(ds)
torch.vmap(lambda q: q.set("o", q.get("a") + 1), (1,), (0,))(ds)
torch.vmap(lambda q: q.set(("n", "o"), q.get(("n", "c")) + 1), (0,), (0,))(ds)
torch.vmap(lambda q: q.set(("n", "o"), q.get(("n", "c")) + 1), (1,), (1,))(ds)
torch.vmap(lambda q: q.set_("a", q.get("a") + 1))(ds)
torch.vmap(lambda q: q.set("o", q.get("a")))(ds.lock_())
# -- torch.func
torch.func.grad(lambda q: (q["a"] ** 2).sum())(fl)
torch.func.grad_and_value(lambda q: (q["a"] ** 2 * q["n", "c"].sum()).sum())(fl)
torch.vmap(torch.func.grad(lambda q: (q["a"] ** 2).sum()))(fl)
torch.func.jacrev(lambda q: q["b"] ** 2)(fl.select("b"))  #! may work
torch.func.jacfwd(lambda q: q["b"] ** 2)(fl.select("b"))  #! may work
torch.func.jacrev(lambda q: TD({"x": q["b"] ** 2}, q.batch_size))(fl.select("b"))  #! may work
torch.func.jacfwd(lambda q: TD({"x": q["b"] ** 2}, q.batch_size))(fl.select("b"))  #! may work
torch.func.hessian(lambda q: TD({"x": q["b"] ** 2}, q.batch_size))(fl.select("b"))  #! may work
torch.func.hessian(lambda q: (q["b"] ** 2).sum())(fl.select("b"))  #! may work
torch.func.jacrev(lambda q: (TD({"x": q["b"] ** 2}, q.batch_size), q), has_aux=True)(fl.select("b"))  #! may work
torch.func.jacrev(lambda s, q: TD({"x": s["b"] * q["b"]}, s.batch_size), argnums=(0, 1))(fl.select("b"),
    fl.select("b").clone())["x"]  #! may work
torch.func.vjp(lambda q: (q["a"] ** 2).sum(), fl)[1](torch.tensor(1.0))[0]
torch.func.jvp(lambda q: (q["a"] ** 2).sum(), (fl,), (fl,))
m = nn.ModuleDict({"p": Params(TD(n=TD(b=torch.ones(2)), w=torch.zeros(1)))});
    [m.get_parameter(k) is v for k, v in m.named_parameters()], type(m.get_submodule("p.n")).__name__, m["p"].n.b,
    m["p"].n.b is m["p"]["n", "b"], type(m["p"]["n"]).__name__
p = Params(TD(w=torch.ones(2))); p.v = nn.Parameter(torch.ones(1)); [k for k, _ in p.named_parameters()]
p = Params(TD(w=torch.ones(2))); p.head = nn.Linear(1, 1);
    [k for k, _ in p.named_parameters()], [k for k, _ in p.named_modules()], list(p.keys())
p = Params(TD(w=torch.ones(2))); p.register_parameter("v", nn.Parameter(torch.ones(1)));
    [k for k, _ in p.named_parameters()]
p = Params(TD(w=torch.ones(2))); p.register_buffer("v", torch.ones(1)); [k for k, _ in p.named_buffers()]
Params(TD(w=torch.ones(2))).register_parameter("w", torch.ones(2))
p = Params(TD(w=torch.ones(2))); p.w = nn.Parameter(torch.zeros(2)); dict(p.named_parameters())["w"]
m = nn.ModuleDict({"p": Params(TD(w=torch.ones(2)))}); TD.from_module(m).clone().to_module(m);
    [k for k, _ in m.named_parameters()]
x = nn.Linear(2, 2); p = TD.from_module(nn.ModuleDict({"x": x, "y": x})); p["x", "weight"] is p["y", "weight"]
m = nn.ModuleDict({"p": Params(TD(w=torch.ones(3), n=TD(b=torch.zeros(2)), i=torch.arange(2)))}); m.double();
    list(m.state_dict()), m["p"]["w"].dtype, m["p"]["i"].dtype
m, o = (nn.ModuleDict({"p": Params(TD(w=torch.full((3,), float(v)), n=TD(b=torch.zeros(2))))}) for v in (1, 2));
    o.load_state_dict(m.state_dict()); o["p"]["w"]
Params(TD(l=lazy_stack([TD(a=1.0), TD(a=2.0)])))
Params(TD(n=TD(l=lazy_stack([TD(a=1.0), TD(a=2.0)]))), no_convert=True)
Params(TD(l=lazy_stack([TD(a=1.0), TD(a=2.0)])), no_convert="skip")["l"]["a"]
p = Params(TD({"w": torch.ones(3)}, [3])); (p.to(batch_size=[]) is p, p.batch_size)
""",
)
