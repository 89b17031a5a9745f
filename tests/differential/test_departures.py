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
        "an entry that the destination lacks is an error from a tree as from a dict, as documented: it would be lost",
    ),
    ('td.to(td.select("a").double())', "td.to(torch.float64)", "the dtype of the other tree is documented to count"),
    ('td.to(TD({}, [], device="cpu"))', 'td.to("cpu")', "the device of the other tree is documented to count"),
    (
        'C.from_tensordict(TD({"x": torch.ones(3)}, [3]), {"s": "nt"})',
        'C(torch.ones(3), s="nt", batch_size=[3])',
        "non_tensordict is documented to fill the non-tensor fields",
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
    (
        "TD({'a': torch.ones(4, 3)}, []) + TD({'a': torch.ones(4, 3)}, [4, 3])",
        "TD({'a': torch.ones(4, 3)}, [4, 3]) * 2",
        "entries of one shape meet element by element: the same trees, however many of their dimensions are the batch",
    ),
    (
        "(TD({'a': torch.ones(4, 3)}, [4]) == TD({'a': torch.ones(4, 3)}, [4, 3])).all()",
        "True",
        "as above; the reference has no answer for batch sizes that do not broadcast",
    ),
    (
        "(TD({'s': 'x'}, [2]) == TD({'s': torch.zeros(2)}, [2])).all()",
        "False",
        "an object equals no tensor: without an answer, trees that differ would be equal",
    ),
    ("c == c.to_dict(), ", "c == c, ", "a field that is None is no entry, in a dict as in a tree"),
    (
        "TD({'s': 'x'}, [2]) | TD({'s': 'y'}, [2])",
        "TD({'s': 'x'}, [2])",
        "objects that have no such operator are kept, as in arithmetic: strings beside masks are usual",
    ),
    (
        "TD({'s': NonTensorData(True)}) & TD({'s': NonTensorData(False)})",
        "TD({'s': torch.tensor(False)})",
        "`&` answers for objects as `|` and `^` do",
    ),
    (
        "ds.update_at_(TD({'z': torch.ones(3)}, [3]), slice(None))",
        "td.update_at_(TD({'z': torch.ones(3)}, [3]), slice(None))",
        "update_at_ copies into entries that exist, of a lazy stack as of a dense tree",
    ),
    (
        "td.set_('n', 'text')",
        "td.set_('a', 'text')",
        "a collection is no text: nothing would be written, without a word",
    ),
    (
        "c.update(TD({'x': torch.zeros(3, 4), 'zz': torch.zeros(3)}, [3]))",
        "c.update({'x': torch.zeros(3, 4), 'zz': torch.zeros(3)})",
        "a key that is no field is an error from a tree as from a dict (and from set())",
    ),
    (
        "c.update_({'x': torch.zeros(3, 4), 's': 'new'}, keys_to_update=['x']).s",
        "'hi'",
        "keys_to_update is documented to name what is written",
    ),
    (
        "torch.cat([TD({'m': MetaData('x')}, [1]), TD({'m': MetaData('y')}, [1])])['m']",
        "TD({'m': NonTensorStack('x', 'y')}, [2])['m']",
        "values that differ are kept row by row; the first one alone would stand for rows that it does not describe",
    ),
    (
        "type(td['a'] + UnbatchedTensor(torch.ones(3, 4)))",
        "torch.Tensor",
        "what is computed with rows has rows: as an unbatched entry, all but one chunk of a map would be lost",
    ),
    (
        "TD({'u': UnbatchedTensor(torch.ones(2, 4))}, [3]).masked_fill(torch.tensor([True, False, True]), 9)['u']",
        "UnbatchedTensor(torch.ones(2, 4))",
        "rows are filled, and an unbatched tensor has none (where() as well)",
    ),
    (
        "TD({'u': UnbatchedTensor(torch.ones(2, 4))}, [3]).all(0)['u']",
        "UnbatchedTensor(torch.ones(2, 4))",
        "left alone as by sum(0)",
    ),
    (
        "(t := TD({'u': UnbatchedTensor(torch.ones(2, 4))}, [3]), t.__setitem__(0, 7))[0]['u']",
        "UnbatchedTensor(torch.ones(2, 4))",
        "a value for some rows is none for all",
    ),
    (
        "TD({'u': UnbatchedTensor(torch.ones(2, 4))}, [3]).pad([1, 1])['u'].batch_size",
        "torch.Size([5])",
        "the batch size of an entry begins with that of its tree",
    ),
    ("isinstance(c, TensorClass)", "True", "the decorator makes the same classes as the base class"),
    (
        "type(c.consolidate(return_early=True, num_threads=2).result()).__name__",
        "type(c.consolidate(num_threads=2)).__name__",
        "what is waited for is what would have been returned at once",
    ),
    (
        "x = td.consolidate(); x.consolidate(device='meta')['a'].device",
        "td.consolidate(device='meta')['a'].device",
        "another device, file or kind of memory is honoured, which the reference announces for its version 0.17",
    ),
    (
        "TD({'a': torch.ones(2).to(torch.float8_e4m3fn)}, [2]).consolidate()['a'].dtype",
        "torch.float8_e4m3fn",
        "tensors of every dtype are consolidated",
    ),
]


def test_every_departure_is_listed_once() -> None:
    sources = [source for source, _, _ in DEPARTURES]
    assert sorted(sources) == sorted(set(sources))


@pytest.mark.parametrize(("source", "same_as", "reason"), DEPARTURES, ids=[row[0] for row in DEPARTURES])
def test_departs_on_purpose(source: str, same_as: str, reason: str) -> None:
    ours, wanted = _value(source, PROJECT), _value(same_as, PROJECT)
    assert not difference(wanted, ours), f"{source} no longer equals {same_as} ({reason})"
    assert difference(_value(source, REFERENCE), ours), "the reference agrees now: drop the row"


def _value(source: str, library: str) -> Outcome:
    outcome = evaluate(Case("departure", source), library)
    return Outcome(outcome.value, error=outcome.error)
