"""Padding, stacking and concatenating."""

from tests.differential.harness import parse_cases

CASES = parse_cases(
    "join",
    r"""
pad(td, [1, 1])
pad(td, [1, 1], value=5)["b"]
pad(td, [1])
pad(nm, [0, 1, 2, 0]), pad(nm, [1, 1])
pad(td, [1, 1, 0, 0])
td.pad([0, 1])
pad_sequence([td, td[:2]]), pad_sequence([td, td[:2]], return_mask=True), pad_sequence([td, td[:2]], return_mask="m")
pad_sequence([td, td[:2]], padding_value=7)["b"], pad_sequence([td, td[:2]], padding_side="left")["b"]
pad_sequence([td, td[:2]], pad_dim=1)
pad_sequence([TD({"a": torch.ones(2, 3)}, [2]), TD({"a": torch.ones(2, 4)}, [2])], pad_dim=1)
pad_sequence([TD({"a": torch.ones(2, 3), "s": "x"}, [2]), TD({"a": torch.ones(3, 3), "s": "y"}, [3])])
pad_sequence([TD({"n": {"a": torch.ones(k), "s": "x"}}, [k]) for k in (2, 3)])
pad_sequence([TD({"n": {"m": {"s": ["x"] * k}}, "a": torch.ones(k)}, [k]) for k in (3, 1)], padding_side="left")
pad_sequence([TD({"n": {"b": torch.ones(2)}, "m": {"m": {}}, "a": torch.ones(2)}, [2]), TD({"a": torch.ones(3)}, [3])])
pad_sequence([])
lz.to_padded_tensor(7.0)["a"][0]  #! may work
lz.to_padded_tensor(mask_key="m")  #! may work
torch.stack([td, td], 0), torch.stack([td, td], 1), torch.stack([td, td], -1)
torch.stack([td, td], 2)
torch.stack([td, td], 3)
torch.stack([td, td.select("a")])
torch.stack([td, td[:2]])
torch.stack([nm, nm]).names, torch.stack([nm, nm], 1).names, torch.stack([td, td], out=td.expand(2, 3).clone())
torch.stack([])
torch.stack([td, torch.ones(3)])  #! any error
torch.stack([TD({"a": torch.ones(3)}, []), TD({"a": torch.ones(4)}, [])])
maybe_dense_stack([TD({"a": torch.ones(3)}, []), TD({"a": torch.ones(4)}, [])])
dense_stack_tds([td, td])
dense_stack_tds([td, td], dim=1), dense_stack_tds(ds), dense_stack_tds(lz)
dense_stack_tds([td, td.select("a")])
torch.cat([td, td]), torch.cat([nm, nm], 1), torch.cat([nm, nm], -1)
torch.cat([nm, nm], 2)
torch.cat([td, td.select("a")])
torch.cat([nm, nm[:, :2]], 1)
torch.cat([nm, nm[:, :2]], 0)
torch.cat([nm, nm]).names
torch.cat([TD({"a": 1}, []), TD({"a": 1}, [])])
torch.cat([td, td], out=torch.cat([td, td]))
torch.cat([TD({"s": "x", "a": torch.ones(2)}, [2]), TD({"s": "y", "a": torch.ones(1)}, [1])])
torch.cat([TD({"s": "x", "a": torch.ones(2)}, [2]), TD({"s": "x", "a": torch.ones(1)}, [1])])
torch.cat([])
merge_tensordicts(td, TD({"z": torch.ones(3)}, [3]))
merge_tensordicts(td, TD({"a": torch.zeros(3, 4)}, [3]))["a"].sum()
merge_tensordicts(td, TD({"a": torch.zeros(3, 4)}, [3]), callback_exist=lambda *a: a[0])
merge_tensordicts(td, TD({"n": TD({"q": torch.ones(3)}, [3])}, [3]))
merge_tensordicts(td, TD({"z": torch.ones(4)}, [4]))
merge_tensordicts(td)
merge_tensordicts()
# more joins
torch.stack([deep, deep], 1), torch.stack([nt, nt])
torch.cat([nt, nt]), torch.cat([deep, deep])
torch.stack([td, td], dim=0)["n"].batch_size, torch.stack((nm, nm))["n"].names
torch.cat((nm, nm), dim=0)["n"].names, torch.cat([nm, nm], dim=-2)
torch.stack([td.lock_(), td])
torch.stack([TD({"a": torch.ones(2)}, [2], device="cpu"), TD({"a": torch.ones(2)}, [2], device="cpu")])
torch.stack([TD({"a": torch.ones(2)}, [2], device="cpu"), TD({"a": torch.ones(2)}, [2])])
torch.stack([TD({"a": torch.ones(2)}, [2]), TD({"a": torch.ones(2, dtype=torch.int64)}, [2])])
torch.cat([TD({"a": torch.ones(2)}, [2]), TD({"a": torch.ones(2, dtype=torch.int64)}, [2])])
torch.stack([TD({}, [2]), TD({}, [2])]), torch.stack([TD({"n": {}}, [2]), TD({"n": {}}, [2])])
torch.cat([TD({}, [2]), TD({}, [3])])
lazy_stack([td, td.select("a")])
lazy_stack([td, td.select("a")]).contiguous()
maybe_dense_stack([td, td.select("a")]), maybe_dense_stack([td, td], 1), maybe_dense_stack([nt, nt])
TD.stack([td, td], 1)
TD.cat([nm, nm], 1)
x = TD(a=torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged), batch_size=[2]);
    y = torch.cat([x, x[1:], TD({"a": x["a"] * 2}, [2])]); y.batch_size, y["a"].offsets(), y["a"].values()
x = TD(a=torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), batch_size=[2]);
    torch.cat([TD(n=x, batch_size=[2])] * 2)[2]["n", "a"]
x = TD(a=torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), batch_size=[2]);
    torch.cat([x, TD(a=torch.ones(1, 4), batch_size=[1])])  #! any error
""",
)
