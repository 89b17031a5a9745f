"""``NonTensorData`` and ``NonTensorStack``."""

from tests.differential.harness import parse_cases

CASES = parse_cases(
    "nontensor",
    r"""
NonTensorData("x"), NonTensorData("x", batch_size=[3])
(NonTensorData("x").data, NonTensorData("x").tolist(), NonTensorData("x", batch_size=[2]).tolist(),
    NonTensorData([1, 2]).tolist())
NonTensorData(NonTensorData("x")).data, NonTensorData(data=torch.ones(3)).data
(NonTensorData("x").batch_size, NonTensorData("x").shape, NonTensorData("x").device)
NonTensorData("x", batch_size=[3])[0], NonTensorData("x", batch_size=[3])[0:2]
NonTensorData("x", batch_size=[3])[torch.tensor([True, False, True])]
len(NonTensorData("x", batch_size=[3]))
NonTensorData("x") == NonTensorData("x"), NonTensorData("x", batch_size=[2]) == NonTensorData("y", batch_size=[2])
NonTensorData("x") == "x"
NonTensorData("x").to_dict()
NonTensorData("x").clone(), NonTensorData("x").clone() is NonTensorData("x")
d = [1]; NonTensorData(d).clone().data is d
torch.stack([NonTensorData("x"), NonTensorData("x")]), torch.stack([NonTensorData("x"), NonTensorData("y")])
torch.stack([NonTensorData("x", batch_size=[2]), NonTensorData("y", batch_size=[2])])
torch.stack([NonTensorData("x", batch_size=[2]), NonTensorData("y", batch_size=[2])], 1)
torch.cat([NonTensorData("x", batch_size=[2]), NonTensorData("y", batch_size=[2])])
lazy_stack([NonTensorData("x"), NonTensorData("x")])
maybe_dense_stack([NonTensorData("x"), NonTensorData("x")])
NonTensorStack("x", "y")
NonTensorStack("x", "y").tolist()
NonTensorStack("x", "y").data
NonTensorStack("x", "x").data
NonTensorStack("x", "y")[0], NonTensorStack("x", "y")[0].data, NonTensorStack("x", "y")[:1]
NonTensorStack("x", "y", stack_dim=0).batch_size
NonTensorStack.from_list(["a", "b"]), NonTensorStack.from_list([["a", "b"], ["c", "d"]])
NonTensorStack.from_list([["a", "b"], ["c", "d"]]).tolist()
NonTensorStack("x", "y") == NonTensorStack("x", "z"), NonTensorStack("x", "y") == "x"
NonTensorStack("x", "y").unbind(0)
NonTensorStack("x", "y").to_dict()
x = NonTensorStack("x", "y"); x[0] = "z"; x.tolist()
x = NonTensorStack("x", "y"); x[0] = NonTensorData("z"); x.tolist()
x = NonTensorStack("x", "y"); x.update(NonTensorStack("a", "b")); x.tolist()
x = NonTensorData("x", batch_size=[2]); x[0] = "z"; x  #! may work
x = NonTensorData("x"); x.update(NonTensorData("z")); x
x = NonTensorData("x"); x.update_(NonTensorData("z")); x
x = NonTensorData("x"); x.data = "z"; x
NonTensorData("x", batch_size=[2]).maybe_to_stack()
NonTensorData("x", batch_size=[2]).unbind(0)
NonTensorData("x", batch_size=[2]).expand(3, 2)
NonTensorData("x", batch_size=[2]).view(1, 2)
NonTensorData("x", batch_size=[2]).reshape(2, 1)
NonTensorData("x", batch_size=[2]).unsqueeze(0)
NonTensorData("x").to("cpu").device
NonTensorData("x").apply(lambda x: 1 / 0)
NonTensorData("x").is_locked
NonTensorData("x").is_empty()
list(NonTensorData("x").keys())
pickle.loads(pickle.dumps(NonTensorData("x")))
NonTensorData("x").numpy()
NonTensorData("x") + 1
-NonTensorData("x")
bool(NonTensorData("x"))
str(NonTensorData("x"))
(isinstance(NonTensorData("x"), TensorDictBase), isinstance(NonTensorData("x"), TensorCollection),
    isinstance(NonTensorStack("x", "y"), TensorDictBase))
td["s"] = NonTensorData("q"); td.get("s")
td["s"] = NonTensorData("q", batch_size=[3]); td.get("s")
td["s"] = NonTensorData("q", batch_size=[2]); td.get("s")
td["s"] = NonTensorStack("a", "b", "c"); td["s"]
td["s"] = NonTensorStack("a", "b"); td["s"]
td["s"] = NonTensorStack("a", "b", "c"); (td[0]["s"], td[1:]["s"])
td["s"] = NonTensorStack("a", "b", "c"); td[0] = td[1].clone(); td["s"]
td["s"] = NonTensorStack("a", "b", "c"); td.apply(lambda x: x + 1)["s"]
td["s"] = NonTensorStack("a", "b", "c"); td.reshape(3, 1).get("s")
td["s"] = NonTensorStack("a", "b", "c"); td.unsqueeze(0).get("s")
td["s"] = NonTensorStack("a", "b", "c"); td.split(2)[0]["s"]
td["s"] = NonTensorStack("a", "b", "c"); torch.stack([td, td])["s"]
td["s"] = NonTensorStack("a", "b", "c"); torch.cat([td, td])["s"]
td["s"] = NonTensorStack("a", "b", "c"); td.to_dict()["s"]
td["s"] = NonTensorStack("a", "b", "c"); td.tolist()[0]["s"]
td["s"] = NonTensorStack("a", "b", "c"); td.flip(0)["s"]
td["s"] = NonTensorStack("a", "b", "c"); td.clone()["s"]
td["s"] = NonTensorStack("a", "b", "c"); (list(td.keys(True, True)), list(td.keys(True)))
td["s"] = NonTensorStack("a", "b", "c"); td.expand(2, 3)["s"]
td["s"] = NonTensorStack("a", "b", "c"); td.gather(0, torch.tensor([0, 2]))["s"]
td["s"] = NonTensorStack("a", "b", "c"); td.masked_select(torch.tensor([True, False, True]))["s"]
td["s"] = "q"; td.masked_fill(torch.tensor([True, False, True]), 0)["s"]
td["s"] = "q"; td.where(torch.tensor([True, False, True]), td)["s"]
td["s"] = "q"; td["s"] = "r"; td["s"]
td["s"] = "q"; td[1] = TD({"s": "w"}, []); td["s"]
td["s"] = "q"; td.update({"s": "w"}); td["s"]
td["s"] = "q"; td.update_({"s": "w"}); td["s"]
td["s"] = "q"; td.lock_(); td.update_({"s": "w"}); td["s"]
td["s"] = "q"; td.lock_(); td.set_("s", "w"); td["s"]
td["s"] = "q"; td.lock_(); td.set_non_tensor("s", "w"); td["s"]
td["s"] = "q"; td.update_at_({"s": "w"}, 0); td["s"]  #! may work
td["s"] = "q"; td.zero_()["s"]
td["s"] = "q"; td.pop("s")
x = TD(s=[["a", "b"], ["c", "d"]], batch_size=[2, 2])[:, :1]; x.view(2), x.reshape(2)
x = TD(s=[["a", "b"], ["c", "d"]], batch_size=[2, 2])[:1, :1]; x.reshape(()), x.reshape(1, 1, 1)
lazy_stack([TD(a=1)]).reshape(())
x = TD(s=["a", "b"], batch_size=[2])[:0]; x == x.clone()  #! may work
x = TD(s=["a", "b"], batch_size=[2])[:0]; x | x, x ^ x, x != 1  #! may work
x = TD(s=["a", "b"], batch_size=[2])[False]; x != x.clone()
x = TD(s="a", batch_size=[2])[:0]; x == x.clone()
nt.select("a", "s").add(nt.select("a", "s"), default="intersection")
nt.add(nt.select("a"), default="intersection")
nt.select("a").mul(nt, default="intersection")
x = TD(n=nt, b=torch.ones(3), batch_size=[3]); x.sub(x.select(("n", "a")), default="intersection")
lazy_stack([nt, nt.clone()]).add(lazy_stack([nt, nt]).select("a"), default="intersection")
TD(a=torch.ones(3), m=MetaData("w"), batch_size=[3]).add(TD(a=torch.ones(3), batch_size=[3]), default="intersection")
[td.clone().set_non_tensor("x", v)["x"] is v for v in (b"bytes", None, {"nested": [1, 2]}, {1, 2}, print, 1 + 2j)]
x = TD({"x": "a"}, [3]); x[1] = {"x": "a"}; y = type(x.get("x")); x[1] = {"x": "b"};
    x[:2] = TD({"x": ["p", "q"]}, [2]); x[torch.tensor([False, False, True])] = {"x": "z"}; (y, x["x"])
x = TD({}, [3]); x[2] = TD({"x": "2"}); x[0] = TD({"x": "0"}); x[1] = TD({"x": "1"}); x["x"]
torch.cat([TD({"x": "a"}, [2]), TD({"x": "a"}, [2])])["x"], torch.cat([TD({"x": "a"}, [2]), TD({"x": "b"}, [1])])["x"]
TD({"x": [[], []]}, [2])["x"].shape
x = TD({"x": ["c", "b", "a"]}, [3]); y = x["x"]; y.append("d"); y[0] = "changed"; (x["x"], y[0])
x = TD({"x": ["c", "b", "a"]}, [3]); y = x["x"]; del y[0]; y[0] = "changed"; x["x"]
x = TD({"x": "word", "l": ["p", "q"], "t": torch.ones(2)}, [2]);
    [(y["x"], y["l"]) for y in (x + 1, x.to(torch.float64), x.clone(), x.detach(), x.float())]
x = TD({"x": "a", "l": ["p", "q"]}, [2]); y = x == TD({"x": ["a", "b"], "l": ["z", "q"]}, [2]);
    (y["x"], y["l"], (x != x)["x"])
x = TD({"x": "a", "l": ["p", "q"]}, [2]).lock_(); y = x[:1]; x.set_("x", "b"); x.update_({"l": ["r", "s"]});
    (x["x"], x["l"], y["x"])
NonTensorData("a", batch_size=[2, 1]).tolist()
pickle.loads(pickle.dumps(TD({"x": {"a", "b"}, "l": ["p", "q"]}, [2], names=["time"]))).get("x").names
x = NonTensorStack.from_list([["a", "b", "c"], ["d", "e", "f"]]);
    [y.tolist() for y in (x.flip(1), x.roll(1, 0), x.gather(1, torch.tensor([[2], [0]])), x.permute(1, 0),
    x.reshape(3, 2), x[:, Mask])]
x = TD({"x": "a", "l": ["p", "q"]}, [2]).where(torch.tensor([True, False]), TD({"x": "b", "l": ["r", "s"]}, [2]));
    (x["x"], x["l"])
x = TD({"x": [["a", "b"], ["c"]]}, [2]); (x["x"], x[1]["x"])
NonTensorStack(TD())
NonTensorData("a").lock_().data = "c"
x = TD({"x": ["a", "b"]}, [2]); x["y"] = x["x"]; x[0] = TD({"y": "c"}); (x["x"], x["y"])
x = LazyStackedTensorDict(*[TD({"s": "a", "t": t}) for t in "xy"]);
    within(set_capture_non_tensor_stack(True), lambda: (x["s"], x["t"], x.contiguous()["s"]))
x = TD({"x": [["a", "b"], ["c", "d"]]}, [2, 2]); y = copy.deepcopy(x["x"]); y[0][1] = "R"; x["x"], y
# metadata of a whole tree
isinstance(MetaData("x"), lib.NonTensorDataBase), isinstance(MetaData("x"), NonTensorData),
    is_non_tensor(MetaData("x")), is_tensorclass(MetaData("x"))
MetaData[int] is MetaData[int], issubclass(MetaData[int], MetaData), repr(MetaData("x", batch_size=[2])),
    repr(MetaData[int](3))
x = TD({"m": MetaData("x"), "t": MetaData[int](3), "a": torch.zeros(2)}, [2]);
    repr(x), list(x.keys(True, True)), list(x.keys(True, True, is_leaf=is_leaf_nontensor)), x.to_dict()["m"],
    x.get_non_tensor("t"), x.select("m").is_empty()
MetaData(NonTensorData("y")).data, NonTensorData(MetaData("y")).data
MetaData[int]("x")
MetaData[str](3)
MetaData[list[int]]((1,))
MetaData[dict]([])
x = pickle.loads(pickle.dumps(MetaData[int](3))); type(x) is MetaData[int], x.data
torch.stack([TD({"m": MetaData(v)}, [2]) for v in "xy"]).get("m").tolist()
x = lazy_stack([TD({"m": MetaData(v)}, [2]) for v in "xy"]); x.get("m").tolist(), x[1]["m"]
x = TD({"m": MetaData("x")}, [2, 3]); x[0] = {"m": "y"}; x.get("m").tolist()
x = TD({"m": MetaData("x")}, [2, 3]); x.set_at_("m", "y", 0); x.get("m").tolist()
x = TD({"m": MetaData("x")}, [2, 3]); x[0] = TD({"m": MetaData("x")}, [2, 3])[1]; type(x.get("m"))
TD({"m": MetaData("x")}, [2, 3]).pad([0, 1, 0, 0]).get("m").tolist()
x = TD({"m": MetaData("x"), "t": MetaData[str]("x")}, [2]).lock_(); x.set_("m", "y"); x.update_({"t": "y"});
    type(x.get("m")), type(x.get("t")), x["m"], x["t"]
x = TD({"m": MetaData("x")}, [2]); x["m"] = "plain"; type(x.get("m"))
x = TD({"m": MetaData("x")}, [2]); [(x == y).all() for y in (x.clone(), x.to_dict(), lazy_stack(list(x.unbind(0))))],
    (x == TD({"m": MetaData("y")}, [2])).all()
bool(MetaData("x") == NonTensorData("x")), bool(MetaData("x") == MetaData("y"))
c.s = MetaData("z"); c.s, c[0].s, torch.stack([c, c]).s
TD({"m": MetaData("x", batch_size=[5])}, [2]).get("m").batch_size, TD({"m": MetaData("x",
    batch_size=[5])}).get("m").batch_size
TD({"m": MetaData("x"), "a": torch.zeros(3, 4)}).auto_batch_size_().get("m").batch_size
x = TD({"m": MetaData("x"), "n": TD({"t": MetaData[str]("y")}, [2])}, [2]);
    [(type(y.get("m")), type(y["n"].get("t")), y["m"]) for y in (x[0], x[:1], x.clone(), x.reshape(1, 2), x.expand(2,
    2), x.to("cpu"), x.split(1)[0], x.gather(0, torch.tensor([0])), x.flatten_keys("-").unflatten_keys("-"),
    torch.cat([x, x]), copy.deepcopy(x), pickle.loads(pickle.dumps(x)))]
type(torch.stack([MetaData[int](1), MetaData(1)])).__name__, type(torch.stack([MetaData[int](1),
    MetaData[int](1)])) is MetaData[int]
""",
)
