"""``repr`` and ``assert_close``."""

from tests.differential.harness import parse_cases

REPR = parse_cases(
    "repr",
    r"""
repr(td), repr(nt), repr(nm), repr(lz)
repr(ds)
repr(TD({}, []))
repr(TD({}, [3], device="cpu"))
repr(td.lock_())
text_with(set_printoptions(compact=False), td), text_with(set_printoptions(compact=False), nt)
text_with(set_printoptions(compact=False), lz), text_with(set_printoptions(verbose=True), td)
text_with(set_printoptions(verbose=False), td), text_with(set_printoptions(verbose=True), nt)
text_with(set_printoptions(verbose=True), lz), text_with(set_printoptions(plain=True), td)
repr(NonTensorData("x", batch_size=[3])), repr(torch.stack([TD({"s": "x"}, []), TD({"s": "y"}, [])]))
repr(torch.stack([TD({"s": "x"}, []), TD({"s": "y"}, [])]).get("s"))
repr(TD({"a": torch.ones(3, requires_grad=True), "p": torch.nn.Parameter(torch.ones(3)),
    "bf": torch.ones(3, dtype=torch.bfloat16), "c": torch.ones(3, dtype=torch.complex64),
    "bo": torch.ones(3, dtype=torch.bool)}, [3]))
str(td) == repr(td)
repr(TD({"a" * 30: torch.zeros(3), "n": {"b" * 30: torch.zeros(3), "c" * 30: torch.zeros(3)}}, [3]))
repr(TD({"a" * 25: torch.zeros(3), "b": torch.zeros(3)})), repr(TD({"a" * 26: torch.zeros(3), "b": torch.zeros(3)}))
repr(lazy_stack([TD(a=torch.zeros(3), b=torch.zeros(3)), TD(a=torch.zeros(2), c=torch.zeros(3))]))
repr(TD({"t": c}, [3])), repr(TD(a=torch.zeros(2, device="meta")))
repr(TD({"n": TD({"q": torch.zeros(3, 4, dtype=torch.bool)}, [3, 4]), "s": "x"}, [3]))
text_with(set_printoptions(compact=False), td.to("cpu")), text_with(set_printoptions(show_grad=True), td)
text_with(set_printoptions(show_is_contiguous=True), td), text_with(set_printoptions(show_is_view=True), td)
text_with(set_printoptions(show_storage_size=True), td), text_with(set_printoptions(show_dtype=False), td)
text_with(set_printoptions(show_batch_size=False), td), text_with(set_printoptions(sort_keys=False), td)
text_with(set_printoptions(verbose=False, compact=False), td)
text_with(set_printoptions(compact=True, show_grad=True), td)
set_printoptions(typo=True)
repr(lazy_stack([lz, lz.clone()])), repr(lazy_stack([lz, lz.exclude("a")]))
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
assert_close(nt, nt), assert_close(nt, TD({"a": torch.ones(3), "s": "other", "o": {1, 2}}, [3]))
""",
)

CASES = [*REPR, *ASSERT_CLOSE]
