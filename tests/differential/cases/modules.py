"""Modules that read and write tensordicts: `mods` is the library's `nn`, `nn` is torch's."""

from tests.differential.harness import parse_cases

CASES = parse_cases(
    "modules",
    r"""
# -- TensorDictModule: keys, outputs, where they go
Mod(nn.Linear(4, 2), ["a"], ["o"])(fl)
Mod(nn.Linear(4, 2), "a", ("o", "p"))(fl)
Mod(nn.Linear(2, 2), [("n", "c")], [("n", "d")])(fl)
Mod(lambda x, y: (x + 1, y), ["a", ("n", "c")], ["_", "p"])(td)
Mod(lambda x: {"o": x, "p": x + 1, "q": x}, ["a"], ["p", "o"])(td)
Mod(lambda x: TD({"g": {"h": x}, "k": x}, [3]), ["a"], [("g", "h"), "k"])(td)
Mod(lambda x: TD({"g": x}, [3]), ["a"], ["o"])(td)
Mod(lambda x: (x,), ["a"], ["o"])(td)
Mod(lambda x: None, ["a"], [])(td)
Mod(lambda x: "word", ["a"], ["o"])(td)
Mod(lambda s: s + "!", ["s"], ["o"])(nt)
Mod(lambda x: x + 1, ["a"], ["a"])(td)
Mod(lambda *, x, y: x * y.unsqueeze(-1), {"x": "a", "y": "b"}, ["o"])(td)
Mod(lambda *, x, y: x * y.unsqueeze(-1), {"a": "x", "b": "y"}, ["o"], out_to_in_map=False)(td)
Mod(lambda x, y, z: x + y + z, {"x": "b", "y": "b", "z": "b"}, ["o"])(td)
Mod(lambda x: x + 1, ["a"], ["o"], inplace=False)(td), Mod(lambda x: x + 1, ["a"], ["o"], inplace="empty")(td)
Mod(lambda x: x + 1, ["a"], ["o"], inplace=False)(td, tensordict_out=TD({"q": Mask}, [3]))
Mod(lambda x, k=1: x * k, ["a"], ["o"])(td, k=3)
Mod(lambda x, k: x * k, ["a"], ["o"], method_kwargs={"k": 3})(td)
Mod(nn.Linear(4, 2), ["a"], ["o"], method="extra_repr")(fl)["o"]
Mod(lambda x: x, ["x"], ["o"])(c)
Mod(lambda x: x * 2, ["b"], ["o"])(lz)
Mod(lambda x: x, ["a"], ["o"], get_kwargs={"as_padded_tensor": True})(tall)
Mod(lambda: torch.zeros(3), [], ["o"])(td)
Mod(nn.Linear(4, 2), ["a"], ["o"]).weight.shape
list(Mod(nn.Linear(4, 2), ["a"], ["o"]).state_dict())
repr(Mod(nn.Linear(4, 2), ["a"], ["o"]))
# -- what is wrong
Mod(nn.Linear(4, 4), ["zz"], ["o"])(td)
Mod(nn.Linear(4, 4), ["zz"], ["o"], strict=True)(td)
Mod(lambda x: x, ["zz"], ["o"])(td)
Mod(lambda x: (x, x), ["a"], ["o"])(td)
Mod(lambda x: x, ["a"], ["o", "p"])(td)
Mod(lambda x: (x, x), ["a"], ["o", "p", "q"])(td)
Mod(lambda x: None, ["a"], ["o"])(td)
Mod(lambda x: {"o": x}, ["a"], ["p", "o"])(td)
Mod(lambda x: x.sum(), ["a"], ["o"])(td)
Mod(lambda x: x + 1, ["a"], ["o"])(td.lock_())
Mod(lambda x: x, [1], ["o"])
Mod(lambda x: x, None, ["o"])
Mod(lambda x: x, ["a"], ["o"], inplace="other")
Mod(3, ["a"], ["o"])
Mod(nn.Linear(4, 4), ["a"], ["o"], method="nothing")(td)
Mod(nn.Linear(4, 4), ["a"], ["o"]).nothing
Mod(nn.Linear(5, 4), ["a"], ["o"])(fl)
# -- selecting outputs
m = Mod(lambda x: (x, x + 1), ["a"], ["o", "p"]); (m.select_out_keys("p")(td), m.out_keys, m.out_keys_source)
m = Mod(lambda x: (x, x + 1), ["a"], ["o", "p"]); (m.select_out_keys("p").reset_out_keys()(td), m.out_keys)
m = Mod(lambda x: (x, x + 1), ["a"], ["a", "p"]); m.select_out_keys("p")(td)
m = Mod(lambda x: (x, x + 1), ["a"], [("o", "q"), ("o", "p")]); m.select_out_keys(("o", "p"))(td)
Mod(lambda x: (x, x), ["a"], ["o", "p"], inplace=False).select_out_keys("o")(td)
Mod(lambda x: (x, x), ["a"], ["o", "p"]).select_out_keys("q")
Mod(lambda x: (x, x), ["a"], ["o", "p"]).select_out_keys("o").select_out_keys("p")
Mod(lambda x: (x, x + 1), ["a"], ["o", "p"]).select_out_keys("p")(torch.ones(2))
# -- called with tensors
Mod(lambda x, y: (x, y + 1), ["a", ("n", "c")], ["o", ("p", "q")])(torch.ones(3), torch.ones(3, 2))
Mod(lambda x, y: (x, y + 1), ["a", ("n", "c")], ["o", ("p", "q")])(torch.ones(3), n_c=torch.ones(3, 2))
Mod(lambda x: x * 2, ["a"], ["o"])(a=torch.ones(3))
Mod(lambda x: x * 2, ["a"], ["o"])(tensordict=td)
Mod(lambda x: x, ["a"], ["o"])(a=3), Mod(lambda x: x, ["a"], ["o"])(a="word")
Mod(lambda x: x, ["a"], ["o"])(torch.ones(1), a=torch.ones(1))
Mod(lambda x: x, ["a"], ["o"])(torch.ones(1), torch.ones(1))
Mod(lambda x: x, ["a"], ["_", "o"])(torch.ones(1))
Mod(lambda x: x, ["a"], ["o", "p"])()
mods.dispatch(source=["a"], dest=["o"])(lambda tensordict: tensordict.set("o", tensordict["a"] + 1))(torch.ones(2))
mods.dispatch(source=["a"], dest=["o"])(lambda tensordict: tensordict.set("o", tensordict["a"] + 1))(td)
mods.dispatch(source=["a"], dest=["o", "p"])(lambda tensordict: tensordict.set("o",
    tensordict["a"] + 1))(torch.ones(2))
mods.dispatch(source=["a"], dest=["bs"])(lambda tensordict: tensordict.set("bs",
    torch.zeros(tensordict.batch_size)))(torch.ones(2, 3)).shape
mods.dispatch(source=["a", "b"], dest=["bs"])(lambda tensordict: tensordict.set("bs",
    torch.zeros(tensordict.batch_size)))(torch.ones(2, 3), torch.ones(2, 4)).shape
mods.dispatch(source=["a"], dest=["bs"], auto_batch_size=False)(lambda tensordict: tensordict.set("bs",
    torch.zeros(tensordict.batch_size)))(torch.ones(2, 3)).shape
mods.dispatch(source=[("a", "b")], dest=["o"], separator="__")(lambda tensordict: tensordict.set("o", tensordict["a",
    "b"]))(a__b=torch.ones(2))
mods.dispatch(lambda td: td)
mods.as_tensordict_module(in_keys="a", out_keys=["o", "p"])(lambda a: (a + 1, a))(td)
mods.as_tensordict_module(in_keys="a", out_keys="o")(lambda a: a + 1)(a=torch.ones(2))
mods.make_tensordict({"a": torch.ones(3), "b": {"c": torch.ones(3, 2)}}, auto_batch_size=True)
# -- other modules
mods.WrapModule(lambda td: td.reshape(-1))(nm)
mods.WrapModule(lambda td: td.select("a").apply(lambda x: x + 1), inplace=True)(td)
mods.WrapModule(lambda td: td["a"])(td), mods.WrapModule(lambda td: td, in_keys=["a"], out_keys=["b"]).in_keys
mods.TensorDictModuleWrapper(Mod(lambda x: (x, x), ["a"], ["o", "p"]))(td)
w = mods.TensorDictModuleWrapper(Mod(lambda x: (x, x), ["a"], ["o", "p"])); (w.select_out_keys("o")(td), w.out_keys)
mods.TensorDictModuleWrapper(Mod(nn.Linear(3, 2), ["a"], ["o"])).weight.shape
mods.TensorDictModuleBase.is_tdmodule_compatible(nn.Linear(1, 1))
# -- sequences
s = Seq(Mod(lambda x: x + 1, ["a"], ["h"]), Mod(lambda h: h * 2, ["h"], ["o"])); (s(td), s.in_keys, s.out_keys)
s = Seq({"x": Mod(lambda x: x + 1, ["a"], ["h"]), "y": Mod(lambda h: h * 2, ["h"], ["o"])});
    (s(td), s["y"].in_keys, len(s))
s = Seq([Mod(lambda x: x + 1, ["a"], ["h"])]); s(td)
s = Seq(Mod(lambda x: x + 1, ["a"], ["h"]), lambda td: td.reshape(-1)); (s(nm), s.out_keys)
s = Seq(Mod(abs, ["a"], ["q"]), Mod(abs, ["q"], ["a"]), Mod(abs, ["a"], ["q"])); (s.in_keys, s.out_keys)
s = Seq(Mod(lambda x: x + 1, ["a"], ["h"]), Mod(lambda h: h * 2, ["h"], ["o"]), selected_out_keys=["o"]);
    (s(td), s.out_keys, s.reset_out_keys().out_keys)
s = Seq(Mod(lambda x: x + 1, ["a"], ["h"]), Mod(lambda h: h * 2, ["h"], ["o"]), inplace=True); s(td)
s = Seq(Mod(lambda x: x + 1, ["a"], ["h"]), Mod(lambda h: h * 2, ["h"], ["o"]), inplace=False); s(td)
s = Seq(Mod(lambda x: x + 1, ["a"], ["h"]), Mod(lambda h: h * 2, ["h"], ["o"]), inplace="empty"); s(td)
s = Seq(Mod(lambda x: x + 1, ["a"], ["h"], inplace=False), Mod(lambda h: h * 2, ["h"], ["o"], inplace=False),
    inplace=True); s(td)
s = Seq(Mod(lambda x: x + 1, ["a"], ["h"], inplace=False), Mod(lambda h: h * 2, ["h"], ["o"], inplace=False)); s(td)
s = Seq(Mod(lambda x: x + 1, ["a"], ["h"]), Mod(lambda h: h * 2, ["h"], ["o"])); s(td, tensordict_out=TD({}, [3]))
s = Seq(Mod(lambda x: x + 1, ["a"], ["h"]), Mod(lambda h: h * 2, ["h"], ["o"])); s(a=torch.ones(2))
s = Seq(Mod(lambda x: x + 1, ["a"], ["h"])); s(td, other=1)
s = Seq(Mod(lambda x: x + 1, ["a"], ["h"]), selected_out_keys=["zz"])
s = Seq(Mod(nn.Linear(4, 4), ["zz"], ["h"])); s(td)
s = Seq(Mod(lambda x: x + 1, ["a"], ["h"]), Mod(lambda h: h, ["zz"], ["o"]), partial_tolerant=True); s(td)
s = Seq(Mod(lambda x: x + 1, ["k1"], ["h"]), Mod(lambda h: h, ["b"], ["o"]), partial_tolerant=True); s(lz)
s = Seq(Mod(abs, ["a"], ["h"]), Mod(abs, ["h"], ["o"])); s[1] = Mod(abs, ["h"], ["z"]); (s.in_keys, s.out_keys)
s = Seq(Mod(abs, ["a"], ["h"]), Mod(abs, ["h"], ["o"])); del s[0]; (s.in_keys, s.out_keys)
s = Seq(Mod(abs, ["a"], ["h"]), Mod(abs, ["h"], ["o"])); (s[-1].in_keys, s[1:].in_keys)
s = Seq(Mod(abs, ["a"], ["b"]), Mod(abs, ["b"], ["c"]), Mod(abs, ["c"], ["d"]), Mod(abs, ["a"], ["e"]));
    (s.select_subsequence(in_keys=["c"]).out_keys, s.select_subsequence(out_keys=["c"]).out_keys,
    len(s.select_subsequence(in_keys=["a"], out_keys=["e"])))
s = Seq(Seq(Mod(abs, ["a"], ["b"]), Mod(abs, ["b"], ["c"])), Seq(Mod(abs, ["b"], ["d"]), Mod(abs, ["d"], ["e"])));
    q = s.select_subsequence(in_keys=["b", "d"], out_keys=["e"]); (len(q), q[0].in_keys, q[0].out_keys)
s = Seq(Mod(abs, ["a"], ["h"])); s.select_subsequence(in_keys=["zz"])
s = Seq(Mod(abs, ["a"], ["h"])); s.select_subsequence(out_keys=["zz"])
repr(Seq(Mod(nn.Linear(3, 4), ["a"], ["h"]), Mod(nn.Linear(4, 4), ["h"], ["o"])))
list(Seq(Seq(Mod(nn.Linear(3, 4), ["a"], ["h"])), Mod(nn.Linear(4, 4), ["h"], ["o"])).state_dict())
# -- resetting, skipping
m = Mod(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), ["a"], ["o"]); before = m.module[0].weight.clone();
    (m.reset_parameters_recursive(), bool((before == m.module[0].weight).any()))
m = Mod(nn.Linear(2, 2), ["a"], ["o"]); p = TD.from_module(m).data.clone(); r = m.reset_parameters_recursive(p);
    (r["module", "weight"].requires_grad, r["module", "weight"].data_ptr() == p["module", "weight"].data_ptr())
m = Mod(nn.Linear(2, 2), ["a"], ["o"]); m.reset_parameters_recursive(TD.from_module(m).expand(3))
m = Mod(lambda x: x + 1, ["a"], ["b"]); (within(mods.set_skip_existing(), lambda: m(td)["b"]), mods.skip_existing())
m = Mod(lambda x: x + 1, ["a"], ["a"]); within(mods.set_skip_existing(), lambda: m(td)["a"])
m = Mod(lambda x: x[:, 0], ["a"], ["b"]); within(mods.set_skip_existing(["z"]), lambda: m(td)["b"])
mods.set_skip_existing(None).__enter__()
Mod(torch.neg, ["a"], ["o"], inplace=None)(td)
s = Seq(Mod(lambda x: x + 1, ["x"], ["h"]), Mod(lambda z: z * 2, ["z"], ["o"]), partial_tolerant=True);
    x = lazy_stack([TD(x=torch.ones(2)), TD(z=torch.ones(3)), TD()]);
    s(x) is x, [sorted(m.keys()) for m in x.tensordicts]
Mod(nn.Linear(2, 2), [("n", "c")], ["o"])(TD({"n": {"c": torch.ones(0, 2)}}, [0]))["o"].shape
type(Mod(lambda x: x + 1, ["a"], ["o"])(ds))
""",
)
