"""``apply``, ``apply_`` and ``named_apply``."""

from tests.differential.harness import parse_cases

CASES = parse_cases(
    "apply",
    r"""
td.apply(lambda x: x + 1), td.apply(lambda x: None), td.apply(lambda x: None, filter_empty=False)
td.apply(lambda x: None, filter_empty=True), td.apply(lambda x: x if x.dtype != torch.int64 else None)
td.apply(lambda x: x if x.ndim == 1 else None), td.apply(lambda x: x if x.ndim == 1 else None, filter_empty=True)
td.apply(lambda x: x if x.ndim == 1 else None, filter_empty=False)
td.apply(lambda x: x.sum())
td.apply(lambda x: x.sum(), batch_size=[]), td.apply(lambda x: x.unsqueeze(0), batch_size=[1, 3])
nm.apply(lambda x: x.sum(2), batch_size=[2, 3], names=["p", "q"]), nm.apply(lambda x: x.sum(0), batch_size=[3])
nm.apply(lambda x: x, names=None).names
td.apply(lambda x, y: x + y, td)["b"]
td.apply(lambda x, y: x + y, td.select("a"))
td.apply(lambda x, y: (x, y), td.select("a"), default=None)
td.apply(lambda x, y: x if y is None else x + y, td.select("a"), default=None)
td.apply(lambda x, y: x + y, td.select("a"), default=0)
td.apply(lambda x, y: x + y, td.select("a"), default=torch.ones(()))
td.select("a").apply(lambda x, y: x + y, td)
td.apply(lambda x: x + 1, inplace=True) is td
td.apply_(lambda x: x + 1) is td
td.apply_(lambda x: x * 0)["a"].sum()
td.apply(lambda x: x.sum(), inplace=True)
td.apply(lambda x: x.float(), inplace=True)["b"], td.apply(lambda x: x * 0, out=td.clone())["a"].sum()
out = td.clone(); td.apply(lambda x: x * 0, out=out) is out
td.apply(lambda x: x * 0, out=td.empty()), td.apply(lambda x: x, is_leaf=lambda cls: True)
td.apply(lambda x: 1)
td.apply(lambda x: "s"), td.apply(lambda x: {"q": x}), td.apply(lambda x: x, device="cpu").device
td.apply(lambda x: x, device="meta")
td.lock_().apply(lambda x: x).is_locked
td.lock_().apply(lambda x: x, propagate_lock=True).is_locked
td.apply(lambda x: x, call_on_nested=True), td.apply(lambda x: type(x).__name__, call_on_nested=True)
nt.apply(lambda x: x + 1), nt.apply(lambda x: None), nt.apply(lambda x: x, is_leaf=is_leaf_nontensor)
TD({"n": {}}, []).apply(lambda x: x), TD({"n": {}}, []).apply(lambda x: x, filter_empty=True)
TD({}, []).apply(lambda x: x), TD({}, []).apply(lambda x: x, filter_empty=True)
td.named_apply(lambda k, x: x if k == "a" else None), td.named_apply(lambda k, x, y: x + y, td)["b"]
td.named_apply(lambda k, x: x * 0, inplace=True)["a"].sum()
td.named_apply(lambda k, x: x if "c" in k else None, nested_keys=True)
td.apply(lambda x: 1 / 0)
td.apply(5)
fl.apply(torch.exp), fl.apply(lambda x, y: x * y, fl), fl.apply(lambda x, y, z: x * y - z, fl, fl)
nm.apply(lambda x: x.flatten(0, 1), batch_size=[6]), nm.apply(lambda x: x.sum(0), batch_size=[3]).names
nm.apply(lambda x: x, batch_size=[2, 3], names=["p", "q"])
deep.apply(lambda x: x + 1), deep.apply(lambda x: x + 1, filter_empty=True)
deep.apply(lambda x: x + 1, filter_empty=False), deep.apply(lambda x: None if x.dtype == torch.bool else x)
deep.apply(lambda x: None if x.dtype == torch.int64 else x)
deep.apply(lambda x: None if x.dtype == torch.int64 else x, filter_empty=False)
deep.apply_(lambda x: x.zero_())
keys = []; deep.named_apply(lambda k, x: keys.append(k)); keys
keys = []; deep.named_apply(lambda k, x: keys.append(k), nested_keys=True); keys
deep.named_apply(lambda k, x: x if k == "r" else None)
deep.named_apply(lambda k, x: x if k == ("p", "q", "r") else None, nested_keys=True)
deep.named_apply(lambda k, x: x + 1, inplace=True)
td.apply(lambda x: x.unbind(0)[0], batch_size=[]), td.apply(lambda x: x.to(torch.float64), out=td.empty())
td.apply(lambda x, y: x, td.select("a", "b"))
td.apply(lambda x, y: x, TD({"zz": torch.ones(3)}, [3]), default=None)
seen = []; td.apply(lambda x: seen.append(tuple(x.shape))); seen
seen = []; td.apply(lambda x: seen.append(type(x).__name__), call_on_nested=True); seen
nt.apply(lambda x: x + 1, is_leaf=lambda cls: issubclass(cls, torch.Tensor))
nt.named_apply(lambda k, x: x + 1)
x = TD({"a": torch.zeros(3)}, [3], names=["row"], device="cpu").lock_(); x.apply(lambda v: v + 1)
td.apply(lambda x: x[0], batch_size=[]), td.apply(lambda x: x[:2], batch_size=[2])
td.apply(lambda x: x[:2])
td.to("cpu").apply(lambda x: x, device=None).device
v = td["n", "c"]; td.lock_().apply_(lambda x: None if x.ndim == 1 else x * 5); td["n", "c"] is v
td.apply(lambda x: x[:2], inplace=True)
td.apply(lambda x: x + 1, out=TD({"other": torch.zeros(3)}, [3]))
td.apply(lambda x: x + 1, out=TD({}, [3]), batch_size=[])
seen = []; nt.set("n", td).apply(lambda x: seen.append(type(x).__name__), is_leaf=is_leaf_nontensor); seen
seen = []; nt.set("n", td["n"]).apply(lambda x: seen.append(type(x).__name__), call_on_nested=True); seen
seen = []; deep.named_apply(lambda key, x: seen.append(key)); seen
seen = []; deep.named_apply(lambda key, x, y: seen.append(key), deep, nested_keys=True); seen
TD({"n": ds}, [3]).apply(lambda x, y: x + y, TD({"n": ds}, [3]))
td.apply(lambda x: {"twice": x * 2})
td.apply(lambda x, y: x + y, td.exclude("b"))
nt.apply(lambda x: x + 1, out=TD({"other": torch.zeros(3)}, [3]))
nm.apply(lambda x: x, out=nm.empty())["n"]
td.apply(lambda x: x + 1, inplace=True, out=TD({}, [3])) is td
o.apply(lambda x: x + 1, out=o.empty())
TD(i=o, batch_size=[3]).apply(lambda x: x + 1, out=TD({}, [3]))
td.apply(lambda x: x, out=td.clone(), device="meta")
td.lock_().apply(lambda x: x, out=td.empty(), propagate_lock=True).is_locked
""",
)
