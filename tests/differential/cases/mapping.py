"""Reading and writing entries by key."""

from tests.differential.harness import Case, parse_cases

GET = parse_cases(
    "get",
    r"""
td.get("zz", None), td.get("zz", 5)
td["n", "zz"]
td["zz", "c"]
td["a", "c"]
td.get(("a", "c"))
td.get(("n", "c")), td.get(("n", "zz")), td.get(("zz", "c"), 1)
td["n", "c"], td["n", ("c",)]
td.get(("a",))
td.get(5)
td.get(None)
td.get(())
td[()]
td.get("a", "b"), td.get("")
td.get(("n", 5))
td["a", 0]  #! any error
td[b"a"]  #! any error
nt["s"], nt["o"]
nt.get("o")
type(nt.get("s"))
nt.get_non_tensor("a")
nt.get_non_tensor("zz")
nt.get_non_tensor("zz", 1)
nt.get_at("s", 0)
td.get_at("zz", 0), td.get_at("zz", 0, default=1), td.get_at(("n", "c"), slice(0, 2))
td.get_item_shape("n")
nt.get_item_shape("s")
td.entry_class("n")
nt.entry_class("s")
td.entry_class("zz")
""",
)

SET = parse_cases(
    "set",
    r"""
td["z"] = torch.ones(3); td
td["z"] = torch.ones(4); td
td["z"] = 1; td
td["z"] = 1.5; td
td["z"] = "str"; td
td["z"] = None; td
td["z"] = [1, 2, 3]; td
td["z"] = np.ones(3); td
td["z"] = {"q": torch.ones(3)}; td
td["n", "d"] = torch.ones(3); td
td["p", "q", "r"] = torch.ones(3); td
td["a", "q"] = torch.ones(3); td
td[5] = torch.ones(3); td
td.set(5, torch.ones(3))
td.set(("x", 5), torch.ones(3))
td.set("z", torch.ones(3)) is td
td.set("z", torch.ones(3, 5), inplace=True)
td.set("a", torch.ones(3, 4, dtype=torch.int64), inplace=True)
td.set("a", torch.ones(3, 5), inplace=True)
td.set("a", torch.ones(3, 5))
td.set_("a", torch.ones(3, 4)) is td
td.set_("a", torch.ones(3, 5))
td.set_("a", 1.0)
td.set_("a", torch.ones(4))
td.set_("zz", torch.ones(3))
td.set_("n", {"c": torch.zeros(3, 2)})
td.set_("n", TD({"c": torch.zeros(3, 2)}, [3])); td["n", "c"].sum()
td.set_(("n", "c"), torch.zeros(3, 2)); td["n", "c"].sum()
nt.set_("s", "world"); nt
td.set_at_("a", 0.0, 0); td["a"][0]
td.set_at_("a", torch.zeros(4), 0); td["a"][0]
td.set_at_("zz", 0.0, 0)
td.set_at_(("n", "c"), 0.0, slice(0, 1)); td["n", "c"].sum()
nt.set_at_("s", "bye", 0); nt
td.setdefault("a", torch.zeros(3, 4)).sum()
td.setdefault("z", torch.zeros(3))
td.setdefault("z", 1)
td.setdefault("z", "x")
td.setdefault(("n", "z"), torch.zeros(3))
(td.pop("a"), list(td.keys()))
td.pop("zz", None)
(td.pop(("n", "c")), td)
(td.pop(("n", "c"), 1), td)
(td.pop(("q", "c"), 1), td)
nt.pop("s")
(td.popitem(), list(td.keys()))
TD({}, []).popitem()
td.del_("a") is td
td.del_(("n", "c")); td
del td["a"]; td
del td["n", "c"]; td
del td["zz"]; td
td.clear(); td
td.update({"a": torch.zeros(3, 4)}) is td
td.update({"a": torch.zeros(3)})
td.update({"z": torch.zeros(3), "n": {"q": torch.zeros(3)}})
td.update(TD({"n": TD({"q": torch.zeros(3)}, [3])}, [3]))
td.update({("n", "q"): torch.zeros(3)})
td.update({"n": torch.zeros(3)})
td.update({"a": {"q": torch.zeros(3)}})
td.update(z=torch.zeros(3))
td.update({"a": torch.zeros(3, 4)}, inplace=True)["a"].sum()
td.update({"a": torch.zeros(3, 5)}, inplace=True)
td.update({"z": torch.zeros(3, 5)}, inplace=True)
td.update({"a": torch.zeros(3, 4), "b": torch.zeros(3)}, keys_to_update=["b"])["a"].sum()
td.update({"a": torch.zeros(3, 4), "n": {"c": torch.zeros(3, 2)}}, keys_to_update=[("n", "c")])
x = torch.zeros(3, 4); td.update({"a": x}, clone=True)["a"] is x
x = torch.zeros(3, 4); td.update({"a": x})["a"] is x
td.update({"a": torch.zeros(2, 4)}, update_batch_size=True)
td.update(TD({"a": torch.zeros(2, 4)}, [2]), update_batch_size=True)
td.update(td) is td
td.update(5)  #! any error
td.update(None)
td.update([("a", torch.zeros(3))])  #! any error
td.lock_().update({"a": torch.zeros(3, 4)})
td.lock_().update({"a": torch.zeros(3, 4)}, inplace=True)["a"].sum()
td.lock_().update({"a": torch.zeros(3, 4)}, ignore_lock=True)["a"].sum()
td.update({"s": "str"})
td.update({"a": "str"})
td.update_({"a": torch.zeros(3, 4)}) is td
td.update_({"zz": torch.zeros(3, 4)})
td.update_({"a": torch.zeros(3)})
td.update_({"a": 0})["a"].sum()
td.update_({"n": {"c": torch.zeros(3, 2)}})["n", "c"].sum()
td.update_({("n", "c"): torch.zeros(3, 2)})["n", "c"].sum()
td.update_(td.clone().zero_())["a"].sum()
td.update_(td.select("a"))
td.update_({"a": torch.zeros(3, 4), "b": torch.zeros(3)}, keys_to_update=["b"])["a"].sum()
td.lock_().update_({"a": torch.zeros(3, 4)})["a"].sum()
td.update_at_({"a": torch.zeros(4)}, 0) is td
td.update_at_({"a": torch.zeros(4)}, 0)["a"]
td.update_at_(TD({"a": torch.zeros(2, 4)}, [2]), slice(0, 2))["a"].sum()
td.update_at_({"zz": torch.zeros(4)}, 0)
td.replace({"a": torch.zeros(3, 5)}), td.replace(a=torch.zeros(3, 5)), td.replace({"z": torch.zeros(3, 5)})
td.replace({"a": torch.zeros(3, 5)}) is td
td.rename_key_("a", "z") is td
td.rename_key_("a", "z"); td
td.rename_key_("a", "b"); td
td.rename_key_("a", "b", safe=True); td
td.rename_key_("zz", "b")
td.rename_key_(("n", "c"), "z"); td
td.rename_key_("a", ("n", "z")); td
td.rename_key_("a", ("q", "z")); td
td.rename_key_("a", "a"); td
td.rename_keys({"a": "z"}) is td
td.rename_keys({"zz": "z"})
td.rename_keys({"zz": "z"}, strict=False)
# deeper trees
deep["p", "q", "r"], deep["p"]["q"]["r"], deep["p", ("q", ("r",))], deep[("p",), "q"]
deep["p", "q", "r"] = torch.zeros(2); deep
deep["p", "q", "s", "t"] = torch.zeros(2); deep
deep["p"] = torch.zeros(2); deep
deep["p", "e"] = {"w": torch.zeros(2, 5)}; deep
deep.set(("p", "e", "w"), torch.zeros(2)).get(("p", "e", "w"))
deep.pop(("p", "q"))
deep.pop(("p", "zz", "y"), 5)
deep.del_(("p", "q", "r"))
deep.update({"p": {"q": {"r": torch.zeros(2)}}})
deep.update({("p", "q"): {"r2": torch.zeros(2)}})
deep.update(TD({"p": TD({"q": TD({"w": torch.ones(2)}, [2])}, [2])}, [2]))
deep.update({"p": {"e": {"f": {"g": torch.ones(2)}}}})
deep.update_({("p", "q", "r"): torch.zeros(2, 2)})
deep.setdefault(("p", "q", "r"), 1)
deep.setdefault(("p", "q", "u"), torch.ones(2))
deep.rename_key_(("p", "q"), ("p", "w"))
deep.rename_key_(("p", "q", "r"), "top")
deep.rename_key_("p", ("z2", "p"))
deep.get(("p", "zz", "y")), deep.get(("p", "zz", "y"), "default")
td["t"] = td.select("a"); td["t", "a"]
td["t"] = td.clone(); td["t"]["a"] = torch.zeros(3); td
td["t"] = TD({"x": torch.ones(3, 2)}, [3, 2]); td["t"].batch_size
td["t"] = TD({"x": torch.ones(2)}, [2])
td["t"] = TD({}, []); td["t"].batch_size
td["t"] = TD({}, [4])
td["t"] = {}; td["t"]
td["t"] = {"s": "text", "k": {"v": [1, 2, 3]}}; td
td["t"] = np.arange(3); td["t"]
td["t"] = np.float64(3)
td["t"] = torch.ones(3, dtype=torch.bfloat16); td["t"].dtype
td["t"] = range(3); td.get("t")
td["t"] = (1, 2, 3); td["t"]
td["t"] = [[1, 2], [3, 4], [5, 6]]; td["t"]
td["t"] = [True, False, True]; td["t"]
td["t"] = [1.5, 2, 3]; td["t"]
td["t"] = [torch.ones(2), torch.ones(2), torch.ones(2)]; td["t"]
td["t"] = ["a", "b", "c"]; td["t"]
td["t"] = ["a", "b", "c"]; td.get("t").tolist()
td["t"] = [None, None, None]; td["t"]
td["t"] = torch.nn.Parameter(torch.ones(3)); td["t"]
td.set("t", "text", inplace=True); td["t"]
nm["t"] = TD({"x": torch.ones(2, 3)}, [2, 3]); nm["t"].names
nm["t"] = {"x": torch.ones(2, 3)}; nm["t"].names
nm["t", "u"] = torch.ones(2, 3); nm["t"].names
x = TD({}, [3], device="cpu"); x["n"] = {"a": torch.ones(3)}; x["n"].device
x = TD({}, [3], device="meta"); x["a"] = torch.ones(3); x["a"].device
x = TD({}, [3], device="cpu"); x["n"] = TD({"a": torch.ones(3)}, [3]); x["n"].device
td.create_nested(("n", "c", "v")); td
td.create_nested(("n", "u")).create_nested(("a", "v")); td
td.update({"n": {"d": {"f": torch.ones(3)}}, ("n", "g"): torch.ones(3)}, z=torch.ones(3))
n = td["n"]; td.update({"n": {"d": torch.ones(3)}}); td["n"] is n
x = TD(q=torch.ones(3), n=TD(m=torch.ones(3))); y = TD().update(x, clone=True);
    (y["q"] is x["q"], y["n"] is x["n"], y["n", "m"] is x["n", "m"])
v = td["a"]; td.update({"a": torch.ones(3, 4, dtype=torch.int64), "z": torch.ones(3)}, inplace=True); td["a"] is v
td.update({"q": torch.ones(3), "n": {"u": torch.ones(3), "v": torch.ones(3)}}, keys_to_update=["zz", ("n", "u")])
td.update({"n": TD({"k": torch.ones(3)}, [3])}, is_leaf=lambda cls: issubclass(cls, TD)); list(td["n"].keys())
TD({}, [3, 2]).update({"a": torch.zeros(3, 3)})
TD({}, [3]).update({"a": torch.zeros(())})
td.update(TD({}, [5]), update_batch_size=True)
td.lock_().update({"n": {"new": torch.ones(3)}}, inplace=True)
v = td["n", "c"]; td.lock_().update_(TD({"n": {"c": torch.zeros(3, 2)}}, [3])).update_(a=1); td["n", "c"] is v
td.update_({"n": {"zz": torch.ones(3)}})
td.update_at_({"a": torch.full((2, 4), 2.0), "n": {"c": torch.ones(2, 2)}}, torch.tensor([False, True, True])); td
td.replace({"n": {"c": torch.ones(3)}}, a=torch.ones(3)); td
td.replace() is td
td.rename_key_("a", ("n", "a")).rename_key_("n", ("n", "inner")); td
td.rename_key_("a", 1)
td.rename_keys({"a": "b", "b": "a", ("n", "c"): "c"})
td.rename_keys({"a": "x", "b": "x"})
td.rename_keys({"n": "x", ("n", "c"): "y"})
td.rename_keys({"a": "x", "b": ("x", "y")})
td.rename_keys({"a": "b"})
td.rename_keys({"a": ("b", "q")})
td.cat_tensors("a", ("n", "c"), out_key=("n", "z"), dim=1, keep_entries=True); td
td.cat_tensors("a", ("n", "c"), out_key="a", dim=1); td
td.cat_tensors("a", "zz", out_key="c")
x = TD({"a": torch.zeros(3, 2), "b": torch.ones(3, 2)}, [3]); x.stack_tensors("a", "b", out_key="a", dim=-1); x
TD({"a": torch.zeros(3, 2), "b": torch.ones(3, 2)}, [3]).stack_tensors("a", "b", out_key="c", dim=0)
x = TD(b=torch.zeros(2), a=torch.ones(2), n=TD(c=torch.full((2,), 2.0)));
    (x.stack_from_tensordict(1), x.stack_from_tensordict(1, sorted=True))
x = TD(b=torch.zeros(2), a=torch.ones(2), n=TD(c=torch.full((2,), 2.0)));
    x.cat_from_tensordict(0, sorted=[("n", "c"), "a", "b"])
td.setdefault(("n", "u", "m"), torch.ones(3)) is td["n", "u", "m"]
td.lock_().setdefault("a", None).shape
td.is_non_tensor("a"), nt.is_non_tensor("s")
td.is_non_tensor("zz")
td.update_({"a": torch.zeros(3, 4), "n": {"c": torch.ones(2, 7)}})
x = TD({("p", k): torch.zeros(2, n) for k, n in (("c", 3), ("d", 5), ("e", 4))}, [2]);
    s = lazy_stack([TD(c=torch.ones(3), d=torch.ones(2)), TD(c=torch.ones(4) * 2)]); x.update(TD({"p": s}, [2]));
    x["p"], x["p"].tensordicts[1]["c"] is s.tensordicts[1]["c"]
x = TD({("p", "q", k): torch.zeros(2, n) for k, n in (("c", 3), ("d", 5))}, [2]);
    s = lazy_stack([TD(c=torch.ones(3), d=torch.ones(2)), TD(c=torch.ones(4) * 2)]);
    x.update(TD({("p", "q"): s}, [2]), clone=True);
    x["p", "q"], x["p", "q"].tensordicts[1]["c"] is s.tensordicts[1]["c"]
x = TD({("p", "a", "c"): torch.zeros(2, 3), ("p", "a", "e"): torch.zeros(2, 4), ("p", "q"): torch.ones(2)}, [2]);
    s = [TD(c=torch.ones(3), d=torch.ones(2)), TD(c=torch.ones(4))];
    x.update(TD({"p": lazy_stack([TD({"a": s[0]}), TD({"a": s[1], "r": torch.ones(1)})])}, [2]));
    [sorted(r.keys(True, True), key=str) for r in x["p"].tensordicts]
x = TD({"n": {"c": torch.zeros(2, 3)}}, [2]).lock_();
    x.update({"n": lazy_stack([TD(new=torch.ones(3)), TD()])}, inplace=True)
x = TD({"x": torch.ones(3), "n": {"y": torch.ones(3), "m": {"k": torch.ones(3)}}, "s": "old"}, [3]);
    n, m = x["n"], x["n", "m"]; x.update(TD({"x": torch.ones(2), "n": {"y": torch.ones(2), "m": {"k": torch.ones(2)},
    "w": torch.ones(2)}, "s": "new"}, [2]), update_batch_size=True); x["n"] is n, x["n", "m"] is m, x
x = TD({"a": TD({"x": torch.ones(2, 3)}, [2, 3])}, [2]); x.update(TD({"a": TD({"x": torch.ones(2, 5)}, [2, 5])}, [2]))
x = TD({"a": TD({"x": torch.ones(2, 3)}, [2, 3])}, [2]); a = x["a"];
    x.update(TD({"a": TD({"x": torch.ones(2, 5)}, [2, 5])}, [2]), update_batch_size=True); x["a"] is a, a
x = lazy_stack([TD({"x": torch.ones(3)}, [3]) for _ in range(2)]); m = x.tensordicts;
    x.update(lazy_stack([TD({"x": torch.ones(n)}, [n]) for n in (2, 4)]), update_batch_size=True);
    x.batch_size, [a is b for a, b in zip(x.tensordicts, m)]
x = lazy_stack([TD({"x": torch.ones(3)}, [3]) for _ in range(2)]);
    x.update(lazy_stack([TD({"x": torch.ones(5)}, [5]) for _ in range(3)]), update_batch_size=True); x.batch_size
x = lazy_stack([TD({"x": torch.ones(3)}, [3]) for _ in range(2)]);
    x.update(TD({"x": torch.ones(2, 7)}, [2, 7]), update_batch_size=True); x.batch_size, x["x"].shape
x = lazy_stack([TD({"x": torch.ones(3)}, [3]) for _ in range(2)]);
    x.update(lazy_stack([TD({"x": torch.ones(1)}, [1]) for _ in range(3)]), update_batch_size=True, inplace=True)
x = lazy_stack([TD({"x": torch.ones(3)}, [3]) for _ in range(2)]); y = lazy_stack([TD({"x": torch.ones(1)}, [1])] * 3);
    x.update(y, update_batch_size=True, keys_to_update=["x"])
x = TD({"x": torch.ones(2, 3), "n": {"y": torch.ones(2, 3)}}, [2, 3]);
    x.update(TD({"x": torch.ones(2, 4), "n": {"z": torch.ones(2, 4)}}, [2, 4]), update_batch_size=True)
td.set_at_("a", np.ones(4), 1); td["a"]
td.set_at_("a", [1.0, 2.0, 3.0, 4.0], 1); td["a"]
td.set_at_("a", (1, 1, 1, 1), slice(0, 2)); td["a"]
ds.set_at_("a", [7.0, 8.0], 1); ds["a"]
ds.set_at_(("n", "c"), np.ones(4), slice(0, 2)); ds["n", "c"]
td.set_at_("a", [1, 2], 0)
x = TD({"a": torch.ones(4, 3, 2)}, [4, 3]); x[torch.tensor([0, 2])] = TD({"a": torch.zeros(3, 2)}, [3]);
    x["a"][:, 0, 0]
x = TD({"a": torch.ones(4, 3, 2)}, [4, 3]).to_lazystack(1); x[...] = TD({"a": torch.zeros(3, 2)}, [3]); x["a"].sum()
x = TD({"a": torch.ones(4, 3, 2)}, [4, 3]).to_lazystack(0); x[0:1] = TD({"a": torch.zeros(3, 2)}, [3]); x["a"].sum()
x = TD({"a": torch.ones(4, 3, 2)}, [4, 3]); x[:1] = TD({"a": torch.zeros(5, 2)}, [5])
x = TD({"a": torch.ones(4, 3, 2)}, [4, 3]); x[:1] = TD({"a": torch.zeros(2, 5, 2)}, [2, 5])
x = TD({"a": torch.ones(4, 3)}, [4]); x[:2] = TD({"a": torch.zeros(3)}, [])
td[:2] = TD({"a": torch.zeros(4)}, [])
""",
)

KEYS = parse_cases(
    "keys",
    r"""
list(td.keys(leaves_only=True)), list(td.keys(True, sort=True))
list(TD({"b": 1, "a": 1, "n": {"z": 1, "y": 1}}, []).keys(True, sort=True))
list(TD({"b": 1, "a": 1}, []).keys(sort=True))
list(TD({"b": 1, "a": 1, "n": {"z": 1, "y": 1}}, []).values(True, sort=True)), list(td.values(True))
list(td.items(True)), list(nt.keys(leaves_only=True)), list(nt.keys(True, True, is_leaf=is_leaf_nontensor))
list(nt.items(True, True, is_leaf=is_leaf_nontensor)), list(td.keys(True, True, is_leaf=lambda cls: True))
list(td.keys(is_leaf=lambda cls: issubclass(cls, torch.Tensor), leaves_only=True))
len(td.keys()), len(td.keys(True))
"a" in td.keys()
("n", "c") in td.keys()
("n", "c") in td.keys(True)
(("n",), "c") in td.keys(True)
("n", "zz") in td.keys(True)
("a", "zz") in td.keys(True)
"a" in td
("n", "c") in td
"zz" in td
5 in td
5 in td.keys()
5 in td.keys(True)
None in td.keys(True)
("n", "c") in td.keys(True, True)
set(td.keys()) == {"a", "b", "n"}
reversed(list(td.keys())) is None
list(reversed(td.keys()))  #! may work
TD({}, []).depth, TD({"a": {"b": {"c": 1}}}, []).depth
TD({}, []).is_empty(), TD({"n": {}}, []).is_empty(), TD({"s": "x"}, []).is_empty()
for k in td.keys(): td[k + "_"] = 1
for k in td.keys(): td.pop(k)  #! may work
list(TD({"n": nt}, [3]).non_tensor_items(True)), list(deep.keys(True)), list(deep.keys(True, True))
list(deep.items(True)), list(deep.values(True, True)), list(deep.keys(True, sort=True))
list(deep.keys(True, True, sort=True)), list(deep.items(True, True, sort=True))
list(deep.keys(True, is_leaf=lambda cls: True))
("p", "q") in deep.keys(True)
("p", "q", "r") in deep.keys(True, True)
("p", ("q", "r")) in deep.keys(True)
("p", "q", "r") in deep
sorted(deep.keys())
len(deep.keys(True, True))
dict(td.items())["a"] is td["a"]
{k: v.shape for k, v in td.items(True, True)}
[k for k in td]
{**td.to_dict()}
td.set("n", TD({"k": torch.ones(3)}, [3]), inplace=True)
td.set("n", {"k": torch.ones(3)}, inplace=True)
x = td["n", "c"]; td.set("n", {"c": torch.zeros(3, 2), "k": torch.ones(3)}, inplace=True); x
td.set("n", TD({"k": torch.ones(4)}, [4]), inplace=True)
td.lock_().set("n", {"k": torch.ones(3)}, inplace=True)  #! any error
td.lock_().set("n", {"c": torch.zeros(3, 2)}, inplace=True)
TD(l=ds, batch_size=[3]).set("l", {"k": torch.ones(3, 2)}, inplace=True)
k, v = td.keys(True), td.keys(True, True); td["n", "new"] = torch.ones(3);
    (list(k), len(k), len(v), ("n", "new") in k)
td.keys() & {"a", "q"}
list(nt.set("n", {"d": torch.ones(3), "e": {}}).keys(True, True, is_leaf=lambda cls: issubclass(cls, TD)))
1 in td
sorted(lazy_stack([td, td.exclude("a")]).keys(True, True), key=str)
TD(a=TD()).depth
x = td.keys(True, True, is_leaf=lambda cls: issubclass(cls, TD));
    list(x), len(x), len(list(td.values(True, True, is_leaf=lambda cls: issubclass(cls, TD))))
x = nt.keys(True, True, is_leaf=is_leaf_nontensor);
    list(x), len(x), len(list(nt.values(True, True, is_leaf=is_leaf_nontensor)))
td["s"] = "text"; list(td.values(True, True, is_leaf=is_leaf_nontensor)), list(td.items(True, True,
    is_leaf=is_leaf_nontensor))
""",
)

_BELOW_LEAVES = {
    "td": ["('a', 'q')", "('n', 'c', 'q')", "('n', 'c', 'q', 'r')", "('n', 'q')"],
    "lz": ["('b', 'q')", "('b', 'q', 'r')", "('k1', 'q')"],
    "ds": ["('n', 'c', 'q')"],
    "nt": ["('s', 'q')", "('s', 'q', 'r')"],
    "c": ["('x', 'q')", "('s', 'q')"],
    "o": ["('inner', 'x', 'q')", "('label', 'q')"],
    "TD({'l': ds}, [3])": ["('l', 'a', 'q')", "('l', 'n', 'c', 'q')"],
    "TD({'a': torch.ones(3)}, [3]).memmap()": ["('a', 'q')"],
    "Params(TD({'a': torch.ones(3)}, [3]))": ["('a', 'q')"],
    "TD({'u': UnbatchedTensor(torch.ones(4))}, [3])": ["('u', 'q')"],
    "lazy_stack([C(torch.ones(3), batch_size=[3])])": ["('x', 'q')"],
}
"""Keys that go on below a tensor or an object."""
_READS = (
    "get({key})", "get({key}, 5)", "get({key}, None)", "get({key}, 5, as_list=True)",
    "get({key}, 5, as_padded_tensor=True)", "pop({key}, 5)", "pop({key})", "get_item_shape({key})",
    "entry_class({key})",
)  # fmt: skip

THROUGH = [
    Case("below leaves", f"{tree}.{read.format(key=key)}")
    for tree, keys in _BELOW_LEAVES.items()
    for key in keys
    for read in _READS
]

CASES = [*GET, *SET, *KEYS, *THROUGH]
