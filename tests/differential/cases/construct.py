"""Building a TensorDict: the constructor, and every ``from_*``."""

from tests.differential.harness import parse_cases

CONSTRUCT = parse_cases(
    "construct",
    r"""
TD({"a": torch.ones(3)}, [3]), TD({"a": torch.ones(3)}), TD({"a": torch.ones(3, 4), "b": torch.ones(3, 4)}), TD()
TD({}), TD({}, 3), TD({}, torch.Size([2])), TD({"a": 1}, [])
TD({"a": 1.5}, [2])
TD({"a": True}, []), TD({"a": [1, 2, 3]}, [3]), TD({"a": [1, 2, 3]}, []), TD({"a": (1, 2)}, [])
TD({"a": np.ones(3)}, [3]), TD({"a": np.float32(3)}, []), TD({"a": np.array(["x", "y"])}, [3]), TD({"a": "str"}, [2])
TD({"a": None}, [2]), TD({"a": b"by"}, [2]), TD({"a": ["x", "y"]}, [2])
TD({"a": ["x", "y", "z"]}, [2])
TD({"a": [1, "x"]}, [2]), TD({"a": []}, [0]), TD({"a": {"b": torch.ones(3, 2)}}, [3])
TD({"a": {"b": torch.ones(3, 2)}}, [3])["a"].batch_size
TD({"a": {}}, [3]), TD({("a", "b"): torch.ones(3)}, [3]), TD({("a", ("b",)): torch.ones(3)}, [3])
TD({"a": TD({"b": torch.ones(3, 2)}, [3, 2])}, [3]), TD({"a": TD({"b": torch.ones(3, 2)}, [])}, [3])
TD({"a": TD({"b": torch.ones(2, 2)}, [])}, [3])
TD({"a": TD({"b": torch.ones(2, 2)}, [2])}, [3])
TD({1: torch.ones(3)}, [3])
TD({"a": torch.ones(3)}, [4])
TD({"a": torch.ones(3)}, [3, 1])
TD({"a": torch.ones(())}, [3])
TD(a=torch.ones(3), b=torch.ones(3)), TD(a=torch.ones(3), batch_size=[3])
TD({"a": torch.ones(3)}, [3], b=torch.ones(3))
TD({"a": torch.ones(3)}, [3], names=["x"])
TD({"a": torch.ones(3)}, [3], names=["x", "y"])
TD({"a": torch.ones(3, 3)}, [3, 3], names=["x", "x"])
TD({"a": torch.ones(3, 3)}, [3, 3], names=["x", None])
TD({"a": torch.ones(3, 3)}, [3, 3], names=[None, None]).names, TD({"a": torch.ones(3, 3)}, [3, 3]).names
TD({"a": torch.ones(3, 3, names=["p", "q"])}, [3, 3])
TD({"a": TD({"c": torch.ones(3, 3)}, [3, 3], names=["u", "v"])}, [3], names=["x"])["a"].names
TD({"a": TD({"c": torch.ones(3, 3)}, [3, 3], names=["u", "v"])}, [3])["a"].names
TD({"a": TD({"c": torch.ones(3, 3)}, [3, 3])}, [3], names=["x"])["a"].names
TD({"a": TD({"c": torch.ones(3, 3)}, [3, 3])}, [3], names=["x"]).names
TD({"a": torch.ones(3)}, [3], device="cpu")
TD({"a": torch.ones(3)}, [3], device="cpu:0").device
TD({"a": torch.ones(3)}, [3], device="meta")
TD({"a": torch.ones(3)}, [3], device=torch.device("cpu")).device
TD({"a": torch.ones(3)}, [3], lock=True)
TD({"a": {"b": torch.ones(3)}}, [3], lock=True)["a"].is_locked
TD(td), TD(td, [3]) is td, TD(td, [])
TD([("a", torch.ones(3))], [3])
TD({"a": torch.ones(3)}, batch_size=None)
TD({"a": torch.ones(3)}, batch_size="x")
TD({"a": torch.ones(3)}, batch_size=[3.0])
TD({"a": torch.ones(3)}, batch_size=(3,)), TD({"a": torch.ones(3)}, batch_size=torch.tensor([3]))
TD({"a": {1, 2}}, [3]), TD({"a": range(3)}, [3]), TD({"a": torch.nn.Parameter(torch.ones(3))}, [3])
type(TD({"a": torch.nn.Parameter(torch.ones(3))}, [3])["a"])
TD({"a": lambda x: x}, [3]), TD({"a.b": torch.ones(3)}, [3]), TD({"": torch.ones(3)}, [3]), TD({"a": 1 + 2j}, [])
TD({"a": torch.ones(3).to_sparse()}, [3])  #! may work
TD(5)
TD("abc")
bool(TD({}, []))
bool(TD({"a": torch.ones(1)}, []))
len(TD({"a": 1}, [])), len(TD({}, [2, 3]))
list(iter(td))
list(iter(TD({"a": 1}, [])))
td == td, td == 1, td == "x", td == None
td != td, td is td
TD({"a": "x"}, [2]) == TD({"a": "x"}, [2])
TD({"a": torch.ones(2)}, [2]) == TD({"b": torch.ones(2)}, [2])
TD({"a": torch.ones(2)}, [2]) == {"a": torch.ones(2)}
""",
)

FROM = parse_cases(
    "from_*",
    r"""
TD.from_dict({"a": torch.ones(3, 4), "b": {"c": torch.ones(3, 4, 5)}})
TD.from_dict({"a": torch.ones(3, 4), "b": {"c": torch.ones(3, 4, 5)}}, auto_batch_size=True)
TD.from_dict({"a": torch.ones(3, 4), "b": {"c": torch.ones(3, 4, 5)}}, auto_batch_size=False)
TD.from_dict({"a": torch.ones(3, 4), "b": {"c": torch.ones(3, 4, 5)}}, auto_batch_size=True, batch_dims=1)
TD.from_dict({"a": torch.ones(3, 4), "b": {"c": torch.ones(3, 4, 5)}}, batch_size=[3])
TD.from_dict({"a": torch.ones(3, 4), "b": {"c": torch.ones(3, 4, 5)}}, batch_size=[3], names=["x"])
TD.from_dict({"a": torch.ones(3, 4)}, device="cpu"), TD.from_dict({"a": [1, 2], "b": "s", "c": None})
TD.from_dict({"a": torch.ones(3)}, batch_dims=1)
TD.from_dict({"a": torch.ones(3)}, auto_batch_size=True, batch_dims=2), TD.from_dict(td)
TD.from_dict({"a": [{"b": 1}, {"b": 2}]}), TD.from_dict({"a": ["x", "y"]})
TD.from_dict({"a": [torch.ones(2), torch.ones(2)]})
td.from_dict_instance({"a": torch.ones(3), "n": {"c": torch.ones(3)}})
from_dict({"a": torch.ones(3)}, auto_batch_size=True)
TD.from_list([{"a": torch.ones(2)}, {"a": torch.zeros(2)}])
TD.from_list([{"a": torch.ones(2)}, {"a": torch.zeros(3)}])
TD.from_list([{"a": torch.ones(2)}, {"a": torch.zeros(2)}], lazy=True)
TD.from_list([{"a": torch.ones(2)}, {"a": torch.zeros(2)}], lazy=False)
TD.from_list([{"a": torch.ones(2)}, {"a": torch.zeros(2)}], auto_batch_size=True)
TD.from_list([1, 2, 3])
import collections; P = collections.namedtuple("P", "a b");
    TD.from_namedtuple(P(torch.ones(3), torch.zeros(3)))
import collections; P = collections.namedtuple("P", "a b");
    TD.from_namedtuple(P(torch.ones(3), torch.zeros(3)), auto_batch_size=True)
import collections; P = collections.namedtuple("P", "a b");
    TD.from_namedtuple(P(torch.ones(3), P(torch.zeros(3), 1)))
TD.from_tuple((torch.ones(3), torch.zeros(3))), TD.from_tuple((torch.ones(3), torch.zeros(3)), auto_batch_size=True)
TD.from_pytree({"a": torch.ones(3), "b": [torch.ones(3), torch.ones(3)]})
TD.from_pytree([torch.ones(3), (torch.ones(3),)]), TD.from_pytree({"a": torch.ones(3), "b": 1}, auto_batch_size=True)
TD.from_any({"a": torch.ones(3), "b": [torch.ones(3), torch.ones(3)]}), TD.from_any([1, 2]), TD.from_any((1, 2))
TD.from_any("s"), TD.from_any(np.ones(3))
TD.from_schema({"a": ([4], torch.float32), "b": ([], torch.int64)}, batch_size=[3])
TD.from_schema({"a": ([4], torch.float32), "b": ([], torch.int64)})
TD.from_schema({("n", "a"): ([4], torch.float32)}, batch_size=3)  #! may work
TD.fromkeys(["a", "b"]), TD.fromkeys(["a", ("b", "c")], 5), TD.fromkeys(["a"], torch.ones(3))
fromkeys(["a"], torch.ones(3))
td.new_zeros(3, 2), td.new_zeros([3, 2]), td.new_zeros(torch.Size([3, 2])), td.new_zeros(())
td.new_ones(2, dtype=torch.float64)
td.new_full((2,), 7), td.new_full(2, 7)
td.new_empty(2, empty_lazy=True)  #! keys only
td.new_zeros(2, empty_lazy=True), td.new_zeros(3, device="meta")
td.new_zeros(3, requires_grad=True)
td.new_tensor(td)
td.new_tensor({"a": torch.ones(2)})  #! any error
td.new_tensor(5), td.new_tensor(torch.ones(3)), td.new_tensor([1, 2, 3])
nm.empty(names=["p", "q"]), nm.empty(device="cpu")
td.auto_batch_size_() is td
TD({"a": torch.ones(3, 4), "b": torch.ones(3, 4)}).auto_batch_size_()
TD({"a": torch.ones(3, 4), "b": torch.ones(3, 4)}).auto_batch_size_(batch_dims=1)
TD({}, [2, 3]).auto_batch_size_(1).batch_size
td = TD({"n": TD({}, [3, 2], names=["b", "agent"])}, [3], names=["b"]); td.names = None; td["n"].names
td = TD({"n": TD({}, [3, 2], names=["b", "agent"])}, [3], names=["b"]); td.names = [None]; td["n"].names
TD({"a": torch.ones(3, 4), "b": {"c": torch.ones(3, 4, 5)}}).auto_batch_size_()
TD({"a": torch.ones(3, 4), "b": {"c": torch.ones(3, 4, 5)}}).auto_batch_size_(batch_dims=1)
TD({"a": torch.ones(3, 4), "b": {"c": torch.ones(3, 4, 5)}}).auto_batch_size_(batch_dims=1)["b"].batch_size
TD({"a": torch.ones(3, 4)}, [3]).auto_batch_size_(keep_compliant_size=True)
TD({"a": torch.ones(3, 4)}, device=None).auto_device_()
TD({"a": "x"}).auto_batch_size_()
td.clear_device_().device
TD.lazy_stack([td, td])
TD.maybe_dense_stack([td, td])
TD.stack([td, td])
TD.cat([td, td])
TD.maybe_dense_stack([td, TD({}, [3])])
TD.stack([td, TD({}, [3])])
TD.lazy_stack([td, td], dim=1), TD.lazy_stack([td, td], dim=-1)
TD.lazy_stack([td, td], dim=2)
TD.lazy_stack([])
TD.lazy_stack([td, td[:2]])
TD.lazy_stack([1, 2])  #! any error
TD.lazy_stack([torch.ones(2), torch.ones(3)])
make_tensordict({"a": torch.ones(3)}), make_tensordict({"a": torch.ones(3)}, batch_size=[3])
make_tensordict({"a": torch.ones(3), "b": {"c": torch.ones(3)}}, auto_batch_size=True)
make_tensordict(a=torch.ones(3), b=torch.ones(3))
make_tensordict(a=torch.ones(3), b=torch.ones(3), auto_batch_size=True)
make_tensordict({"a": torch.ones(3)}, device="cpu")
TD.from_dict({"s": [["a"], ["b", "c"]]})["s"], TD.from_dict({"s": [["a", "q"], ["b", "c"]]}, batch_size=[2, 2])
TD.from_dict({"s": [["a", "q"], ["b", "c"]], "x": torch.ones(2, 2)}, auto_batch_size=True)
TD.from_dict({"n": {"s": [[{1}, {2}], [{3}, None]]}}, batch_size=[2, 2])["n", "s"]
TD.from_any({"s": [[["a", "q"]], [["b", "c"]]]}, batch_size=[2])
TD.from_dict({"s": [("a", "b"), ("c", "d")]})["s"]
TD.from_dict({"s": [[NonTensorData("a")], [NonTensorData("b")]]})["s"]
TD.from_dict({"s": [NonTensorData("a"), NonTensorData("b")]})["s"]
x = torch.stack([nt, nt]).update({"t": [["a", "b", "c"], ["d", "e", "f"]]});
    TD.from_dict(x.to_dict(), batch_size=[2, 3])
x = lazy_stack([nt, nt.clone().set("s", "other")]); x.from_dict_instance(x.to_dict())
TD.from_dict({"a": torch.ones(3, 4)}, batch_size=[3], batch_dims=1)
TD.from_dict({"b": {"c": torch.zeros(2)}}, batch_size=[3])
TD.from_dict({"n": 1, "pair": (torch.zeros(3), torch.ones(3)), ("u", "v"): torch.ones(3)}, batch_size=[3])
TD.from_dict({("a", "b"): torch.zeros(1), "a": {"c": torch.ones(1)}})
x = TD({"p": c, "q": {"r": torch.zeros(3)}}, [3]); y = x.from_dict_instance(x.to_dict(), batch_size=[3]);
    (type(y["p"]), y)
TD.from_list([{"a": torch.ones(2)}, {"a": torch.zeros(2)}], batch_size=[2, 2], names=["x", "y"])
TD.from_list([{"a": torch.ones(2)}, {"a": torch.zeros(2)}], batch_dims=2)
TD.from_list([{"a": torch.zeros(1)}, {"b": torch.zeros(1)}])
TD.from_list([{"a": torch.ones(2)}, {"a": torch.zeros(2)}], batch_size=[5])
TD.from_list([])
P = collections.namedtuple("P", "a b"); TD.from_namedtuple(P(torch.ones(3), P(torch.zeros(3), "t")),
    auto_batch_size=True)
lib.from_tuple((torch.zeros(3), (1, 2)))
lib.from_namedtuple(torch.tensor([[2, 0, 1]]).max(dim=1))
[lib.from_any(v) is v for v in (1, "s", None, {1, 2})]
lib.from_any(["a", "b"]).tolist()
P = dataclasses.make_dataclass("P", ["image", ("label", str, "none"), ("inner", object, None)]);
    TD.from_dataclass(P(torch.zeros(3), "cat", P(torch.ones(3))), batch_size=[3])
P = dataclasses.make_dataclass("P", ["image", ("label", str, "none")]);
    x = TD.from_dataclass(P(torch.zeros(3)), as_tensorclass=True); (is_tensorclass(x), x.label)
TD.from_dataclass(3)
TD.from_struct_array(np.zeros((2, 3), dtype=[("a", "f4", (2,)), ("n", [("u", "i8"), ("v", "?")])]))
TD.from_schema({"a": ([4], torch.uint8)}, batch_size=[5], storage="shared").is_shared()
x = TD.from_schema({"a": ([4], torch.uint8)}, batch_size=[5], storage="memmap"); (x.is_memmap(), x["a"].sum(),
    x["a"].shape, x["a"].dtype)
TD.from_schema({"a": ([4], torch.uint8)}, batch_size=[5], storage="tape")
make_tensordict({"a": torch.zeros(3)}, a=torch.ones(1), b={"c": torch.zeros(3, 2)}, auto_batch_size=True)
TD({"a": torch.ones(3, 2), "n": TD({"b": torch.ones(3, 4, 5)}, [3, 4]), "s": "x"}, [3]).new_zeros(2, 2)
td.new_ones(7, dtype=torch.int32, device="meta", requires_grad=False)
td.select("a").new_tensor([1, 2])
td.attrs()["n", "c"].tgt_shape, td.attrs()["b"].tgt_dtype
td.attrs(fields=["dtype"])["a"].tgt_device
type(dense_stack_tds(TD.lazy_stack([td, td])))
lib.dense_stack_tds([td, td])
""",
)

CASES = [*CONSTRUCT, *FROM]
