"""Tensorclasses: flags, fields, and every operation that keeps the type."""

from tests.differential.harness import parse_cases

CASES = parse_cases(
    "tensorclass",
    r"""
C(torch.ones(3)), C(x=torch.ones(3)), C(torch.ones(3), batch_size=[3]), C(torch.ones(3), None, "s", batch_size=[3])
C()
C(torch.ones(3), zz=1)
C(torch.ones(3), batch_size=[4])
C(1, batch_size=[]), C("str", batch_size=[]), C([1, 2], batch_size=[2]), C(None, batch_size=[2])
(c.x, c.y, c.s)
(c.batch_size, c.shape, c.device, c.names, len(c), c.ndim, c.numel())
c.zz
c.zz = 1
c.x = torch.zeros(3, 4); c
c.x = torch.zeros(4)
c.x = 1
c.x = "str"; c
c.s = 5; c
c.s = torch.ones(3); c
c.y = torch.ones(3); c
c.y = None; c
c.x = None; c
del c.x
c.batch_size = []; c
c["x"]
c[0:2], c[torch.tensor([True, False, True])], c[0].s
c["x"] = torch.ones(3)
c[0] = c[1].clone(); c
c[0] = TD({"x": torch.zeros(4)}, [])
c[0] = C(torch.zeros(4), s="other", batch_size=[]); (c.s, c.x[0])
c[0] = D(torch.zeros(4), batch_size=[])
c.get("x"), c.get("y"), c.get("zz", None), c.get("zz", 5)
c.set("x", torch.zeros(3, 4)) is c
c.set("zz", torch.zeros(3))
c.set("s", "new").s
c.set_("x", torch.zeros(3, 4)).x.sum()
c.pop("x")
c.update({"x": torch.zeros(3, 4)}).x.sum()
c.update({"zz": torch.zeros(3, 4)})
c.update({"s": "up"}).s
c.update_({"x": torch.zeros(3, 4)}).x.sum()
C.from_dict({"x": torch.ones(3)}, batch_size=[3]), C.from_dict({"x": torch.ones(3)}, auto_batch_size=True)
[f.name for f in C.fields()]
[f.name for f in dataclasses.fields(C)]
dataclasses.is_dataclass(C)
dataclasses.fields(c)[0].name
dataclasses.replace(c, x=torch.zeros(3, 4))
dataclasses.asdict(c)
c == c, c == C(torch.ones(3, 4), s="other", batch_size=[3])
(c == c).all()
c != c
c == D(torch.ones(3, 4), batch_size=[3])
c > 0
c + c, c * torch.ones(3), c + D(torch.ones(3, 4), batch_size=[3])
c.mean(reduce=True)
(c.all(), c.any())
c.apply(lambda x: x + 1), c.apply(lambda x: None), c.apply(lambda x, y: x + y, c)
c.apply(lambda x: x.sum(), batch_size=[])
c.named_apply(lambda k, x: x * 0)
torch.stack([c, c]), torch.stack([c, c]).s, torch.stack([c, C(torch.ones(3, 4), s="b", batch_size=[3])]).s
torch.stack([c, C(torch.ones(3, 4), s="b", batch_size=[3])]).get("s")
torch.cat([c, c])
torch.stack([c, D(torch.ones(3, 4), batch_size=[3])])
(c.reshape(3, 1), c.view(-1), c.unsqueeze(0), c.expand(2, 3))
c.unbind(0)[0]
c.split(2)
c.clone(False).x is c.x
c.lock_().is_locked
c.lock_(); c.x = torch.zeros(3, 4)
c.lock_(); c.s = "x"
c.select("x")
c.exclude("x")
c.flatten_keys()
(list(c.keys()), list(c.values()), list(c.items()))
("x" in c.keys(), "y" in c.keys())
x = c.clone().zero_(); x.load_state_dict(c.state_dict()); x.x.sum()
pickle.loads(pickle.dumps(NonTensorData("x", batch_size=[2])))
list(c)
repr(c), repr(C(torch.ones(3), batch_size=[3], device="cpu"))
text_with(set_printoptions(compact=False), c)
hash(c)
(isinstance(c, TensorDictBase), is_tensorclass(c), is_tensor_collection(c), isinstance(D(torch.ones(3)), TensorClass))
(is_tensorclass(C), is_tensorclass(D), is_tensorclass(TensorClass), is_tensorclass(TD))
td["c"] = c; td["c"]
td["c"] = c; td["c", "x"]
td["c"] = c; td[0]["c"]
td["c"] = c; list(td.keys(True, True))
td["c"] = c; list(td.keys(True))
td["c"] = c; td.apply(lambda x: x + 1)["c"]
td["c"] = c; (td + 1)["c"]
td["c"] = c; td.to_dict()["c"]
td["c"] = c; td["c"] is c
td["c"] = c; td.flatten_keys()
td["c"] = c; td.clone()["c"]
td["c"] = c; torch.stack([td, td])["c"]
D(torch.ones(3)).n, D(torch.ones(3), n=5, batch_size=[3]).n
D(torch.ones(3), 5, batch_size=[3]).get("n")
Auto(torch.ones(3), n=5), Auto(torch.ones(3), n="5")
Auto([1.0, 2.0], n=5).x
Auto(torch.ones(3), n=torch.tensor(4)).n
Auto(torch.ones(3), s=5).s
NoCast(torch.ones(3), n=5).n
NoCast(5, n=5)
NoCast([1, 2]).x, NoCast(np.ones(3)).x
Frozen(torch.ones(3))
f = Frozen(torch.ones(3)); f.x = torch.zeros(3)
f = Frozen(torch.ones(3), batch_size=[3]); f[0] = 0
f = Frozen(torch.ones(3), batch_size=[3]); f.set("x", torch.zeros(3))
f = Frozen(torch.ones(3), batch_size=[3]); f.batch_size = []; f
f = Frozen(torch.ones(3), batch_size=[3]); f.is_locked
f = Frozen(torch.ones(3), batch_size=[3]); f.set_("x", torch.zeros(3)).x
f = Frozen(torch.ones(3), batch_size=[3]); f.zero_().x
f = Frozen(torch.ones(3), batch_size=[3]); f.unlock_()
f = Frozen(torch.ones(3), batch_size=[3]); (f + 1).is_locked
f = Frozen(torch.ones(3), batch_size=[3]); f[0].is_locked
Only(torch.ones(3)), Only(5)
Only(np.ones(3)).x, Only([1, 2]).x
Only(torch.ones(3)).y
Only(torch.ones(3), torch.zeros(3), batch_size=[3]), Only(torch.ones(3), TD({}, []))
(TensorClass["nocast"], TensorClass["nocast", "frozen"])
from_dataclass(dataclasses.make_dataclass("P", [("a", int), ("b", str)])(1, "x"))
TD.from_dataclass(dataclasses.make_dataclass("P", [("a", int), ("b", str)])(1, "x"))
from_dataclass(dataclasses.make_dataclass("P", [("a", int), ("b", str)]))
torch.zeros_like(c).s
torch.where(torch.tensor([True, False, True]), c, c * 0).x
torch.utils._pytree.tree_map(lambda x: x + 1, c).x
c.names = ["q"]; c.names
C(torch.ones(3, 4), batch_size=[3], names=["t"]).names
C(torch.ones(3, 4), batch_size=[3], device="cpu").device
(c.data, c.grad)
c.to_lazystack().batch_size, c.to_lazystack().x, c.to_lazystack()[0]
type(c.to_lazystack()[0])
c.replace(x=torch.zeros(3, 4))
c.rename_key_("x", "q")
c.unflatten_keys()
c.setdefault("y", torch.ones(3))
c.del_("x")
c.fill_("x", 3).x.sum()
(c.bytes(), c.param_count())
# making a class
define("@tensorclass\nclass B:\n  clone: torch.Tensor")(globals())
define("class B(TensorClass):\n  batch_size: torch.Tensor")(globals())
define("class B(TensorClass):\n  names: str")(globals())
define("class B(TensorClass, shadow=True):\n  clone: torch.Tensor")(globals())(torch.ones(3)).clone
define("class B(TensorClass, autocast=True, nocast=True):\n  q: str")(globals())
define("class B(TensorClass['autocast', 'nocast']):\n  q: str")(globals())
define("class B(TensorClass['wrong']):\n  q: str")(globals())
define("class B(TensorClass, wrong=True):\n  q: str")(globals())
define("class B(TensorClass['tensor_only', 'nocast']):\n  q: torch.Tensor")(globals())
define("class B(TensorClass['tensor_only', 'autocast']):\n  q: torch.Tensor")(globals())
define("class B(TensorClass['nocast', 'frozen']):\n  q: torch.Tensor")(globals())(torch.ones(3)).is_locked
define("@tensorclass(nocast=True)\nclass B:\n  q: torch.Tensor")(globals())([1, 2]).q
define("@tensorclass(autocast=True)\nclass B:\n  q: int")(globals())("5").q
define("@tensorclass\nclass B:\n  q: int = 4\n  def __post_init__(self):\n    self.q = 7")(globals())().q
define("@tensorclass\nclass B:\n  q: torch.Tensor\n  @property\n  def twice(self):\n    return self.q * 2")
    (globals())(torch.ones(2)).twice
define("@tensorclass\nclass B:\n  q: torch.Tensor\n  @staticmethod\n  def f():\n    return 5")
    (globals()).f()
define("class B(D):\n  extra: torch.Tensor = None")
    (globals())(torch.ones(3), extra=torch.zeros(3), batch_size=[3])
define("class B(D):\n  extra: torch.Tensor = None")(globals())(torch.ones(3), batch_size=[3])[0]
define("class B(TensorClass):\n  q: torch.Tensor\n  r: 'int | None' = None")
    (globals())(torch.ones(3), batch_size=[3])
define("class B(TensorClass):\n  q: torch.Tensor = dataclasses.field(default_factory=lambda: torch.zeros(2))")
    (globals())()
# nested
o
o.inner.x
o.label
o.z
o[0].inner
o.inner.x = torch.zeros(3, 4); o.inner.x
o.inner = TD({"x": torch.zeros(3)}, [3]); o.inner
torch.stack([o, o])
o.reshape(3, 1).inner.batch_size
o.apply(lambda x: x + 1).inner
o.clone().inner.n
o.get(("inner", "x"))
o.set(("inner", "x"), torch.zeros(3, 4)).inner.x
# to and from tensordicts
c.to_tensordict(retain_none=False)
C.from_tensordict(TD({"x": torch.ones(3)}, [3])), C.from_tensordict(TD({"x": torch.ones(3), "s": "z"}, [3]))
C.from_tensordict(TD({"x": torch.ones(3), "q": torch.ones(3)}, [3]))
C.from_tensordict(TD({"y": torch.ones(3)}, [3])), C.from_tensordict(TD({"x": torch.ones(3)}, [3]))
c == c.to_tensordict()
c + c.to_tensordict()
torch.stack([c, c.to_tensordict()])  #! any error
td["c"] = c; td.to_tensordict()["c"]
within(set_list_to_stack(False), lambda: NoCast(x=torch.ones(3, 4), n=["a", "b", "c"], batch_size=[3])).n
x = within(set_list_to_stack(False), lambda: C(x=torch.ones(3, 4), s=["a", "b", "c"], batch_size=[3])); (x.s, x[0].s)
within(set_list_to_stack(False), lambda: C(x=torch.ones(3, 4), s=[[1], [2, 3]], batch_size=[3])).s
within(set_list_to_stack(False), lambda: D(x=torch.ones(3), n=[1, 2, 3], batch_size=[3])).n
within(set_list_to_stack(False), lambda: setattr(c, "s", ["a", "b", "c"])); c.s
within(set_list_to_stack(False), lambda: c.set("s", [1, 2, 3])).s
within(set_list_to_stack(False), lambda: Auto(x=torch.ones(3), n=[1, 2, 3], s=["a"], batch_size=[3])).s
o.split_keys([("inner", "x")])
o.split_keys([("inner", "x"), ("inner", "n")], inplace=True)
o.split_keys({("inner", "x"): ("z", "q")}), o.split_keys([("inner", "x")], reproduce_struct=True)
o.separates(("inner", "x"))["inner", "x"]
o.rename_keys({("inner", "x"): ("z", "q")})
o.rename_key_("z", ("z", "q"))  #! any error
o.rename_key_("inner", ("inner", "q")); o.inner["q"]
o.rename_key_("inner", ("z", "q")); o.z["q"]
lazy_stack([o, o]).split_keys([("inner", "x")])
list(C.from_dict(c.to_dict()).keys()), list(c.from_dict_instance(c.to_dict()).keys())
x = TD(c=c, batch_size=[3]); list(x.from_dict_instance(x.to_dict())["c"].keys())
x = TD(c=c, batch_size=[3]); x[0] = x[0].to_dict(); list(x["c"].keys()), x["c"].y
x = TD(c=c, batch_size=[3]); list(x.update_(x.to_dict())["c"].keys())
x = TD(c=c, batch_size=[3]); list(x.copy_(x.to_dict())["c"].keys())
list(c.update_(c.to_dict()).keys())
c.update_({"zz": None})  #! any error
x = lazy_stack([c, c.clone()]); list(x.update(x.to_dict()).keys())
x = lazy_stack([c, c.clone()]); list(x.update_(x.to_dict()).keys())
x = lazy_stack([c, c.clone()]); list(x.from_dict_instance(x.to_dict()).keys())
x = lazy_stack([c, c.clone()]); x.set("y", None); list(x.keys())
x = lazy_stack([td, td.clone()]); x.set("o", None); x["o"]
torch.stack([c, C(torch.ones(3, 4), s="b", batch_size=[3])]).s, torch.cat([c, c]).s
c.select("s").x, c.exclude("s").s, c.empty().x
(c.pop("x").shape, c.x)
torch.stack([c, c.set("y", torch.ones(3))])
type(lazy_stack([c, D(torch.ones(3, 4), batch_size=[3])]))
x = C.from_tensordict(lazy_stack([TD(x=torch.zeros(3)), TD(x=torch.zeros(4))]));
    (isinstance(x, C), type(x[1]), x[1].x.shape)
o.lock_(); o.inner.is_locked
o.names = ["rows"]; o.inner.names
o.batch_size = [4]
Outer(D(torch.zeros(3), batch_size=[3]), "l", batch_size=[3], device="meta").inner.x.device
x = copy.copy(c); x.x = torch.zeros(3, 4); c
(c * 2).x.requires_grad
c.x = np.arange(3.0); c.x.dtype
c.s = {"a": 1}; c.s
c.x = None; (c.x, "x" in c.keys())
v = c.x; c.set("x", torch.zeros(3, 4), inplace=True).x is v
o.set(("inner", "x"), torch.zeros(3)).inner.x.shape
o.update({"inner": {"x": torch.zeros(3, 4)}, "label": "new"}); (o.inner.x, o.inner.n, o.label)
o.get(("inner", "n")), o.get(("inner", "x")).shape, o.get(("inner", "zz"), 5)
c.lock_().set("s", None)
c.lock_(); c[0] = c[1]
c[1] = TD({"x": torch.full((4,), 7.0)}); c
C.fromkeys(["x"], 1).x
C.from_any({"x": torch.zeros(3), "s": "n"}).s
C.from_dict({"zz": 1})
c.zero_().load_state_dict(C(torch.ones(3, 4) * 2, batch_size=[3]).state_dict()).x
C.from_tensordict(TD({"x": torch.zeros(3)}, [3], names=["rows"])).names, C.from_tensordict(TD(x=1).lock_()).is_locked
C.from_tensordict(TD(x=torch.zeros(3))).s
(c == c).x, type(c == c)
B = define("class B(TensorClass):\n  i: int\n  f: float = 0.5\n  o: int | None = None")(globals()); x = B(1, 2.0, 3);
    (x.i, x.f, x.o)
B = define("class B(TensorClass):\n  i: int\n  f: float = 0.5\n  o: int | None = None")(globals());
    x = B(1, 2, 3, batch_size=[3]); (x.i, x.f, x.o)
B = define("class B(TensorClass):\n  i: int")(globals()); B(1.5, batch_size=[3])
NoCast; B = define("class B(NoCast):\n  y: object = None")(globals());
    (type(B(1, 2, 2.5).y), type(B(1, 2, 2.5)[None].y))
a = np.arange(3); x = NoCast(a); (x.x is a, type(NoCast(1).x), type(NoCast([1, 2]).x))
Auto(torch.ones(3), n=4.7).n
x = Auto(torch.ones(3)); x.n = 4.7; x.n
x = Auto(torch.ones(3)); x.x = "text"
x = Auto(torch.ones(3)); x.n = "text"
D; B = define("class B(TensorClass, autocast=True):\n  t: torch.Tensor = None\n  i: D = None\n  a:
    np.ndarray = None")(globals()); x = B((1, 2), None, [1.0]); (x.t, type(x.a))
B = define("class B(TensorClass, tensor_only=True):\n  s: str")(globals())
B = define("class B(TensorClass, tensor_only=True):\n  x: torch.Tensor\n  y: TensorDict | None = None")(globals());
    x = B([1, 2], {"a": 1}); (x.x, type(x.y))
f = Frozen(torch.ones(3), batch_size=[3]); f.is_locked, isinstance(hash(f), int), f[0].is_locked
f = Frozen(torch.ones(3), batch_size=[3]); del f.x
f = Frozen(torch.ones(3), batch_size=[3]); f.names = ["a"]
Frozen; B = define("class B(Frozen, frozen=True):\n  y: object = None")(globals()); B(torch.zeros(3)).is_locked
Frozen; B = define("class B(Frozen, frozen=False):\n  y: object = None")(globals())
D; B = define("class B(D, frozen=True):\n  y: object = None")(globals())
TensorClass["autocast", "nocast"]
TensorClass["nocats"]
B = define("class B(TensorClass):\n  x: torch.Tensor\n  def sum(self):\n    return 'mine'\n  def
    __len__(self):\n    return 77")(globals()); x = B(torch.zeros(3), batch_size=[3]); (x.sum(), len(x), x.mean().x)
B = define("class B(TensorClass):\n  x: torch.Tensor\n  @property\n  def bad(self):\n    return
    self.x.no_such_attribute")(globals()); B(torch.zeros(3)).bad
D; B = define("@tensorclass(nocast=True)\nclass B(D):\n  y: object = None\n  def __init__(self,
    n):\n    self.x = n\n    self.n = 1\n    self.y = n + 1")(globals()); x = B(3); (type(x.x), x.y)
[define(f"class B(TensorClass, shadow=True):\n  {k}: torch.Tensor")(globals())(torch.zeros(3)).get(k).shape for k in
    ("batch_size", "device", "names", "values", "shape", "sum")]
define("class B(TensorClass):\n  values: torch.Tensor")(globals())
define("class B(TensorClass):\n  from_tensordict: torch.Tensor")(globals())
# typed collections
x = State(a=torch.zeros(2, 3), n=TD({"x": torch.zeros(2)}, [2]), batch_size=[2]);
    isinstance(x, TensorDictBase), isinstance(x, TD), is_tensorclass(x), x.a is x["a"], x.n["x"] is x["n", "x"], x
x = State(a=torch.zeros(2, 3), n={}, batch_size=[2]); x.a = torch.ones(2, 3); x["extra"] = torch.ones(2);
    x["a"], sorted(x.keys()), sorted({**x})
x = State(a=torch.zeros(2, 3), n={}, batch_size=[2]); x["extra"] = torch.ones(2); x.extra
x = State(a=torch.zeros(2, 3), n={}, batch_size=[2]); del x["a"]; x.a
State({"a": torch.zeros(2), "n": {}}, names=["rows"], batch_size=[2]).names
State(a=torch.zeros(2))
State(a=torch.zeros(2), n={}, q=1)
State(a=torch.zeros(3), n={}, batch_size=[2])
State(torch.zeros(2))
TypedTensorDict(a=torch.zeros(2))
State.from_tensordict(TD(a=torch.zeros(2)))
State.from_tensordict(TD(a=torch.zeros(2)), check=False).a
type(State.from_dict({"a": torch.zeros(2), "n": {"x": torch.zeros(2)}})),
    type(State.from_tensordict({"a": torch.zeros(2), "n": {}}))
x = Wider(a=torch.zeros(2), n={}, b=torch.ones(2)); y = (x.c, "c" in x); x.c = torch.ones(3); y, x["c"]
sorted(Wider.__expected_keys__), sorted(Wider.__optional_keys__), sorted(State.__required_keys__)
Wider(a=torch.zeros(2), n={})
State; B = define("class B(TypedTensorDict['frozen']):\n  a: torch.Tensor")(globals());
    x = B(a=torch.zeros(2), batch_size=[2]); x.is_locked, x.clone().is_locked, x[0].is_locked
State; B = define("class B(TypedTensorDict['frozen']):\n  a: torch.Tensor")(globals());
    x = B(a=torch.zeros(2), batch_size=[2]); x.a = torch.ones(2)
define("class B(TypedTensorDict):\n  sum: torch.Tensor")(globals())
TypedTensorDict["bad"]
define("class B(TypedTensorDict, bad=True):\n  a: torch.Tensor")(globals())
x = State(a=torch.zeros(2, 3), n={}, batch_size=[2]);
    type(lazy_stack([x, x])), type(torch.stack([x, x.to_tensordict()]))
import inspect; list(inspect.signature(Outer).parameters)
c.colour = 1
c.s = [1, 2, 3]; c.s
c.s = np.arange(3.0); c.s
c.s = (1, 2); c.s
c.s = None; c.s, "s" in c.keys()
c.y = torch.zeros(4)
o.inner = None; o.update({"inner": {"x": torch.ones(3)}}); type(o.inner), o.inner.batch_size
o.update({"z": {"a": torch.zeros(3)}}); type(o.z), o.z.batch_size
x = TD({"inner": {"x": torch.ones(3)}}, [3], names=["rows"]); y = Outer.from_tensordict(x, {"label": object});
    type(y.inner), y.inner.x is x["inner", "x"], y.label, y.names, type(x["inner"]), y.inner.n
x = o.to_tensordict(); type(x), type(x["inner"]), "z" in x.keys(), x["inner", "x"] is o.inner.x, x["label"]
o.to_tensordict(retain_none=True)["z"], o.to_dict()["z"], "z" in o.to_dict(retain_none=False)
D.from_any({"x": torch.zeros(3), "n": 4}).n
C.fromkeys(["x", "y"], 1).x
B = define("class B(TensorClass):\n  x: torch.Tensor\n  _: dataclasses.KW_ONLY\n  y: object = None")(globals());
    B(torch.zeros(3), y=1).y
B = define("@tensorclass(kw_only=True)\nclass B:\n  x: torch.Tensor")(globals()); B(x=torch.zeros(3)).x
B = define("@tensorclass(kw_only=True)\nclass B:\n  x: torch.Tensor")(globals()); B(torch.zeros(3))
define("class B(TensorClass):\n  x: object = None\n  y: object")(globals())
B = define("class B(TensorClass):\n  x: torch.Tensor\n  def __post_init__(self):\n    self.x = self.x +
    1")(globals()); B(torch.zeros(3), batch_size=[3]).x
B = define("class B(TensorClass):\n  x: torch.Tensor\n  p: dataclasses.InitVar[int] = 10\n  def __post_init__(self,
    p):\n    self.x = self.x + p")(globals());
    B(torch.zeros(3), 5, batch_size=[3]).x, B(torch.zeros(3), batch_size=[3]).x,
    [f.name for f in dataclasses.fields(B)]
B = define("class B(TensorClass):\n  x: torch.Tensor = dataclasses.field(default_factory=lambda: torch.ones(3))\n  h:
    object = dataclasses.field(init=False, default='h')")(globals()); B(batch_size=[3]).x, B(batch_size=[3]).h
D; B = define("class B(TensorClass, autocast=True):\n  i: D = None")(globals()); x = B({"x": torch.zeros(3)});
    type(x.i), x.i.x
""",
)
