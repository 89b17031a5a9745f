"""One line or more for every public method and property: what is drawn over all kinds of ``kinds.py``.

``x`` is the collection, ``y`` a second one made alike, and ``size`` its batch size. The methods that a line draws are
those that it names after ``x.``. A trailing comment relaxes a line as in the case tables.
"""

import ast
import dataclasses

from tests.differential.harness import Case, parse_cases

_UNARY = """abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal
round sigmoid sign sin sinh sqrt tan tanh trunc"""
_DTYPES = """bfloat16 bool complex32 complex64 complex128 double float float16 float32 float64 half int int8 int16
int32 int64 uint8 uint16 uint32 uint64"""
_TEXT = (
    "\n".join(f"x.{name}()\nx.{name}_()" for name in _UNARY.split())
    + "\n"
    + "\n".join(f"x.{name}()" for name in _DTYPES.split())
    + r"""
x.qint8()  #! any error
x.qint32()  #! any error
x.quint8()  #! any error
x.quint4x2()  #! any error
x.isfinite()
x.isnan()
x.isneginf()
x.isposinf()
x.isreal()
x.softmax(0)  #! any error
x.add(1)
x.add(y, alpha=2)
x.add(y.exclude("a"), default=torch.tensor(1.5))  #! may work
x.add(y.exclude(("n", "b")), default="intersection")
x.exclude(("n", "b")).mul(y, default="intersection")
x.maximum(y.exclude("n"), default=torch.tensor(1.5))
x.add_(1)
x.sub(1)
x.sub(y)
x.sub_(1)
x.rsub(1)
x.mul(2)
x.mul(y)
x.mul_(2)
x.div(2)
x.div(y)
x.div_(2)
x.mod(2)
x.pow(2)
x.pow_(2)
x.maximum(y)
x.maximum_(y)
x.minimum(y)
x.minimum_(y)
x.clamp(0, 2)
x.clamp_max(1)
x.clamp_max_(1)
x.clamp_min(1)
x.clamp_min_(1)
x.lerp(y, 0.5)
x.lerp_(y, 0.5)
x.addcmul(y, y)
x.addcmul_(y, y)
x.addcdiv(y, y)
x.addcdiv_(y, y)
x.bitwise_and(y)
x.logical_and(y)
x.zero_()
x.fill_("a", 3)
x.masked_fill(torch.ones(size, dtype=torch.bool), 0)
x.masked_fill_(torch.ones(size, dtype=torch.bool), 0)
x.masked_select(torch.ones(size, dtype=torch.bool))
x.clear_refs_for_compile_().batch_size
x.where(torch.ones(size, dtype=torch.bool), y)
x.where(torch.zeros(size, dtype=torch.bool), 0)
x.where(torch.ones(size, dtype=torch.bool), y.exclude(("n", "b")), pad=0)
x.where(torch.zeros(size, dtype=torch.bool), y.exclude("a"), pad=1.5)
x.where(torch.zeros(size, dtype=torch.bool), y.exclude("n"), pad=1)
x.where(torch.zeros(size, dtype=torch.bool), y.filter_non_tensor_data())
x.exclude(("n", "b")).where(torch.ones(size, dtype=torch.bool), y, pad=7)
x.all()
x.all(0)
x.any()
x.any(dim=-1)
x.sum()
x.sum(0)
x.sum(0, keepdim=True)
x.mean()
x.mean(0)
x.nanmean(0)
x.nansum(0)
x.prod()
x.prod(0)
x.std(0)
x.var(0)
x.amax(0)
x.amin(0)
x.max()
tuple(x.max(0))
x.min(0)
x.cummax(0)
x.cummin(0)
x.logsumexp(0)
x.quantile(0.5, 0)
x.norm()
x.view(-1)
x.reshape(-1)
x.reshape(-1, inplace=True) is x
x.lock_().reshape(-1, inplace=True)
x.flatten()
x.flatten(0, 1)
x.unflatten(0, (1, -1))
x.unflatten(-1, (-1, 1), inplace=True) is x
x.permute(*reversed(range(x.ndim)))
x.transpose(0, -1)
x.swapaxes(0, 1)
x.swapdims(0, -1)
x.movedim(0, -1)
x.moveaxis(0, -1)
x.squeeze()
x.squeeze(0)
x.unsqueeze(0)
x.unsqueeze(-1)
x.expand(2, *size)
x.expand_as(torch.zeros(2, *size))
x.expand_as(y.unsqueeze(0).expand(2, *size))
x.broadcast_to((2, *size))
x.atleast_1d()
x.atleast_2d()
x.atleast_3d()
x.narrow(0, 0, 1)
x.split(1)
x.split([1, 2])
x.chunk(2)
x.tensor_split(2)
x.unbind(0)
x.unbind(-1)
x.repeat(*[2] * x.ndim)
x.repeat_interleave(2, dim=0)
x.tile((2,))
x.roll(1, 0)
x.roll(1, 0, inplace=True) is x
x.rot90()
x.flip(0)
x.fliplr()
x.flipud()
x.gather(0, torch.zeros(size, dtype=torch.long))
x.gather(0, torch.zeros(size, dtype=torch.long), inplace=True) is x
x.scatter(0, torch.zeros(size, dtype=torch.long), y)  #! any error
x.pad([0, 1] * x.ndim)
x.pad([1, 0] * x.ndim, 5.0, inplace=True) is x
x.repeat(*[2] * x.ndim, inplace=True) is x
x.repeat_interleave(2, dim=0, inplace=True) is x
x.contiguous(inplace=True) is x
x.stack([x, y])
x.stack([x, y], -1)
x.cat([x, y])
x.lazy_stack([x, y])
x.maybe_dense_stack([x, y])
x.stack_from_tensordict(0)
x.stack_tensors("a", "n", out_key="z")  #! any error
x.cat_from_tensordict(0)
x.cat_tensors("a", "a", out_key="z")
list(x.keys())
list(x.keys(True))
list(x.keys(True, True))
list(x.values())
list(x.values(True, True))
list(x.items())
list(x.items(True, True))
list(x.non_tensor_items())
x.get("a")
x.get(("n", "b"))
x.get("absent")
x.get("absent", 3)
x.get("s")
x.get_at("a", 0)
x.get_at("absent", 0, None)
x.get_non_tensor("s")
x.get_item_shape("a")
x.entry_class("a")
x.set("a", x.get("a"))
x.set("z", torch.ones(size))
x.set(("n", "z"), torch.ones(size))
x.set("a", torch.zeros_like(x.get("a")), inplace=True)
x.set_("a", torch.zeros_like(x.get("a")))
x.set_("absent", torch.ones(size))
x.set_at_("a", 0, 0)
x.set_non_tensor("z", "text")
x.set_non_tensor("n", torch.ones(9))
x.setdefault("a", 0)
x.setdefault("z", torch.ones(size))
x.pop("a")
x.pop("absent")
x.pop("absent", 3)
x.popitem()
x.del_("a")
x.del_("absent")
x.clear()
x.rename_key_("a", "z")
x.rename_keys({"a": "z"})
x.create_nested("z")
x.fromkeys(["a"], 0)
x.select("a")
x.select("absent")
x.select("absent", strict=False)
x.select("a", inplace=True)
x.exclude("a")
x.exclude("a", inplace=True)
x.split_keys(["a"])
x.separates("a")
x.filter_empty_()
x.filter_non_tensor_data()
x.flatten_keys(".")
x.flatten_keys(".", inplace=True)
x.flatten_keys(".").unflatten_keys(".")
x.unflatten_keys(".")
x.update({"a": torch.zeros_like(x.get("a"))})
x.update(y)
x.update({"z": torch.ones(size)})
x.update(TD({}, []))
x.update(TD({"a": torch.zeros_like(x.get("a"))}, []))
x.update_(TD({"a": torch.zeros_like(x.get("a")), "n": {"b": torch.zeros_like(x.get(("n", "b")))}}, []))
x.update_(y)
x.update_({"a": torch.zeros_like(x.get("a"))})
x.update_at_({"a": 0}, 0)
x.update_at_(y[0], 0)
x.replace({"a": torch.zeros_like(x.get("a"))})
x.replace(y)
x.copy_(y)
x.copy_at_(y[0], 0)
x.apply(torch.neg)
x.apply(lambda leaf: leaf + 1, batch_size=list(size))
x.apply(lambda leaf: leaf.sum(), batch_size=[])
x.apply(lambda leaf: leaf, names=[f"d{i}" for i in range(x.ndim)])  #! may work
x.apply_(lambda leaf: leaf)
x.apply(torch.neg, inplace=True, device=None)  #! any error
x.apply(torch.neg, out=x.empty())
x.apply(torch.neg, out=y, device="meta")
x.apply(lambda leaf: leaf.sum(), batch_size=[], out=x.empty(batch_size=[]))
x.lock_().apply(torch.neg, out=y.empty(), propagate_lock=True)
x.named_apply(lambda name, leaf: leaf * len(name), out=x.empty())
x.named_apply(lambda name, leaf: leaf * len(name))
x.map(lambda part: part, num_workers=0)  #! may work
list(x.map_iter(lambda part: part, num_workers=0))  #! may work
x.reduce(dst=0)  #! any error
x.clone()
x.clone(False)
x.copy()
x.contiguous()
x.detach()
x.detach_()
x.data
x.grad
x.attrs().keys() and None
x.requires_grad
x.requires_grad_()
x.requires_grad_(False)
x.backward()  #! any error
x.zero_grad()
x.empty()
x.empty(recurse=True)
x.empty(recurse=True, device="meta")
x.empty(names=[f"d{i}" for i in range(x.ndim)])
x.new_empty(2)  #! keys only
x.new_zeros(2)
x.new_ones(2, 3)
x.new_full((2,), 3)
x.new_tensor([1])  #! any error
x.to(torch.float64)
x.to("cpu")
x.to(torch.device("cpu"), torch.float16)
x.to(y)
x.type(torch.float64)
x.cpu()
x.cuda()  #! any error
x.pin_memory()  #! any error
x.pin_memory_()  #! any error
x.record_stream(None)  #! any error
x.as_tensor()  #! any error
x.densify()
x.to_lazystack(0)
x.to_tensordict()
x.to_tensordict(retain_none=True)
x.to_dict()
x.to_dict(retain_none=False)
x.to_namedtuple()
x.to_namedtuple(dest_cls=collections.namedtuple("Two", "a n"))  #! any error
x.to_pytree()
x.to_struct_array()  #! any error
x.to_padded_tensor()
x.numpy()
x.tolist()
x.tolist(convert_tensors=True)
x.state_dict()
x.load_state_dict(y.state_dict())
x.from_dict({"a": torch.ones(3)})
x.from_dict_instance({"a": torch.zeros_like(x.get("a"))})
x.from_any({"a": torch.ones(3)})
x.from_list([{"a": 1}, {"a": 2}])
x.from_tuple((torch.ones(3), torch.ones(3)))
x.from_namedtuple(collections.namedtuple("Point", "a b")(torch.ones(3), torch.zeros(3)))
x.from_pytree({"a": [torch.ones(3)]})
x.from_struct_array(np.zeros(3, dtype=[("a", "f4")]))
x.from_dataclass(Point(torch.ones(3)))
x.from_module(nn.Linear(2, 2))  #! keys only
x.from_modules(nn.Linear(2, 2), nn.Linear(2, 2))  #! keys only
x.from_schema({"a": ((2,), torch.float32)}, batch_size=[3])  #! keys only
x.to_module(nn.Linear(2, 2))  #! any error
x.consolidate()
x.is_consolidated()
x.lock_()
x.unlock_()
x.lock_().set("z", torch.ones(size))
x.is_locked
x.share_memory_()
x.is_shared()
x.memmap()
x.memmap_()
x.memmap(folder, copy_existing=True)
x.memmap_like()  #! keys only
x.memmap_refresh_()
x.save(folder)
x.dumps(folder)
x.load(saved(x, folder))
x.load_memmap(saved(x, folder))
x.load_(saved(y, folder))  #! any error
x.load_memmap_(saved(y, folder))
x.make_memmap("z", size)
x.make_memmap_from_storage("z", torch.zeros(size).untyped_storage(), size)
x.make_memmap_from_tensor("z", torch.ones(size))
x.is_memmap()
x.saved_path  #! any error
x.is_contiguous()
x.is_cpu
x.is_cuda
x.is_meta
x.is_empty()
x.is_floating_point()
x.is_non_tensor()  #! any error
x.batch_dims
x.batch_size
x.device
x.dim()
x.ndim
x.ndimension()
x.names
x.numel()
x.shape
x.size()
x.size(0)
x.depth
x.dtype
x.sorted_keys
x.bytes()
x.param_count()
sorted(x.data_ptr()) and None  #! any error
x.auto_batch_size_()
x.auto_batch_size_(1)
x.auto_device_()
x.clear_device_()
x.refine_names(*[f"d{i}" for i in range(x.ndim)])
x.rename(*[f"d{i}" for i in range(x.ndim)])
x.rename_(*[f"d{i}" for i in range(x.ndim)])
x[0]
x[-1]
x[...]
x[None]
x[:2]
x[::2]
x[[0]]
x[torch.zeros(2, dtype=torch.long)]
x[torch.ones(size, dtype=torch.bool)]
x[:, 0]
x["a"]
x["absent"]
x["n", "b"]
x.__setitem__(0, 0)
x.__setitem__(0, y[0])
x.__setitem__(slice(None), y)
x.__setitem__("a", torch.zeros_like(x.get("a")))
x.__setitem__("z", torch.ones(size))
delitem(x, "a")
x + 1
1 + x
x - y
x * y
x / 2
x ** 2
-x
abs(x)
x == y
x != y
x < y
x >= 1
x & y
x | y
x ^ y
~(x > 0)
len(x)
"a" in x.keys()
[row for row in x]
bool(x)
with_of(x.unsqueeze(0), lambda v: v.clone())
with_of(x.flatten_keys("."), lambda v: v.apply(torch.neg))
with_of(x.unlock_(), lambda v: v.set("z", torch.ones(size)))
torch.stack([x, y])
torch.cat([x, y])
torch.zeros_like(x)
torch.ones_like(x)
torch.full_like(x, 2)
torch.empty_like(x)  #! keys only
torch.rand_like(x)  #! keys only
torch.unbind(x, 0)
torch.split(x, 1)
torch.squeeze(x)
torch.permute(x, tuple(range(x.ndim)))
torch.utils._pytree.tree_map(lambda leaf: leaf + 0, x)
torch.vmap(lambda v: v)(x)
pickle.loads(pickle.dumps(x))
copy.copy(x)
copy.deepcopy(x)
x.tensordicts  #! any error
x.stack_dim  #! any error
x.append(x[0].clone())
x.insert(0, x[0].clone())
x.extend([x[0].clone()])
x.valid_keys()
x.maybe_to_stack()
x.from_nontensordata(NonTensorData("text", batch_size=[2]))
x.hook_in  #! any error
x.arrow_types  #! may work
"""
)


@dataclasses.dataclass(frozen=True)
class Expression:
    """A line, the methods of ``x`` that it draws, and how strictly the answers are compared."""

    case: Case
    methods: tuple[str, ...]

    @property
    def source(self) -> str:
        """The line as written."""
        return self.case.source


def _methods(source: str) -> tuple[str, ...]:
    """The attributes of ``x`` that a line reads."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
    return tuple(node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id == "x")


EXPRESSIONS = [Expression(case, _methods(case.source)) for case in parse_cases("interface", _TEXT)]
