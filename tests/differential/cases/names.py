"""Batch sizes and dimension names, and how each operation carries them."""

from tests.differential.harness import parse_cases

CASES = parse_cases(
    "names",
    r"""
td.batch_size = []; td
td.batch_size = [3, 4]; td
td.batch_size = [3, 5]; td
td.batch_size = 3; td  #! may work
td.batch_size = (); td["n"].batch_size
x = TD({"a": torch.ones(3, 4), "n": TD({"c": torch.ones(3, 4)}, [3])}, [3]); x.batch_size = [3, 4];
    (x, x["n"].batch_size)
nm.batch_size = [2]; nm.names
x = TD({"a": torch.ones(3, 4)}, [3], names=["x"]); x.batch_size = [3, 4]; x.names
td.lock_(); td.batch_size = []; td
(td.shape, td.ndim, td.dim(), td.batch_dims, td.numel(), td.size(), td.size(0), td.ndimension())
(TD({}, []).numel(), TD({}, [0]).numel())
td.size(5)
nm.names = ["p", "q"]; (nm, nm["n"].names)
nm.names = ["p"]
nm.names = None; nm.names
nm.names = ["p", None]; nm["n"].names
nm.names = ["p", "p"]
nm.names = ("p", "q"); nm.names
td.names = ["p"]; (td.names, td["n"].names)
nm.refine_names("x", "y").names
nm.refine_names("p", "y")
td.refine_names("p").names
td.refine_names("p") is td
nm.refine_names(None, "y").names
nm.refine_names(..., "y").names
td.refine_names(...).names
nm.rename("p", "q").names, nm.rename("p", "q") is nm, nm.rename(x="p").names
nm.rename(z="p")
nm.rename("p")
nm.rename(None).names
nm.rename_("p", "q") is nm
nm.rename_(x="p").names
td.rename("p").names
nm["n"].names, nm[0].names, nm[:, 0].names, nm[..., 0].names
nm[None].names, nm[:, None].names, nm[torch.tensor([0, 1])].names, nm[torch.ones(2, 3, dtype=torch.bool)].names
nm[torch.ones(2, dtype=torch.bool)].names, nm[:, [0, 1]].names, nm[[0, 1], [0, 1]].names, nm[0:1].names
nm[...].names
nm.clone().names
nm.transpose(0, 1).names
(nm + 1).names
nm.sum(0).names, nm.sum().batch_size, nm.sum(0, keepdim=True).names
nm.apply(lambda x: x).names, nm.apply(lambda x: x, batch_size=[2]).names
nm.apply(lambda x: x.sum(), batch_size=[]).names
(nm.select("a").names, nm.exclude("a").names, nm.flatten_keys().names)
torch.zeros_like(nm).names
nm.split(1)[0].names
nm.gather(0, torch.tensor([[0]])).names
nm.reshape(6).names
nm.repeat(1, 2).names
nm.unflatten(0, (1, 2)).names
nm.repeat_interleave(2, 0).names
(nm.float().names, nm.detach().names, nm.contiguous().names)
nm.expand(2, 2, 3).names
nm.flatten().names
nm.lock_().names
(nm == nm).names
nm.masked_select(torch.ones(2, 3, dtype=torch.bool)).names
nm.roll(1, 0).names
pickle.loads(pickle.dumps(nm)).names
copy.deepcopy(nm).names
nm.empty().names
torch.stack([nm, nm], dim=2).names
nm.state_dict().keys()
lazy_stack([nm, nm]).names, lazy_stack([nm, nm], 1).names
nm.to_tensordict().names
x = lazy_stack([nm, nm.clone()], 0); x.unflatten(0, (1, -1)).names, x.unflatten(1, (1, -1)).names
x = lazy_stack([nm, nm.clone()], 1); x.flatten(0, 1).names, x.unsqueeze(0).flatten(0, 1).names, x.flatten(0, 0).names
x = lazy_stack([nm.clone(), nm.clone()], 2); write_through(x.unflatten(0, (1, -1)), {"w": torch.ones(1, 2, 3, 2)});
    x.names
x = lazy_stack([nm, nm.clone()], 0); [maybe_dense_stack([x, x.clone()], dim).names for dim in range(3)]
x = lazy_stack([nm, nm.clone()], 0); x.names = ["p", "q", "r"]; x.densify()["n"].names
x = lazy_stack([nm, nm.clone()], 0); x.names = ["p", "q", "r"];
    x[:0].names, x[[]].names, x[[], 0].names, x[:0, 1:].names
x = lazy_stack([nm, nm.clone()], 1); x[:, :0].names, x[:, :0]["n"].names, x[:, []].names
x = lazy_stack([nm, nm.clone()], 0); y = x[torch.tensor([[0, 1], [1, 0]])]; y.names, y[0].names, y[0][0].names
x = lazy_stack([nm, nm.clone()], 0); y = x[torch.tensor([[0, 1], [1, 0]]), None]; y.names, y[0].names, y[0][0].names
# entries that name the dimensions of their parent
x = TD({}, [3, 4], names=["c", "d"]); x[0].names, x[-1].names, x[0, 0].names, x[:, 0].names
x = TD({"n": {"m": {}}}, [3, 4], names=["c", "d"]); x[0].names, x[-1].names, x[0, 0].names, x[:, 0].names
x = TD({"n": TD({}, [3, 4], names=["c", "d"])}, [3], names=["c"]); x[0]["n"].names
nt["y"] = TD({"z": torch.zeros(3, 2)}, [3, 2]); nt["x"] = TD({}, [3, 4], names=["a", "b"]);
    nt.names, nt["y"].names, nt[:2].names
nt["y"] = TD({"z": torch.zeros(3, 2)}, [3, 2]); nt.set("x", TD({}, [3, 4], names=["a", "b"])); nt.names, nt["y"].names
nt["y"] = TD({"z": torch.zeros(3, 2)}, [3, 2]); nt.update({"x": TD({}, [3, 4], names=["a", "b"])});
    nt.names, nt["y"].names
nt["y"] = TD({"z": torch.zeros(3, 2)}, [3, 2]); nt.setdefault("x", TD({}, [3, 4], names=["a", "b"]));
    nt.names, nt["y"].names
x = lazy_stack(list(td.unbind(0))); x["x"] = TD({}, [3, 4], names=["a", "b"]); x.names, x["n"].names, x[:2].names
x = lazy_stack(list(td.unbind(0))); x.set("x", TD({}, [3, 4], names=["a", "b"])); x.names, x["n"].names
x = lazy_stack(list(td.unbind(0))); x.setdefault("x", TD({}, [3, 4], names=["a", "b"])); x.names, x["n"].names
nm["w"] = TD({}, [2, 3], names=["z", "w"])
x = lazy_stack(list(nm.unbind(0))); x.names = ["a", "b"]; x["w"] = TD({}, [2, 3], names=["z", "w"])
td["n", "x"] = TD({}, [3, 4], names=["a", "b"]); td["n"].names, td["n", "x"].names
td["new", "x"] = TD({}, [3, 4], names=["a", "b"]); td["new"].names, td["new", "x"].names
x = lazy_stack(list(td.unbind(0))); x["n", "x"] = TD({}, [3, 4], names=["a", "b"]); x["n"].names, x["n", "x"].names
TD({"x": TD({}, [3, 4], names=["a", "b"]), "y": TD({}, [3, 2])}, [3])["y"].names
TD({"x": TD({}, [3, 4], names=[None, "b"])}, [3]).names
x, y, z = (TD({"z": torch.zeros(3)}, [3], names=n) for n in (["a"], ["b"], None));
    [torch.stack(p).names for p in ([x, x], [x, y], [x, z], [z, x])]
x, y, z = (TD({"z": torch.zeros(3)}, [3], names=n) for n in (["a"], ["b"], None));
    [maybe_dense_stack(p).names for p in ([x, x], [x, y], [x, z], [z, x])]
lazy_stack([TD({}, [3], names=["a"]), TD({}, [3], names=["b"])])
nm.names = ["n", "n"]
x = TD({"n": TD({"e": {"f": torch.zeros(3, 4)}}, [3, 4], names=["c", "d"])}, [3], names=["c"]); x.names = ["d"]
x = TD({"n": TD({"e": {"f": torch.zeros(3, 4)}}, [3, 4], names=["c", "d"])}, [3], names=["c"]);
    lazy_stack([x, x], -1).names = ["c", "d"]
x = TD({"n": TD({"e": {"f": torch.zeros(3, 4)}}, [3, 4], names=["c", "d"])}, [3], names=["c"]);
    TD({"deep": x}, [3]).names = ["d"]
x = TD({"n": TD({"e": {"f": torch.zeros(3, 4)}}, [3, 4], names=["c", "d"])}, [3], names=["c"]);
    y = lazy_stack([x, x], 0); y.names = ["q", "r"]; y["n"].names, y["n"].contiguous().names
x = TD({"a": torch.ones(2, 4), "b": TD({"c": torch.ones(2, 1, 1, 4)}, [2, 1, 1])}, [2]);
    x.expand_as(torch.zeros(3, 2))["b"].shape
""",
)
