"""``repr`` and ``assert_close``."""

from __future__ import annotations

from tests.differential.harness import parse_cases

REPR = parse_cases(
    "repr",
    r"""
repr(td)
repr(nt)
repr(nm)
repr(lz)
repr(ds)
repr(TD({}, []))
repr(TD({}, [3], device="cpu"))
repr(td.lock_())
text_with(set_printoptions(compact=False), td)
text_with(set_printoptions(compact=False), nt)
text_with(set_printoptions(compact=False), lz)
text_with(set_printoptions(verbose=True), td)
text_with(set_printoptions(verbose=False), td)
text_with(set_printoptions(verbose=True), nt)
text_with(set_printoptions(verbose=True), lz)
text_with(set_printoptions(plain=True), td)
repr(NonTensorData("x", batch_size=[3]))
repr(torch.stack([TD({"s": "x"}, []), TD({"s": "y"}, [])]))
repr(torch.stack([TD({"s": "x"}, []), TD({"s": "y"}, [])]).get("s"))
repr(TD({"a": torch.ones(3, requires_grad=True), "p": torch.nn.Parameter(torch.ones(3)),
    "bf": torch.ones(3, dtype=torch.bfloat16), "c": torch.ones(3, dtype=torch.complex64),
    "bo": torch.ones(3, dtype=torch.bool)}, [3]))
str(td) == repr(td)
""",
)

ASSERT_CLOSE = parse_cases(
    "assert_close",
    r"""
assert_close(td, td)
assert_close(td, td + 1)
assert_close(td, td.select("a"))
assert_close(td, td.select("a"), intersection=True)
assert_close(td, td[:2])
assert_close(td, td.double())
assert_close(td, td + 1e-09)
assert_close(td, 5)
assert_close(td, td + 1, msg="hi")
assert_allclose_td(td, td)
assert_close(td, td + 0.1, rtol=0, atol=1)
assert_close(nt, nt)
assert_close(nt, TD({"a": torch.ones(3), "s": "other", "o": {1, 2}}, [3]))
""",
)

CASES = [*REPR, *ASSERT_CLOSE]
