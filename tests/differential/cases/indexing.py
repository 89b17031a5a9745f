"""Every index that torch accepts, read and written."""

from tests.differential.harness import parse_cases

INDEX = parse_cases(
    "index",
    r"""
td[3]
td[0:2]
td[::-1]
td[5:], td[...] is td, td[:] is td, td[()] is td
td[None, 0], td[0, None], td[True], td[False]
td[[0, 2]], td[[]], td[0,], td[range(2)]
td[np.array([0, 2])], td[np.array([True, False, True])], td[np.int64(1)]
td[np.bool_(True)]  #! may work
td[torch.tensor(1)], td[torch.tensor([0, 2])], td[torch.tensor([[0, 2]])], td[torch.tensor([True, False, True])]
td[torch.tensor(True)], td[torch.zeros(3, dtype=torch.bool)], td[[True, False, True]]
td[torch.tensor([5])]
td[torch.tensor([True, False])]
td[torch.tensor([0.5])]
td[1.5]
td[0, 0]
td[..., 0]
nm[0, 1], nm[:, 1], nm[..., 1], nm[1, ...]
nm[0:1, [0, 2]], nm[[0, 1], [0, 1]], nm[:, torch.tensor([True, False, True])], nm[torch.ones(2, 3, dtype=torch.bool)]
nm[torch.ones(2, 3, 4, dtype=torch.bool)]
nm[torch.tensor([0, 1]), None, 0], nm[0, None, [0, 1]], nm[None, [0, 1], None], nm[:, None, 0]
nm[[0, 1], :], nm[[0], 0:2, ...], nm[range(1), range(1)], nm[(slice(None),) * 2]
nm[(slice(None),) * 3]
nm[torch.tensor(0), torch.tensor(1)], nm[torch.tensor(0), [0, 1]], nm[0, [0, 1]], nm[[0, 1], 0]
TD({"a": torch.ones(2, 3, 4, 5)}, [2, 3, 4])[0, :, [0, 1]]
TD({"a": torch.ones(2, 3, 4, 5)}, [2, 3, 4])[[0, 1], :, [0, 1]]
TD({"a": torch.ones(2, 3, 4, 5)}, [2, 3, 4], names=["x", "y", "z"])[[0, 1], :, [0, 1]].names
TD({"a": torch.ones(2, 3, 4, 5)}, [2, 3, 4], names=["x", "y", "z"])[:, [0, 1], [0, 1]].names
TD({"a": torch.ones(2, 3, 4, 5)}, [2, 3, 4], names=["x", "y", "z"])[:, torch.ones(3, 4,
    dtype=torch.bool)].names
TD({"a": 1}, [])[0]
TD({"a": 1}, [])[None], TD({"a": 1}, [])[...], TD({"a": 1}, [])[True], TD({"a": 1}, [])[torch.tensor(True)]
TD({"a": 1}, [])[()]
TD({"a": 1}, [])[:]
td["a",]
td[slice(None), "a"]  #! any error
td[td]  #! any error
td[{}]
nt[0:2], nt[torch.tensor([True, False, True])], nt[0]["s"]
torch.stack([TD({"s": "x"}, []), TD({"s": "y"}, [])])[0]
torch.stack([TD({"s": "x"}, []), TD({"s": "y"}, [])])[torch.tensor([1, 0])]
td[0]["a"].data_ptr() == td["a"].data_ptr()
td.lock_()[0].is_locked
td[0:2].is_locked
# deeper and larger trees
deep[0], deep[:, None], deep[torch.tensor([1, 0, 1])], deep[[True, False]]
deep[-1:]
nm[..., None], nm[None, ..., None], nm[:, 0:2], nm[1:, -1]
nm[True, 0], nm[0, True], nm[:, torch.tensor(0)], nm[torch.tensor([[True, False, True], [False, False, True]])]
nm[torch.zeros(2, 3, dtype=torch.bool)], nm[torch.tensor([], dtype=torch.long)]
nm[np.array([0, 1]), np.array([1, 2])], nm[:, np.array([True, False, True])], nm[(0, 1)], nm[[0, 1], [1]]
nm[[0, 1], [0, 1, 2]]
nm[-3]
nm[:, 3]
nm[0:0], nm[5:2], nm[::2, ::2], nm[:, range(0, 3, 2)]
nm[torch.tensor([0, 1], dtype=torch.int32)], nm[torch.tensor([0, 1], dtype=torch.uint8)]
TD({"a": torch.ones(0, 3)}, [0])[...], TD({"a": torch.ones(0, 3)}, [0])[0:1]
TD({"a": torch.ones(0, 3)}, [0])[0]
TD({"a": torch.ones(2, 0, 3)}, [2, 0])[0]
""",
)

SETITEM = parse_cases(
    "setitem",
    r"""
td[0] = td[1]; td["b"]
td[0] = 0; (td["b"], td["a"][0])
td[0] = 0.5; td["b"]
td[0] = torch.zeros(4); td
td[0] = torch.tensor(7); td["b"]
td[0] = TD({"a": torch.zeros(4)}, []); td["a"][0]
td[0] = TD({"a": torch.zeros(4), "zz": torch.ones(2)}, []); td
td[0] = {"a": torch.zeros(4), "b": 9, "n": {"c": torch.zeros(2)}}; td["b"]
td[0] = {"a": torch.zeros(4)}; td["a"][0]
td[0:2] = td[1:3]; td["b"]
td[0:2] = td[2]; td["b"]
td[0:2] = td[1:2]; td["b"]
td[0:2] = td; td
td[torch.tensor([True, False, True])] = 0; td["b"]
td[torch.tensor([0, 2])] = td[[1, 1]]; td["b"]
td[[0, 2]] = 0; td["b"]
td[...] = 0; td["b"]
td[:] = td * 2; td["b"]
td[None] = td[None]; td["b"]
td[()] = td * 2; td["b"]
td[5] = 0
td[range(2)] = 0; td["b"]
td[np.array([0, 1])] = 0; td["b"]
nm[:, 0] = 0; nm["a"].sum()
nm[0, 1] = nm[1, 1]; nm["a"][0, 1]
nm[..., 0] = nm[..., 1]; nm["a"][:, 0]
td["a", "b"] = torch.ones(3)
td.lock_(); td[0] = 0; td["b"]
td.lock_(); td[0] = TD({"zz": torch.ones(())}, []); td
td[0] = "x"  #! any error
td[0] = None  #! any error
nt[0] = nt[1]; nt
nt[0] = TD({"a": torch.zeros(()), "s": "world", "o": {1}}, []); nt
x = TD({}, [4]); x[1] = TD({"a": torch.ones(2), "n": {"c": 5}}, []); x
x = TD({}, [4]); x[1] = TD({"a": torch.ones(2)}, []); x["a"]
x = TD({}, [4]); x[1:3] = TD({"a": torch.ones(2, 2)}, [2]); x
x = TD({}, [4]); x[1] = {"a": torch.ones(2)}; x
x = TD({}, [4]); x[torch.tensor([1, 2])] = TD({"a": torch.ones(2, 2)}, [2]); x
x = TD({}, [4]); x[torch.tensor([True, False, False, True])] = TD({"a": torch.ones(2, 2)}, [2]); x
x = TD({}, [4, 3]); x[:, 1] = TD({"a": torch.ones(4, 2)}, [4]); x["a"][0]
x = TD({}, [4]); x[1] = TD({"s": "hey"}, []); x
x = TD({}, [2]); x[0] = TD({"s": "hey"}, []); x[1] = TD({"s": "you"}, []); x
x = TD({}, [2]); x[0] = 1; x
x = TD({}, [2]); x[0] = TD({"a": torch.ones(3)}, [3]); x
x = TD({}, [2], device="cpu"); x[0] = TD({"a": torch.ones(3)}, []); x
x = TD({"a": torch.ones(2)}, [2]); x[0] = TD({"b": torch.ones(3)}, []); x
x = TD({"n": {}}, [2]); x[0] = TD({"n": {"b": torch.ones(3)}}, []); x
deep[0] = 0; deep
deep[0] = deep[1].clone(); deep
deep[[0, 1]] = deep[[1, 0]]; deep
deep[0] = {"p": {"q": {"r": torch.full((2,), 9)}}}; deep
deep[0] = {("p", "q", "r"): torch.full((2,), 9)}; deep
deep[:, None] = deep[:, None] * 1; deep
nm[0, 0] = {"a": torch.zeros(4)}; nm["a"][0, 0]
nm[0] = {"a": torch.zeros(4)}; nm["a"][0]
nm[[0, 1], [0, 1]] = 0; nm["a"]
nm[torch.ones(2, 3, dtype=torch.bool)] = 0; nm["a"]
nm[:, [0, 2]] = nm[:, [2, 0]]; nm["a"]
nm[None] = 5; nm["a"][0, 0]
x = TD({}, [4]); x[3] = TD({"a": torch.ones(2)}, []); x[0] = TD({"a": torch.zeros(2)}, []); x
x = TD({}, [4]); x[0] = TD({"a": torch.ones(2, dtype=torch.int64)}, []); x["a"].dtype
x = TD({}, [4]); x[0] = TD({"a": {"b": {"c": torch.ones(2)}}}, []); x
x = TD({}, [4], names=["t"]); x[0] = TD({"a": torch.ones(2)}, []); x.names
x = TD({}, [2, 3]); x[0, 1] = TD({"a": torch.ones(2)}, []); x["a"]
x = TD({}, [2, 3]); x[..., 0] = TD({"a": torch.ones(2, 5)}, [2]); x["a"].shape
x = TD({"a": torch.zeros(4)}, [4]); x[1] = TD({"a": torch.ones(2)}, [])
x = TD({"a": torch.zeros(4)}, [4]); x[1] = {"a": 7}; x["a"]
x = TD({"a": torch.zeros(4)}, [4]); x[1:3] = {"a": torch.ones(2)}; x["a"]
x = TD({"a": torch.zeros(4)}, [4]); x[1] = TD({"a": torch.tensor(2)}, []); x["a"]
td[:,] is td, td[...,] is td, td[..., :] is td, td[:, ...] is td, td[()] is td, td[:3] is td
nm[:, :] is nm, nm[..., :] is nm, nm[:, :, ...] is nm, nm[:, :].names
nm.lock_(); nm[:, :].is_locked, nm[...,].is_locked
td[0][...,] is td[0]
td[:, :, ...]  #! any error
td[..., ...]  #! any error
x = td[0]; x[...,] is x, x[...] is x
lz[...,] is lz, lz[:, :] is lz
td.memmap()[:,].is_memmap()
""",
)

CASES = [*INDEX, *SETITEM]
