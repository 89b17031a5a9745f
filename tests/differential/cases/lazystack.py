"""``LazyStackedTensorDict``, dense-able (ds), heterogeneous (lz), ragged in the batch (tall)."""

from tests.differential.harness import parse_cases

CASES = parse_cases(
    "lazystack",
    r"""
(lz.batch_size, lz.stack_dim, lz.ndim, len(lz))
lz["b"]
lz.get("a", None)
lz.get("k0")
lz["k0"]
lz.get("k0", None), lz.get("a", as_list=True), lz.get("a", as_nested_tensor=True).is_nested
lz.get("a", as_nested_tensor=True, layout=torch.jagged).is_nested, lz.get("a", as_padded_tensor=True)
lz.get("a", as_padded_tensor=True, padding_value=7.0, padding_side="left")[0]
td.get("a", as_list=True)
lz[0] is lz.tensordicts[0], lz[0:2]
lz[3]
lz[0, 0], lz[..., 0], lz[[0, 2]], lz[torch.tensor([True, False, True])]
lz[torch.tensor([0, 2])], lz[:, None], lz[torch.tensor([[0, 1], [1, 2]])], lz[:, torch.tensor([0])]
lz[torch.tensor([0, 1]), torch.tensor([0, 1])], lz[torch.ones(3, 2, dtype=torch.bool)], lz[range(2)]
ds[0]["a"] is ds.tensordicts[0]["a"], ds["n"], ds["n", "c"]
lz["z"] = torch.arange(3); lz.tensordicts[2]["z"]
lz["z"] = torch.ones(3, 2); lz.tensordicts[2]["z"]
lz["z"] = torch.ones(2, 2)
lz[0] = TD({"a": torch.zeros(2, 1)}, [2]); lz.tensordicts[0]["a"]
lz[0] = 0; lz.tensordicts[0]["a"]
lz[0] = TD({"zz": torch.zeros(2, 1)}, [2]); lz.tensordicts[0]
lz[:, 0] = 0; lz.tensordicts[1]["a"]
lz[1:] = lz[:2] * 0; lz
ds[1:] = ds[:2] * 0; ds
ds[torch.tensor([True, False, True])] = 0; ds["a"]
lz.insert(0, lz.tensordicts[0].clone()); lz.batch_size
lz.append(lz.tensordicts[0].clone()); lz.batch_size
lz.append(TD({"a": torch.ones(3)}, [3]))
lz.append(5)
lz.unbind(0)[0] is lz.tensordicts[0], lz.unbind(1)[0]
lz.clone()[0] is lz[0], lz.clone(False)[0]["a"] is lz[0]["a"]
ds + ds, ds * torch.ones(3, 2)
ds.mean(1), ds.mean(reduce=True)
lz.apply(lambda x: x + 1)
ds.apply(lambda x: x.sum(), batch_size=[]), ds.apply(lambda x, y: x + y, ds.contiguous())
ds.reshape(6)
lz.reshape(6)
ds.permute(1, 0)
lz.permute(1, 0), lz.permute(1, 0).stack_dim
ds.transpose(0, 1)
ds.unsqueeze(0).stack_dim, ds.unsqueeze(1).stack_dim
ds.expand(4, 3, 2)["a"], ds.expand(4, 3, 2).batch_size
lz.unflatten(0, (3, 1)).batch_size, lz.unflatten(0, (3, 1))[1, 0]
ds.split(2), ds.split(1, 1)
ds.gather(0, torch.tensor([[0, 0]]))
ds.repeat(2, 1)
lz.select("k0")
lz.select("k0", strict=False)
ds.flatten_keys(), ds.flatten_keys().unflatten_keys()
ds.pop("zz", None)
lz.pop("k0")
ds.update({"a": torch.zeros(3, 2)})
ds.update(ds * 0)["a"].sum()
ds.update_(ds * 0)["a"].sum()
ds.set_("a", torch.zeros(3, 2))["a"].sum()
ds.set_at_("a", torch.zeros(2), 0)["a"].sum()
ds.update_at_(ds[0] * 0, 1)["a"]
(ds.lock_().is_locked, ds.lock_()[0].is_locked)
ds.lock_(); ds["q"] = 1
ds.lock_(); ds.append(ds[0])
ds.lock_(); ds.insert(0, ds[0])
(ds.is_contiguous(), lz.is_contiguous())
(ds.is_empty(), ds.device, ds.numel(), ds.names)
ds.to("cpu").device, ds.to(torch.float64)["a"].dtype
ds.zero_()["a"].sum()
ds.fill_("a", 3)["a"].sum()
x = lazy_stack([td, td]); x.pop("a"), x
x = lazy_stack([td, td]); x.pop(("n", "c")), x
x = lazy_stack([td, td]); del x["a"]; x
x = lazy_stack([td, td]); x.clear()
x = lazy_stack([td, td]); x.rename_key_("a", "z")
x = lazy_stack([td, td]); x.split_keys(["a"], inplace=True)
x = lazy_stack([td, td.select("n")]); x.del_(("n", "c"))
TD(l=ds, batch_size=[3]).fill_(("l", "a"), 3)["l", "a"]
TD(l=ds, batch_size=[3]).fill_(("l", "n"), 3)["l", "n", "c"]
TD(l=lz, batch_size=[3]).fill_(("l", "a"), 3)["l"][1]["a"]  #! may work
TD(l=lz, batch_size=[3]).fill_(("l", "zz"), 3)
lazy_stack([TD(l=ds, batch_size=[3])]).fill_(("l", "a"), 3)["l", "a"]
TD(l=ds, batch_size=[3]).set_at_(("l", "a"), 7, 0)["l", "a"]
TD(l=ds, batch_size=[3]).set_at_(("l", "n", "c"), 7, slice(1, None))["l", "n", "c"]
TD(l=ds, batch_size=[3]).set_at_(("l", "n", "c"), 7, (0, 1, 2))["l", "n", "c"]
TD(l=lz, batch_size=[3]).set_at_(("l", "a"), 7, 1)["l"][1]["a"]
TD(l=lz, batch_size=[3]).set_at_(("l", "zz"), 7, 1)
TD(m=TD(l=ds, batch_size=[3]), batch_size=[3]).set_at_(("m", "l", "a"), 7, [0, 2])["m", "l", "a"]
ds == ds
lz == lz
(ds == ds).all()
ds == ds.contiguous()
(ds.all(), ds.any())
ds.batch_size = [3]  #! may work
ds.batch_size = [3, 2]; ds
ds.names = ["x", "y"]; (ds.names, ds[0].names)
torch.stack([ds, ds]), torch.stack([lz, lz])
torch.cat([ds, ds]), torch.cat([lz, lz], 1), torch.cat([ds, ds.contiguous()])
lazy_stack([ds, ds], 2)
torch.where(torch.ones(3, 2, dtype=torch.bool), ds, ds), torch.where(torch.ones(3, 2, dtype=torch.bool), ds, 0)
torch.clone(lz)
lz.to_lazystack(1)
LazyStackedTensorDict(td, td, stack_dim=1), LazyStackedTensorDict()
LazyStackedTensorDict(td, 5)
LazyStackedTensorDict(td, td, stack_dim=5)
LazyStackedTensorDict(td, td, stack_dim=-1).stack_dim
LazyStackedTensorDict(td, td, stack_dim_name="time").names
LazyStackedTensorDict(td, td[:2], strict_shape=True)
LazyStackedTensorDict(td, TD({"a": torch.ones(3, 4, device="meta")}, [3], device="meta")).device
LazyStackedTensorDict.maybe_dense_stack([td, td])
LazyStackedTensorDict.lazy_stack([td, td])
LazyStackedTensorDict.from_dict({"0": {"a": 1}, "1": {"a": 2}})
lz.apply(lambda x: None)
lz.named_apply(lambda k, x: x if k == "a" else None)
lz.masked_fill(torch.ones(3, 2, dtype=torch.bool), 0)[0]["a"]
lz.masked_select(torch.ones(3, 2, dtype=torch.bool))  #! may work
ds.requires_grad_().requires_grad
("k0" in lz.keys(), "a" in lz.keys(), "k0" in lz)
lazy_stack([TD({"a": torch.ones(2, 3)}, [2]), TD({"a": torch.ones(4, 3)},
    [4])]).to_padded_tensor(mask_key="m")
lazy_stack([TD({"a": torch.ones(2, 3)}, [2]), TD({"a": torch.ones(4, 3)}, [4])])["a"]
lazy_stack([TD({"a": torch.ones(2, 3)}, [2]), TD({"a": torch.ones(4, 3)}, [4])]).shape
lazy_stack([TD({"a": torch.ones(2, 3)}, [2]), TD({"a": torch.ones(4, 3)}, [4])])[:, 0]
lazy_stack([c, c]).x
lazy_stack([c, c])[0]
type(lazy_stack([c, c]))
lazy_stack([c, C(torch.ones(3, 5), batch_size=[3])]).x
lazy_stack([c, C(torch.ones(3, 5), batch_size=[3])]).get("x", as_list=True)
x = TD({"n": lazy_stack([c, C(torch.ones(3, 5), batch_size=[3])])}, [2]); (x.get(("n", "x"), as_list=True),
    x.get(("n", "x"), as_padded_tensor=True), x.get(("n", "x"), as_nested_tensor=True).is_nested)
x = lazy_stack([TensorDict(a=torch.tensor(i)) for i in range(60)], 0).view(3, 4, 5); (type(x).__name__,
    type(x[0]).__name__, type(x[0][0]).__name__, x.to_tensordict(), x.view(60))
lazy_stack([TensorDict(a=torch.tensor(i)) for i in range(6)], 0).unflatten(0, (2, 3))
x = lazy_stack([TensorDict(a=torch.tensor(i)) for i in range(6)], 0).view(-1, 2); (x, x.flatten(0, 1))
(ds.tensordicts[0] in ds, td in ds, ds in ds, "a" in ds)
lazy_stack([lz, lz.clone()], 0).get("a", as_list=True), lazy_stack([lz, lz.clone()], 1).get("a", as_list=True)
lazy_stack([lz, lz.clone()], 0).get("a", as_padded_tensor=True)
lazy_stack([lz, lz.clone()], 0).get("a", as_nested_tensor=True)
lazy_stack([TD({"n": lz}, [3]), TD({"n": lz.clone()}, [3])], 0).get(("n", "a"), as_list=True)
lazy_stack([TD({"n": lz}, [3]), TD({"n": lz.clone()}, [3])], 1).get(("n", "a"), as_list=True)
lazy_stack([lz, lz.clone()], 0).get("missing", 5, as_list=True)
ds.view(2, 3)  #! may work
lz.view(2, 3)  #! may work
ds[torch.tensor(False)].batch_size, ds[0, torch.tensor(False)].batch_size, ds[False, 0].batch_size
ds[:, False].batch_size
ds[torch.tensor(False)] = 1; ds
ds[0, False] = 1; ds
NonTensorStack("a", "b")[torch.tensor(False)]
x = lazy_stack([lz.clone().zero_(), lz.clone().zero_()], 0); p = {t["a"].data_ptr() for m in x.tensordicts for t in
    m.tensordicts}; y = lazy_stack([lz, lz.clone()], 0, out=x); (y is x, p == {t["a"].data_ptr() for m in x.tensordicts
    for t in m.tensordicts}, x)
x = lazy_stack([td, td.clone()]).memmap_(); (x.is_memmap(), x.get("n").is_memmap(), x.get("n").saved_path)
x = lazy_stack([td, td.clone()]).memmap_like(); (x.is_memmap(), x.get("n").is_memmap())
x = lazy_stack([td, td.clone()]).share_memory_(); (x.is_shared(), x.get("n").is_shared(), x.get("n").is_memmap())
x = lazy_stack([m.memmap() for m in lz.tensordicts]); (x.is_memmap(), x.is_shared(), x.saved_path)
x = lazy_stack([m.clone().share_memory_() for m in lz.tensordicts]); (x.is_memmap(), x.is_shared())
x = lazy_stack([m.clone().share_memory_() for m in lz.tensordicts]); x.memmap_()
x = lazy_stack([m.memmap() for m in lz.tensordicts]); x.share_memory_()
x = lazy_stack([m.lock_() for m in lz.tensordicts]); x.unlock_(); x["z"] = torch.ones(x.shape); x
with lazy_stack([m.lock_() for m in lz.tensordicts]).unlock_() as x: x["z"] = torch.ones(x.shape)
x = lazy_stack([m.memmap() for m in lz.tensordicts]); x.unlock_(); (x.is_memmap(), x.is_locked)
x = lazy_stack([td, td.clone()]).lock_(); [(y.is_locked, [m.is_locked for m in y.tensordicts]) for y in (x[None], x[:,
    :2], x[:, [0, 1]], x[:1, :2], x[:, None], x.split(2, 1)[0], x.chunk(2, 1)[1], x[:1])]
x = lazy_stack([td, td.clone()]).lock_(); [(y.is_locked, [m.is_locked for m in y.tensordicts]) for y in (x.view(-1),
    x.reshape(-1), x.flatten(), x.repeat_interleave(2, dim=0), x.transpose(0, 1), x.unsqueeze(0))]
x = lazy_stack([td, td.clone()], 1).lock_(); [(y.is_locked, [m.is_locked for m in y.tensordicts]) for y in (x[0],
    x[:2], x[[0, 1]], x[Mask], x.split(2)[0], x.tensor_split(2)[1], x.get("n")[0])]
x = lazy_stack([td, td.clone()]).lock_(); [y.is_locked for y in (x.unbind(1)[0], x.unbind(0)[0], torch.stack([x, x]),
    torch.cat([x, x], 1), x.where(torch.ones(2, dtype=torch.bool), x), maybe_dense_stack([x, x]), x.roll(1, 0),
    x.flip(0))]
x = lazy_stack([td, td.clone()], 1).lock_(); [y.is_locked for y in (x.unbind(0)[0], next(iter(x)), torch.stack([x[0],
    x[1]]), torch.cat([x, x]), x.to_lazystack(0), x.roll(1, 0))]
x = lz.lock_(); [y.is_locked for y in (x.unbind(1)[0], torch.stack([x, x]), x[:, 0], x[:, :1][0], x.apply(lambda t: t
    + 1), x + 1)]
x = lazy_stack([td, td.clone()]).lock_(); [y.is_locked for y in (x.narrow(1, 0, 2), *x.split(2, 1))]
x = lazy_stack([td, td.clone()]).lock_(); x.split(1)[0].append(td.clone())
x = lazy_stack([td, td.clone()]).lock_(); y = x[:, :2].unlock_(); (x.is_locked, y.is_locked, y[0].is_locked)
x = lazy_stack([td, td.clone()]).lock_(); y = x[:, :2]; y[0].set("z", torch.ones(2))
x = lazy_stack([td, td.clone()]).lock_(); x.filter_empty_() is x
x = lazy_stack([TD({"e": {}}, [2]), TD({"e": {}}, [2])]).lock_(); x.filter_empty_()
x = lazy_stack([td, td.clone()]).lock_(); x[:1].unlock_()
lz.update_({"a": torch.tensor(7)}); lz
x = lazy_stack([td, td.clone()]).update_({("n", "c"): torch.tensor(7)}); x
x = lazy_stack([td, td.clone()]).update_({"n": {"c": torch.tensor(7)}}); x
lz.update_({"n": {"c": torch.tensor(7)}})
lazy_stack([td, td.clone()]).update_({"n": {"zz": torch.tensor(7)}})
lz.update_({"a": torch.tensor(7).numpy()})
lazy_stack([td, td.clone()]).update_({"n": torch.tensor(7)})
lz.get("a", as_padded_tensor=True, padding_value=-1.0, padding_side="right")
x = [TD(a=torch.zeros(2)), TD(a=torch.ones(2))]; y = lazy_stack(x); y[1]["a"][0] = 5; y["new"] = torch.arange(2);
    (y["a"], x[1]["new"])
lz.set("c", [torch.zeros(2, 1), torch.zeros(2, 5), torch.zeros(2, 3)]); lz[1]["c"].shape
x = lazy_stack([TD(a=1), TD(a=2)]); x.set("d", torch.nested.nested_tensor([torch.zeros(2), torch.ones(3)])); x[1]["d"]
lz["z"] = torch.zeros(4)
x = lazy_stack([TD({"a": torch.full((3,), n)}, [3]) for n in range(2)], 1);
    x.append(TD({"a": torch.full((3,), 7)}, [3])); x.insert(1, TD({"a": torch.full((3,), 8)}, [3]));
    x.extend([TD({"a": torch.full((3,), 9)}, [3])]); (x.batch_size, x["a"])
x = lazy_stack([TD({"a": torch.zeros(n)}, [n]) for n in (2, 3)]);
    (x.batch_size, x.get_item_shape("a"), (x + 1)[1]["a"])
lazy_stack([TD({"a": torch.zeros(n)}, [n]) for n in (2, 3)], strict_shape=True)
lz.lock_(); lz.del_("a")
lz.lock_()[0].unlock_()
with lz.lock_().unlock_(): lz["z"] = torch.zeros(3, 2)
lazy_stack([TD(a=torch.zeros(2), b=torch.ones(3), o=torch.zeros(1)), TD(a=torch.ones(2),
    b=torch.ones(4))]).densify(layout=torch.jagged)
x = maybe_dense_stack([TD(d=torch.ones(2), n=TD(r=torch.ones(k))) for k in (2, 3)]); (type(x), type(x["n"]))
x = lazy_stack([TD({"a": torch.zeros(3)}, [3], names=["time"]) for _ in range(2)], 1, stack_dim_name="agent");
    (x.names, x.permute(1, 0).names, x[0].names, x[:, 0].names)
x = lazy_stack([TD({"a": torch.zeros(3)}, [3], names=["time"]) for _ in range(2)], 1); x.names = ["t", None];
    x.tensordicts[0].names
write_through(ds.permute(1, 0), {"a": torch.arange(6.0).reshape(2, 3)}); ds["a"]
write_through(ds.flatten_keys("/"), {"x/y": torch.zeros(3, 2)}); ds
(lz + 1)[0]["k0"], lz.to(torch.float64)[0]["k0"].dtype, lz.apply(lambda x: x + 2)[1]["k1"]
x = pickle.loads(pickle.dumps(lz.lock_())); (x.is_locked, x[0].is_locked, x[0]["k0"], x.unlock_().is_locked)
x = LazyStackedTensorDict(stack_dim=0); y = (x.batch_size, list(x.keys())); x.append(TD({"a": torch.zeros(3)}, [3]));
    (y, x.batch_size, x["a"])
x = lazy_stack([lazy_stack([TD(a=torch.ones(2) * k), TD(a=torch.zeros(2))]) for k in range(3)], 1);
    x[0, 2] = TD(a=torch.full((2,), 9.0)); (x.batch_size, x["a"])
lazy_stack([TD({}, [2]), TD({}, [2, 1])])
lazy_stack([TD(a=1, device="cpu"), TD(a=1)])
lazy_stack([TD({}, [1], names=["x"]), TD({}, [1])])
x = TD({"x": lz}, [3]); x.update_(x * 0); lz[1]["a"]
lazy_stack([TD({"a": torch.ones(3, n)}, [3]) for n in (2, 4)]).get("a", as_nested_tensor=True).layout
lazy_stack([C(torch.zeros(2), s="cat"), C(torch.ones(2), s="dog")]).s
x = lazy_stack([C(torch.zeros(2), s="cat"), C(torch.ones(2), s="dog")]); x.x = torch.full((2, 2), 7.0);
    (type(x[1]), x[1].x, type(x.contiguous()))
x = TD({"p": lazy_stack([C(torch.zeros(2)), C(torch.ones(3))])}, [2]);
    (type(x[1]["p"]), [v.shape for v in x["p"].get("x", as_list=True)])
lazy_stack([C(torch.zeros(2)), C(torch.ones(3))]).x
td.lock_().__enter__(); td.unlock_().__enter__(); x = td.is_locked; td.__exit__(None, None, None); y = td.is_locked;
    td.__exit__(None, None, None); x, y, td.is_locked
ds.lock_().__enter__(); ds.unlock_().__enter__(); x = ds.is_locked; ds.__exit__(None, None, None); y = ds.is_locked;
    ds.__exit__(None, None, None); x, y, ds.is_locked
with td.flatten_keys(".") as flat: flat.lock_().unlock_(); flat["n.q"] = torch.ones(3)
with td.view(-1) as outer, outer.view(3, 1) as inner: inner["d"] = torch.ones(3, 1)
x = TD({"x": lz}, [3]); x.get(("x", "a"), as_list=True), x.get(("x", "a"), as_nested_tensor=True).is_nested
x = ds.update(TD({"a": torch.full((3, 2), 7.0), "q": "text"}, [])); x["a"], x["q"]
x = ds.update(TD({"n": TD({"c": torch.zeros(3, 2, 4)}, [])}, [])); x["n", "c"]
x = lazy_stack(list(ds.unbind(0)), 1); x.update(TD({"a": torch.full((2, 3), 7.0)}, [2])); x["a"]
x = lazy_stack(list(ds.unbind(0)), 1); x.copy_(TD({"a": torch.full((2, 3), 7.0)}, [2])); x["a"]
ds.replace(TD({"a": torch.zeros(3, 2)}, []))["a"]
ds.update(TD({"a": torch.zeros(2, 2)}, []))  #! any error
type(lazy_stack([c, c]).empty(batch_size=[2])).__name__, lazy_stack([c, c]).empty(batch_size=[2]).batch_size
x = lazy_stack([c, c.clone()]); x.set("s", {"k": 1}); x[0].s, x[0, 0].s, [[*row] for row in x.get("s")]
x = lazy_stack([c, c.clone()]); x.s = {"k": torch.ones(2, 3)}; type(x[0].s).__name__, type(x.get("s")[0][0]).__name__
x = lazy_stack([Only(torch.ones(3), batch_size=[3])] * 2); x.set("y", TD({"k": torch.ones(2, 3)}, [2, 3])); x[0].y["k"]
""",
)
