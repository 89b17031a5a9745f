"""Devices, dtypes, memory, copies."""

from tests.differential.harness import parse_cases

CASES = parse_cases(
    "cast",
    r"""
td.to("cpu").device, td.to("cpu") is td, td.to("cpu")["n"].device
TD({"a": torch.ones(3)}, [3], device="cpu").to("cpu") is TD
x = TD({"a": torch.ones(3)}, [3], device="cpu"); x.to("cpu") is x
x = TD({"a": torch.ones(3)}, [3], device="cpu"); x.to(torch.device("cpu")) is x
x = td.to(torch.int64); x is td
td.select("a").to(torch.float32) is td
x = td.select("a"); x.to(torch.float32) is x
td.to("meta"), td.to("cpu", torch.float16), td.to(dtype=torch.float16, device="cpu")
td.to(torch.zeros(2, dtype=torch.int8))
td.to(batch_size=[])
td.to("cpu", non_blocking=True).device
td.to("cpu", num_threads=1).device
td.to(5)
td.to("nonexistent")
td.to(), td.to(None)
td.lock_().to("cpu").is_locked
td.lock_().to(torch.float64).is_locked
td.lock_().float().is_locked
td.cpu().device
td.float()["b"], td.float() is td
x = td.float(); x.float() is x
td.half()["b"]
td.bfloat16()["b"]
td.bool()["b"]
td.complex64()["b"]
td.uint8()["b"]
td.type(torch.int16)
td.float(cast_filter=lambda x: x.dtype == torch.int64)["b"]
td.half(cast_filter=lambda k, x: True)
td.select("a").dtype
td.float().dtype
TD({}, []).dtype
(td.is_cpu, td.is_cuda, td.is_meta)
TD({}, [], device="cpu").is_cpu
td.contiguous() is td
nm.transpose(0, 1).is_contiguous(), nm.transpose(0, 1).contiguous().is_contiguous()
td.clone() is td, td.clone()["n"] is td["n"], td.clone(False)["a"] is td["a"], td.clone(recurse=False)["n"] is td["n"]
td.lock_().clone().is_locked
td.lock_().clone(False).is_locked
td.lock_().clone(recurse=False)["n"].is_locked
td.share_memory_() is td
td.share_memory_().is_shared()
td.share_memory_().is_locked
td.bytes(count_duplicates=False)
TD({"a": td["a"], "b": td["a"]}, [3]).bytes(), TD({"a": td["a"], "b": td["a"]}, [3]).bytes(count_duplicates=False)
td.param_count(count_duplicates=False)
(nt.bytes(), nt.param_count())
td.data_ptr().keys()
type(td.data_ptr())
td.select("a").data_ptr() == {"a": td["a"].data_ptr()}
list(td.data_ptr().items())[0][0]
deep.to(torch.float32), deep.to("cpu").device, deep.to("cpu")["p", "q"].device
deep.float()
deep.clone()["p"] is deep["p"], deep.clone(False)["p", "q", "r"] is deep["p", "q", "r"]
deep.contiguous()
deep.is_contiguous()
deep.double()["p", "q", "r"].dtype
deep.share_memory_().is_shared()
fl.half().float()
fl.bfloat16()
fl.to(torch.int32), fl.to(torch.complex64)
fl.bool()
fl.int()
fl.to(torch.float64) is fl, fl.to(device="cpu", dtype=torch.float64), fl.to("cpu", torch.float64, True).device
fl.to("cpu", inplace=True) is fl
x = torch.nested.nested_tensor_from_jagged(torch.ones(3, 2), torch.tensor([0, 1, 3])); TD({"a": x}, [2]).bytes()
x = torch.nested.nested_tensor_from_jagged(torch.ones(3), torch.tensor([0, 1, 3]), torch.tensor([1, 2]));
    TD({"a": x}, [2]).bytes()
x = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]); TD({"a": x, "n": {"b": x}}, [2,
    -1]).to_padded_tensor(2.0)
x = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]); TD({"a": x}, [2,
    -1]).to_padded_tensor(mask_key="mask")["mask"].clone()
x = TD({"t": torch.rand(2, 3).t()}, [3]); x.clone()["t"].stride()
x = td.lock_().copy(); x["n", "new"] = torch.zeros(3); td
x = TD({"t": torch.rand(2, 3).t(), "a": torch.rand(3)}, [3]); y = x.contiguous();
    (y["a"] is x["a"], y["t"].is_contiguous(), y.is_locked)
td.to("meta").to("meta").is_meta
x = td.lock_().to("meta"); (x["n"].device, x["n"].is_locked, x.device)
td.cpu()["a"] is td["a"], td.cpu().is_cpu
nt.to("cpu").get("s").device
td.to(torch.zeros((), dtype=torch.float16, device="meta")), td.to("meta", torch.float16, True)
td.to(device=None) is td
td.to(batch_size=[]) is td
td.to("cpu", batch_size=[])["n"].batch_size
n = td["n"]; x = td.to("meta", torch.float64, inplace=True); (x is td, td["n"] is n)
td.to(torch.float64, cast_filter=lambda k, v: v.is_floating_point())
td.to("meta", torch.float64, cast_filter=lambda k, v: v.is_floating_point())["b"]
seen = []; td.double(cast_filter=lambda k, v: seen.append(k)); seen
td.type("torch.IntTensor")
td.lock_().type(torch.int8).is_locked
td.to("foo")
td.to(dict)
td.to("cpu", 3.5)
td.share_memory_(); (td["n"].is_shared(), td.clone().is_shared(), td["a"].is_shared())
td.share_memory_().unlock_(); (td.is_shared(), td["n"].is_shared())
td.share_memory_(); td["new"] = torch.zeros(3)
td.share_memory_().set_("a", torch.zeros(3, 4))
td.data_ptr()["n", "c"] == td["n", "c"].data_ptr(), td.data_ptr().batch_size
(td[1:].data_ptr(storage=True) == td.data_ptr(storage=True)).all(), (td[1:].data_ptr() == td.data_ptr()).any()
list(lazy_stack([td, td]).data_ptr().keys())
x = fl.clone().requires_grad_(); x.grad
x = fl.clone().requires_grad_(); x["a"].sum().backward(); list(x.grad.keys(True, True))
x = fl.clone().requires_grad_(); x["a"].sum().backward(); x.zero_grad() is x, x["a"].grad
x = fl.clone().requires_grad_(); (x * 2).sum().backward(inputs=x.select("a")); list(x.grad.keys(True, True))
x = fl.clone().requires_grad_(); (x * 2).backward()
fl.backward()
x = fl.clone().requires_grad_(); (x * 2).backward(x.data.select("a"))
x = fl.clone().requires_grad_() * 2; x.detach_() is x, x.requires_grad
x = fl.clone().requires_grad_().lock_(); [(y.requires_grad, y.is_locked) for y in (x.detach(), x.data)]
td.type(torch.float64, cast_filter=lambda k, v: v.is_floating_point())
x = fl.clone().requires_grad_(); x["a"].sum().backward(); x.zero_grad(set_to_none=False); x["a"].grad, x["b"].grad
# unbatched tensors
x = TD({"a": torch.zeros(3, 5), "u": UnbatchedTensor(torch.ones(7, 11))}, [3]);
    sorted(x.keys(True, True)), x.entry_class("u"), x.get_item_shape("u"), x.is_non_tensor("u"),
    x.select("u").is_empty(), x.depth, x.dtype
x = TD({"a": torch.zeros(3, 5), "u": UnbatchedTensor(torch.ones(7, 11))}, [3]);
    type(dict(x.items(True))["u"]), [type(v) for v in x.values()], list(x.non_tensor_items()), x.to_dict()["u"].shape,
    repr(x), x.param_count()
x = TD({"a": torch.zeros(3, 5), "u": UnbatchedTensor(torch.ones(7, 11))}, [3]); type(x.pop("u")), list(x.keys())
x = TD({"a": torch.zeros(3, 5), "u": UnbatchedTensor(torch.ones(7, 11))}, [3]);
    type(x.rename_key_("u", "w")["w"]), [sorted(y.keys()) for y in x.split_keys(["w"])], x.setdefault("w", 1).shape,
    x.get_at("w", 0).shape
u = UnbatchedTensor(torch.ones(7, 11)); [type(v) for v in (u + 1, u[0], u.sum(), u.view(-1), torch.stack([u, u]),
    u.clone(), u == u, u.double())], u.batch_size
UnbatchedTensor([1.0, 2.0]).shape
u = UnbatchedTensor(torch.ones(7)); x = TD({"u": u}, [3]); u.batch_size, x["u"].batch_size
x = TD({"u": UnbatchedTensor(torch.ones(7))}, [3]); x["v"] = x["u"] * 2; x["v"]
TD({"a": torch.zeros(3, 4), "u": UnbatchedTensor(torch.ones(7))}).auto_batch_size_().batch_size,
    TD({"u": UnbatchedTensor(torch.ones(7))}).auto_batch_size_().batch_size
x = TD({"u": UnbatchedTensor(torch.ones(7))}, [3]).requires_grad_(); (x * 2)["u"].sum().backward();
    x["u"].grad, x.grad["u"].shape
x = TD({"u": UnbatchedTensor(torch.ones(7))}, [3]);
    x.to("meta")["u"].device.type, TD({"u": UnbatchedTensor(torch.ones(7))}, [3], device="meta")["u"].device.type
x = TD({"a": torch.zeros(3, 5), "u": UnbatchedTensor(torch.ones(7))}, [3]); x[0] = TD({"a": torch.ones(5)});
    x.update_at_({"a": torch.zeros(5)}, 1); x["u"]
c.y = UnbatchedTensor(torch.ones(7)); type(c.y), type(c[0].y), type(torch.stack([c, c]).y), c[0].y.batch_size
TD({"a": torch.ones(3, 2), "u": UnbatchedTensor(torch.ones(7, 2))}, [3]).apply(lambda x: x[0], batch_size=[])["u"]
repr(UnbatchedTensor(torch.ones(2)))
x = TD({"a": torch.zeros(3, 5), "u": UnbatchedTensor(torch.ones(7))}, [3]);
    [type(dict(i)["u"]) for i in (x.items(), x.items(True, True), x.items(sort=True))], list(x.keys(leaves_only=True))
""",
)
