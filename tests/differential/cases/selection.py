"""Choosing, splitting and renaming sets of keys; the context-manager settings."""

from tests.differential.harness import parse_cases

SELECT = parse_cases(
    "select",
    r"""
td.select("a", "n"), td.select(("n", "c")), td.select(("n", "zz"), strict=False)
td.select(("n", "zz"))
td.select(("a", "zz"), strict=False)
td.select("a", inplace=True) is td
td.select(["a", "b"])
td.select(), td.select("n")["n"] is td["n"], td.select(("n", "c"))["n"] is td["n"], td.select(("n", "c"), "n")
td.select(5)
nt.select("s")
td.lock_().select("a").is_locked
td.lock_().select("a", inplace=True)
td.exclude("zz"), td.exclude(("n", "c")), td.exclude("n"), td.exclude(("n", "zz"))
td.exclude(("a", "zz"))
td.exclude("a", inplace=True) is td
td.exclude()
td.exclude() is td
td.lock_().exclude("a").is_locked
td.split_keys(["a"], ["b"])
td.split_keys(["a"], [("n", "c")])
td.split_keys(["a"], inplace=True)[-1] is td
td.split_keys(["zz"])
td.split_keys(["zz"], strict=False)
td.split_keys(["zz"], default=0)
td.split_keys(["zz"], default=None)
td.split_keys([("n", "c")]), td.split_keys([("n", "c")], reproduce_struct=True)
(td.separates("a"), td)
(td.separates(("n", "c")), td)
(td.separates(("n", "c"), filter_empty=False), td)
td.separates("zz")
td.separates("zz", strict=False), td.separates("zz", default=None)
td.flatten_keys()
td.flatten_keys("_")
td.flatten_keys(".", inplace=True) is td
td.flatten_keys(",")
TD({"n": {"c": {"d": 1}}, "n.c": {"d": 1}}, []).flatten_keys()
TD({"n": {"c": 1}, "n.c": 2}, []).flatten_keys()
TD({"n": nt}, [3]).flatten_keys(), TD({"n": {}}, [3]).flatten_keys()
TD({"n": {}, "a": torch.ones(3)}, [3]).flatten_keys()
td.flatten_keys(is_leaf=lambda cls: True)
td.lock_().flatten_keys().is_locked
TD({"n": TD({"c": torch.ones(3, 2)}, [3, 2])}, [3]).flatten_keys()
td.flatten_keys().unflatten_keys()
TD({"a.b": 1, "a.c": 2, "d": 3}, []).unflatten_keys()
TD({"a.b": 1, "a": 2, "d": 3}, []).unflatten_keys()
TD({"a.b": 1, "a": {"z": 2}}, []).unflatten_keys(), TD({"a.b.c": 1}, []).unflatten_keys(".", inplace=True)
TD({"a_b": 1}, []).unflatten_keys("_"), TD({"a..b": 1, ".z": 1, "q.": 2}, []).unflatten_keys()
TD({"n": {"a.b": 1}}, []).unflatten_keys()
TD({"n": {}, "a": torch.ones(3)}, [3]).filter_empty_(), TD({"n": {"m": {}}, "a": torch.ones(3)}, [3]).filter_empty_()
TD({"n": {"m": "x"}}, [3]).filter_empty_()
TD({"n": nt}, [3]).filter_non_tensor_data()
td.set_non_tensor("z", 1) is td
td.set_non_tensor("z", 1); td
td.set_non_tensor("z", torch.ones(3)); td
td.set_non_tensor(("n", "z"), 1); td
td.set_non_tensor(("p", "z"), [1, 2]); td
td.create_nested("q"); td
td.create_nested(("q", "r")); td
nm.create_nested("q"); nm["q"].names
unravel_key("a"), unravel_key(("a",)), unravel_key(("a", ("b",))), unravel_key((("a", "b"), "c"))
unravel_key(5)
unravel_key(())
unravel_key(["a"])
unravel_key(("a", 5))
unravel_key_list(["a", ("b",), ("c", ("d",))]), unravel_key_list(("a", ("b",)))
unravel_key_list("a")
unravel_key_list([5])
unravel_key_to_tuple("a"), unravel_key_to_tuple(("a", ("b",))), unravel_key_to_tuple(5)
unravel_key_to_tuple(("a", 5)), unravel_key_to_tuple(())
group_by(TD({"k": torch.tensor([1, 0, 1]), "v": torch.arange(3)}, [3]), "k")
group_by(TD({"k": ["x", "y", "x"], "v": torch.arange(3)}, [3]), "k")
(is_tensor_collection(td), is_tensor_collection(TD), is_tensor_collection(torch.ones(1)),
    is_tensor_collection(NonTensorData("x")))
(is_tensorclass(td), is_tensorclass(NonTensorData("x")), is_tensorclass(NonTensorData))
(is_non_tensor(td), is_non_tensor(nt.get("s")), is_non_tensor("x"), is_non_tensor(NonTensorData),
    is_non_tensor(5))
(default_is_leaf(torch.Tensor), default_is_leaf(TD), default_is_leaf(NonTensorData),
    is_leaf_nontensor(NonTensorData), is_leaf_nontensor(TD))
(is_floating(td), is_bool(td), is_integer(td), is_inexact(td))  #! may work
list(td.lock_().select("n", "b", "a").keys(True))
n = td["n"]; td.select("a", ("n", "c"), inplace=True); td["n"] is n
td.exclude("a", ("n", "zz"), inplace=True)
td.lock_().exclude("b", inplace=True)
td.split_keys(["a"], {("n", "c"): "renamed"}, lambda path, leaf: path[-1] == "b")
td.split_keys(["q", "a"], strict=False, default=torch.ones(3), reproduce_struct=True)
x = TD({"a": {"c": torch.zeros(1)}, "a.b": torch.ones(1)}); (x.unflatten_keys("."), x)
td.lock_().flatten_keys(".").is_locked
list(td.flatten_keys("/", inplace=True).keys())
with td.lock_().flatten_keys(".") as flat: flat["a"] += 1
nt.lock_().empty(recurse=True)
td.empty(batch_size=[2, 2], names=["a", "b"])
td.empty(recurse=True, batch_size=[7])
""",
)

SETTINGS = parse_cases(
    "settings",
    r"""
with set_get_defaults_to_none(True): r = td.get("zz")  #! may work
get_defaults_to_none()
with set_list_to_stack(False): td["z"] = ["a", "b", "c"]
with set_list_to_stack(True): td["z"] = ["a", "b", "c"]
with set_list_to_stack(True): td["z"] = ["a", "b"]
with set_list_to_stack(True): td["z"] = [1, 2, 3]
with set_list_to_stack(False): td["z"] = [1, 2, 3]
with set_list_to_stack(True): td["z"] = [[1, 2], [3], [4]]
with set_list_to_stack(True): td["z"] = [{"a": 1}, {"a": 2}, {"a": 3}]
with set_list_to_stack(True): td["z"] = [torch.ones(2), torch.ones(2), torch.ones(2)]
(list_to_stack(), list_to_stack(True))
(capture_non_tensor_stack(), capture_non_tensor_stack(True))
(lazy_legacy(), lazy_legacy(True))
torch.stack([TD({"s": "x"}, []), TD({"s": "x"}, [])]), torch.stack([TD({"s": "x"}, []), TD({"s": "y"}, [])])
torch.stack([TD({"s": "x"}, []), TD({"s": "x"}, [])]).get("s")
torch.stack([TD({"s": "x"}, []), TD({"s": "y"}, [])])["s"]
s = set_capture_non_tensor_stack(True); s.__enter__();
    r = torch.stack([TD({"s": "x"}, []), TD({"s": "x"}, [])]); s.__exit__(None, None, None); r
s = set_capture_non_tensor_stack(False); s.__enter__();
    r = torch.stack([TD({"s": "x"}, []), TD({"s": "x"}, [])]); s.__exit__(None, None, None); r
get_printoptions()
""",
)

CASES = [*SELECT, *SETTINGS]
