"""A refused change changes nothing, one line of Python each: the names are those of the differential cases."""

import pytest

from tests.differential.harness import Case
from tests.differential.harness.namespace import FIXTURES, PROJECT, build
from tests.differential.harness.snapshot import differences, snapshot

REFUSED = """
td.cat_tensors("a", "zz", out_key="q")
td.stack_tensors("a", "b", out_key="q", dim=0)
td.cat_tensors("a", "a", out_key=("b", "q"))
nm.cat_tensors("a", "a", out_key=("n", "q"))
c.cat_tensors("x", "x", out_key="zz")
td.rename_key_("b", ("a", "q"))
td.rename_key_("n", ("a", "q"))
nt.rename_key_("s", ("a", "q"))
ds.rename_key_("n", ("a", "q"))
td.rename_keys({"a": "b"})
td.select("a", "zz", inplace=True)
td.select(("n", "zz"), inplace=True)
deep.select(("p", "q", "r"), "zz", inplace=True)
o.select(("inner", "x"), "zz", inplace=True)
ds.select(("n", "c"), "zz", inplace=True)
deep.split_keys([("p", "q", "r"), "zz"], inplace=True)
td.split_keys(["a", "zz"], inplace=True)
td.update({"a": torch.zeros(5)})
td.set("a", torch.zeros(5))
td.set(("zz", "q"), torch.zeros(5))
td.set(("n", "zz", "q"), torch.zeros(5))
td[("zz", "q", "r")] = torch.zeros(5)
td.setdefault(("zz", "q"), torch.zeros(5))
td.set(("a", "q"), torch.zeros(3))
ds.set(("zz", "q"), torch.zeros(5))
ds.set(("n", "zz", "q"), torch.zeros(5))
o.set(("inner", "zz"), torch.zeros(3))
TD({"o": o}, [3]).set(("o", "zz", "q"), torch.zeros(3))
nt.set(("s", "q"), torch.zeros(3))
td.set_non_tensor(("a", "q"), 1)
td.set_("a", torch.zeros(5))
nt.set_("s", torch.ones(3))
td.pop(("n", "zz"))
td.add_(torch.ones(5, 3))
td.batch_size = [3, 5]
nm.names = ["p", "p"]
td[0] = TD({"a": torch.zeros(7)}, [])
lz.append(TD({}, [5]))
lz.append(torch.zeros(2))
lz.insert(0, TD({}, [5]))
ds.set_("a", torch.ones(3, 5))
lz.set_("k0", torch.ones(3, 2))
ds.pad([0, 0, 0, -4], inplace=True)
td.pad([1, 2, 3], inplace=True)
pad(td, [0, -4], inplace=True)
c.pad([-4, 0], inplace=True)
ds.pad([1], inplace=True)
lz.pad([1] * 6, inplace=True)
ds.reshape(-1, inplace=True)
ds.repeat(2, 1, inplace=True)
ds.gather(0, torch.tensor([[1, 0]]), inplace=True)
ds.contiguous(inplace=True)
td.load_state_dict(td.exclude("a").state_dict())
c.update({"zz": 1})
c.set("zz", 1)
c[0] = {"x": 1}
""".strip().splitlines()


@pytest.mark.parametrize("source", REFUSED)
def test_a_refused_change_changes_nothing(source: str) -> None:
    used = Case("refused", source).names()
    scope = build(PROJECT, used)
    before = {name: snapshot(scope[name]) for name in used & set(FIXTURES)}
    with pytest.raises(Exception):  # noqa: B017 - which error it is, other tests ask
        exec(source, scope)
    for name, expected in before.items():
        assert not differences(expected, snapshot(scope[name]), name)
