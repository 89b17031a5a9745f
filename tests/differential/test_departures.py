"""Where this project answers otherwise than the reference, on purpose: each departure, its reason, its answer.

These are the cases in which the reference contradicts its own documentation or plain sense. Should the two come
to agree, the row has lost its purpose and the test says so.
"""

from __future__ import annotations

import pytest

from tests.differential.harness import Case, Outcome, difference, evaluate
from tests.differential.harness.namespace import PROJECT, REFERENCE

DEPARTURES = [
    (
        'td.update_(TD({"a": torch.zeros(3, 4), "zz": torch.zeros(3)}, [3]))',
        'td.update_({"zz": torch.zeros(3)})',
        "an entry that the destination lacks is an error from a tree as from a dict: it would be lost without a word",
    ),
    ('td.to(td.select("a").double())', "td.to(torch.float64)", "the dtype of the other tree is documented to count"),
    ('td.to(TD({}, [], device="cpu"))', 'td.to("cpu")', "the device of the other tree is documented to count"),
    (
        'C.from_tensordict(TD({"x": torch.ones(3)}, [3]), {"s": "nt"})',
        'C(torch.ones(3), s="nt", batch_size=[3])',
        "non_tensordict is documented to fill the non-tensor fields",
    ),
    (
        'td.update_(TD({"a": torch.zeros(3, 4), "zz": torch.zeros(3)}, [3]))',
        'td.update_({"zz": torch.zeros(3)})',
        "every key of the input is documented to exist",
    ),
    ("nm.prod((0, 1))", "nm.prod(0).prod(0)", "every dim of a tuple counts"),
    ("nm.amax((0, 1))", "nm.amax(0).amax(0)", "every dim of a tuple counts"),
    (
        "td.memmap()[:2].is_memmap()",
        "False",
        "rows are not what the folder holds: saved_path and memmap_refresh_() would stand for all rows",
    ),
    (
        "td.memmap()[0].is_locked",
        "td.clone().lock_()[0].is_locked",
        "rows take new entries, as those of any locked tree do: the dataset has none for it",
    ),
    (
        'TD({"a": np.array(["x", "y"])}, [2])[0]["a"]',
        '"x"',
        "an array of strings or objects with as many rows as the batch is a column: one object beside rows that are "
        "filtered and sorted would soon stand beside other rows",
    ),
    (
        'TD({"a": np.array([{1}, None], dtype=object)}, [2])[1:]',
        'TD({"a": [{1}, None]}, [2])[1:]',
        "the same for arrays of objects, and for columns of pandas, Arrow and Polars",
    ),
    ("isinstance(c, TensorClass)", "True", "the decorator makes the same classes as the base class"),
]


@pytest.mark.parametrize(("source", "same_as", "reason"), DEPARTURES, ids=[row[0] for row in DEPARTURES])
def test_departs_on_purpose(source: str, same_as: str, reason: str) -> None:
    ours, wanted = _value(source, PROJECT), _value(same_as, PROJECT)
    assert not difference(wanted, ours), f"{source} no longer equals {same_as} ({reason})"
    assert difference(_value(source, REFERENCE), ours), "the reference agrees now: drop the row"


def _value(source: str, library: str) -> Outcome:
    outcome = evaluate(Case("departure", source), library)
    return Outcome(outcome.value, error=outcome.error)
