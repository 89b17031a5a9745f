"""Locks, and the context-manager forms that write back."""

from tests.differential.harness import parse_cases

LOCK = parse_cases(
    "lock",
    r"""
td.lock_() is td
td.lock_(); td["n"].is_locked
td.lock_(); td["z"] = torch.ones(3)
td.lock_(); td["a"] = torch.ones(3)
td.lock_(); td["n", "z"] = torch.ones(3)
td.lock_(); td["n"]["z"] = torch.ones(3)
td.lock_(); td["n"].unlock_()
td.lock_(); td.unlock_(); td["n"].is_locked
td.lock_(); td.set_("a", torch.zeros(3, 4)); td["a"].sum()
td.lock_(); td.set("a", torch.zeros(3, 4), inplace=True); td["a"].sum()
td.lock_(); td.pop("a")
td.lock_(); td.del_("a")
td.lock_(); del td["a"]
td.lock_(); td.rename_key_("a", "z")
td.lock_(); td.update({"z": 1})
td.lock_(); td.clear()
td.lock_(); td.popitem()
td.lock_(); td.setdefault("z", torch.ones(3))
td.lock_(); td.setdefault("a", torch.ones(3)).sum()
td.lock_(); td.set_non_tensor("z", 1)
td.lock_(); td.create_nested("z")
td.lock_(); td.names = ["x"]; td.names
td.lock_(); td.rename_("x").names
td.lock_(); td.auto_batch_size_()
td.lock_(); td.clear_device_(); td.device
td.lock_(); td.flatten_keys(inplace=True)
td.lock_(); td.select("a", inplace=True)
td.lock_(); td.exclude("a", inplace=True)
td.lock_(); td.split_keys(["a"], inplace=True)
td.lock_(); td.replace(a=torch.zeros(3)).is_locked
td.lock_(); td.apply_(lambda x: x * 0)["a"].sum()
td.lock_(); td.apply(lambda x: x * 0, inplace=True)["a"].sum()
td.lock_(); td.requires_grad_(False) is td
td.lock_(); td.detach_() is td
td.lock_(); td.share_memory_() is td
td.lock_(); (td + 1).is_locked
td.lock_(); (td.view(-1).is_locked, td.reshape(3, 1).is_locked, td.unsqueeze(0).is_locked,
    td.split(2)[0].is_locked, td.unbind(0)[0].is_locked)
td.lock_(); td.view(3, 1)["n"].is_locked
td.lock_(); (td.permute(0).is_locked, td.expand(2, 3).is_locked, td.gather(0, torch.tensor([0])).is_locked)
td.lock_(); (td.detach().is_locked, td.contiguous().is_locked, td.data.is_locked,
    td.flatten_keys().is_locked)
td.lock_(); (td.empty().is_locked, td.copy().is_locked)
td.lock_(); (torch.stack([td, td]).is_locked, torch.cat([td, td]).is_locked)
td.lock_(); lazy_stack([td, td]).is_locked
td.lock_(); td.is_locked = False; td["n"].is_locked
td.is_locked = True; td["n"].is_locked
n = td["n"]; n.lock_(); td["z"] = torch.ones(3); td["n", "z"] = 1
n = td["n"]; n.lock_(); td.lock_(); td.unlock_(); n.is_locked
n = td["n"]; p1 = TD({"n": n}, [3]).lock_(); n.unlock_()
n = td["n"]; p1 = TD({"n": n}, [3]).lock_(); del p1; n.unlock_(); n.is_locked
n = td["n"]; p1 = TD({"n": n}, [3]).lock_(); p2 = TD({"n": n}, [3]).lock_(); p1.unlock_()
td.lock_(); td["n"] is td["n"]
# lock_ and unlock_ as context managers
locked_through(td, "lock_", {}), locked_through(td, "unlock_", {})
td.lock_(); locked_through(td, "unlock_", {"z": torch.ones(3), ("n", "z"): torch.ones(3)})
td.lock_(); locked_through(td, "unlock_", {"z": torch.ones(4)})
locked_through(td, "lock_", {"z": torch.ones(3)})
""",
)

CONTEXT = parse_cases(
    "context",
    r"""
write_through(td.flatten_keys("."), {"n.z": torch.ones(3), "q": torch.ones(3)})
x = TD({"a.b": 1}, []); write_through(x.unflatten_keys("."), {("a", "z"): 1})
write_through(td.view(-1), {"z": torch.ones(3)})
write_through(nm.view(-1), {"z": torch.ones(6)})
write_through(nm.view(-1), {"a": torch.zeros(6, 4)})
write_through(nm.reshape(-1), {"z": torch.ones(6)})
write_through(nm.flatten(), {"z": torch.ones(6)})
write_through(nm.flatten(0, 1), {"z": torch.ones(6)})
write_through(nm.unflatten(1, (3, 1)), {"z": torch.ones(2, 3, 1)})
write_through(nm.transpose(0, 1), {"z": torch.ones(3, 2)})
write_through(nm.permute(1, 0), {"z": torch.ones(3, 2)})
write_through(nm.unsqueeze(0), {"z": torch.ones(1, 2, 3)})
x = td.unsqueeze(0); write_through(x.squeeze(0), {"z": torch.ones(3)})
x = td.unsqueeze(0); write_through(x.squeeze(), {"z": torch.ones(3)})
write_through(td.expand(2, 3), {"z": torch.ones(2, 3)}), write_through(td.select("a"), {"z": torch.ones(3)})
write_through(td.exclude("a"), {"z": torch.ones(3)})
write_through(td.split(1), {})
write_through(td, {})
write_through(td.clone(), {})
write_through(td.to(torch.float64), {"z": torch.ones(3)})
write_through(td.to_module(torch.nn.Linear(1, 1)), {})
write_through(td[0], {}), write_through(td.rename("p"), {})
td.lock_(); write_through(td.view(-1), {"z": torch.ones(3)})
write_through(nm.view(-1), None)
delete_through(nm.view(-1), "n"), delete_through(td.flatten_keys("."), "n.c")
td.lock_(); write_through(td.transpose(0, -1), {}); td.is_locked
td.lock_(); write_through(td.permute(0), {}); td.is_locked
td.lock_(); write_through(td.view(3), {}); td.is_locked
td.lock_(); write_through(td.squeeze(0), {}); td.is_locked
lz.lock_(); write_through(lz.transpose(0, 0), {}); lz.is_locked
x = td.float(); write_through(x.transpose(0, 0), {"z": torch.ones(3)}); ("z" in x.keys(), "z" in td.keys())
x = td.view(3, 1); y = x.view(3, 1); write_through(y, {"z": torch.ones(3, 1)}); ("z" in x.keys(), "z" in td.keys())
""",
)

CASES = [*LOCK, *CONTEXT]
