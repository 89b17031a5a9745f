"""Devices, dtypes, memory, copies."""

from __future__ import annotations

from tests.differential.harness import parse_cases

CASES = parse_cases(
    "cast",
    r"""
td.to(torch.float64)
td.to("cpu").device
td.to("cpu") is td
td.to("cpu")["n"].device
TD({"a": torch.ones(3)}, [3], device="cpu").to("cpu") is TD
x = TD({"a": torch.ones(3)}, [3], device="cpu"); x.to("cpu") is x
x = TD({"a": torch.ones(3)}, [3], device="cpu"); x.to(torch.device("cpu")) is x
x = td.to(torch.int64); x is td
td.select("a").to(torch.float32) is td
x = td.select("a"); x.to(torch.float32) is x
td.to("meta")
td.to("cpu", torch.float16)
td.to(dtype=torch.float16, device="cpu")
td.to(torch.zeros(2, dtype=torch.int8))
td.to(batch_size=[])
td.to("cpu", non_blocking=True).device
td.to("cpu", num_threads=1).device
td.to(5)
td.to("nonexistent")
td.to()
td.to(None)
td.lock_().to("cpu").is_locked
td.lock_().to(torch.float64).is_locked
td.lock_().float().is_locked
td.cpu().device
td.cuda()
td.float()["b"]
td.float() is td
x = td.float(); x.float() is x
td.double()
td.half()["b"]
td.bfloat16()["b"]
td.int()
td.bool()["b"]
td.float16()
td.complex64()["b"]
td.uint8()["b"]
td.type(torch.int16)
td.float(cast_filter=lambda x: x.dtype == torch.int64)["b"]
td.half(cast_filter=lambda k, x: True)
nt.double()
td.dtype
td.select("a").dtype
td.float().dtype
TD({}, []).dtype
nt.dtype
td.is_floating_point()
td.device
(td.is_cpu, td.is_cuda, td.is_meta)
TD({}, [], device="cpu").is_cpu
td.pin_memory()
td.is_contiguous()
td.contiguous() is td
td.contiguous()
nm.transpose(0, 1).is_contiguous()
nm.transpose(0, 1).contiguous().is_contiguous()
td.clone() is td
td.clone()["n"] is td["n"]
td.clone(False)["a"] is td["a"]
td.clone(recurse=False)["n"] is td["n"]
td.lock_().clone().is_locked
td.lock_().clone(False).is_locked
td.lock_().clone(recurse=False)["n"].is_locked
td.share_memory_() is td
td.share_memory_().is_shared()
td.share_memory_().is_locked
td.is_shared()
td.bytes()
td.bytes(count_duplicates=False)
TD({"a": td["a"], "b": td["a"]}, [3]).bytes()
TD({"a": td["a"], "b": td["a"]}, [3]).bytes(count_duplicates=False)
td.numel()
td.param_count()
td.param_count(count_duplicates=False)
(nt.bytes(), nt.param_count())
td.data_ptr().keys()
type(td.data_ptr())
td.select("a").data_ptr() == {"a": td["a"].data_ptr()}
list(td.data_ptr().items())[0][0]
deep.to(torch.float32)
deep.to("cpu").device
deep.to("cpu")["p", "q"].device
deep.float()
deep.clone()["p"] is deep["p"]
deep.clone(False)["p", "q", "r"] is deep["p", "q", "r"]
deep.contiguous()
deep.is_contiguous()
deep.double()["p", "q", "r"].dtype
deep.share_memory_().is_shared()
fl.half().float()
fl.bfloat16()
fl.to(torch.int32)
fl.to(torch.complex64)
fl.bool()
fl.int()
fl.type(torch.float64)
fl.to(torch.float64) is fl
fl.to(device="cpu", dtype=torch.float64)
fl.to("cpu", torch.float64, True).device
fl.to("cpu", inplace=True) is fl
x = torch.nested.nested_tensor_from_jagged(torch.ones(3, 2), torch.tensor([0, 1, 3])); TD({"a": x}, [2]).bytes()
x = torch.nested.nested_tensor_from_jagged(torch.ones(3), torch.tensor([0, 1, 3]), torch.tensor([1, 2]));
    TD({"a": x}, [2]).bytes()
x = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]); TD({"a": x, "n": {"b": x}}, [2,
    -1]).to_padded_tensor(2.0)
x = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]); TD({"a": x}, [2,
    -1]).to_padded_tensor(mask_key="mask")["mask"].clone()
""",
)
