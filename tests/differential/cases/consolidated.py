"""All tensors in one storage: content, locks, what ends it, pickles and moves. For files, see tests/consolidated."""

from tests.differential.harness import parse_cases

_KINDS = ("td", "fl", "nm", "nt", "deep", "lz", "ds", "tall", "c", "o", "td[0]", "td[:, None]", "lz[0]", "td[:0]")

CASES = parse_cases(
    "consolidated",
    "\n".join(
        row.replace("KIND", kind)
        for kind in _KINDS
        for row in r"""
KIND.consolidate()
KIND.consolidate(num_threads=2)
KIND.consolidate().is_consolidated()
KIND.is_consolidated()
KIND.consolidate().is_locked
KIND.consolidate(share_memory=True)
x = KIND.consolidate(); x.consolidate() is x
x = KIND.consolidate(); x.clone().is_locked
x = KIND.consolidate(); pickle.loads(pickle.dumps(x))
x = KIND.consolidate(); pickle.loads(pickle.dumps(x)).is_consolidated()
x = KIND.consolidate(); pickle.loads(pickle.dumps(x)).is_locked
x = KIND.consolidate(); x.to("meta").is_consolidated()
x = KIND.consolidate(); x.zero_().is_consolidated()
x = KIND.consolidate(inplace=True); x.is_consolidated()
KIND.lock_().consolidate()
""".strip().splitlines()
    ),
) + parse_cases(
    "consolidated",
    r"""
td.consolidate(inplace=True) is td
td.consolidate(return_early=True, num_threads=2).result()
lz.consolidate(return_early=True, num_threads=2).result()
nt.consolidate(return_early=True, num_threads=2).result()
x = td.consolidate(); x.unlock_().is_consolidated()
x = c.consolidate(); x.unlock_().is_consolidated()
td.lock_(); td.consolidate(inplace=True)
x = td.consolidate(); x["a"] = torch.zeros(3, 4)
x = td.consolidate(); x.set_("a", torch.zeros(3, 4)); x["a"].sum()
x = td.consolidate(); x["a"].untyped_storage().data_ptr() == x["n", "b"].untyped_storage().data_ptr()
x = td.consolidate(); x["n"].is_consolidated()
x = td.consolidate(); x[0].is_consolidated()
x = td.consolidate(); x.to("cpu").is_consolidated()
x = td.consolidate(); x.to(torch.float64).is_consolidated()
td.consolidate(return_early=True, num_threads=2, non_blocking=True)
td.consolidate("nowhere", device="meta")
td.consolidate(pin_memory=True)
""",
)
