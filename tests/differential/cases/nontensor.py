"""``NonTensorData`` and ``NonTensorStack``."""

from __future__ import annotations

from tests.differential.harness import parse_cases

CASES = parse_cases(
    "nontensor",
    r"""
NonTensorData("x")
NonTensorData("x", batch_size=[3])
(NonTensorData("x").data, NonTensorData("x").tolist(), NonTensorData("x", batch_size=[2]).tolist(),
    NonTensorData([1, 2]).tolist())
NonTensorData(NonTensorData("x")).data
NonTensorData(data=torch.ones(3)).data
(NonTensorData("x").batch_size, NonTensorData("x").shape, NonTensorData("x").device)
NonTensorData("x", batch_size=[3])[0]
NonTensorData("x", batch_size=[3])[0:2]
NonTensorData("x", batch_size=[3])[torch.tensor([True, False, True])]
len(NonTensorData("x", batch_size=[3]))
NonTensorData("x") == NonTensorData("x")
NonTensorData("x", batch_size=[2]) == NonTensorData("y", batch_size=[2])
NonTensorData("x") == "x"
NonTensorData("x").to_dict()
NonTensorData("x").clone()
NonTensorData("x").clone() is NonTensorData("x")
d = [1]; NonTensorData(d).clone().data is d
torch.stack([NonTensorData("x"), NonTensorData("x")])
torch.stack([NonTensorData("x"), NonTensorData("y")])
torch.stack([NonTensorData("x", batch_size=[2]), NonTensorData("y", batch_size=[2])])
torch.stack([NonTensorData("x", batch_size=[2]), NonTensorData("y", batch_size=[2])], 1)
torch.cat([NonTensorData("x", batch_size=[2]), NonTensorData("y", batch_size=[2])])
lazy_stack([NonTensorData("x"), NonTensorData("x")])
maybe_dense_stack([NonTensorData("x"), NonTensorData("x")])
NonTensorStack("x", "y")
NonTensorStack("x", "y").tolist()
NonTensorStack("x", "y").data
NonTensorStack("x", "x").data
NonTensorStack("x", "y")[0]
NonTensorStack("x", "y")[0].data
NonTensorStack("x", "y")[:1]
NonTensorStack("x", "y", stack_dim=0).batch_size
NonTensorStack.from_list(["a", "b"])
NonTensorStack.from_list([["a", "b"], ["c", "d"]])
NonTensorStack.from_list([["a", "b"], ["c", "d"]]).tolist()
NonTensorStack("x", "y") == NonTensorStack("x", "z")
NonTensorStack("x", "y") == "x"
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
""",
)
