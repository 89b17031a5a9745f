"""Error messages hold the fragments of the reference's messages that programs look for (`if "..." in str(error)`)."""

import pytest

from tests.differential.harness import Case, evaluate
from tests.differential.harness.namespace import PROJECT, REFERENCE

MESSAGES = [
    ("td[:2] = TD({'a': torch.zeros(5)}, [5])", "differs from the source batch size"),
    ("ds[0] = TD({'a': torch.zeros(5)}, [5])", "differs from the source batch size"),
    ("ds[:2] = TD({'a': torch.zeros(5)}, [5])", "differs from the source batch size"),
    ("td[Mask] = TD({'a': torch.zeros(5)}, [5])", "differs from the source batch size"),
    ("bool(td)", "Converting a tensordict to boolean value is not permitted"),
    ("bool(ds)", "Converting a tensordict to boolean value is not permitted"),
    ("bool(c)", "Converting a tensorclass to boolean value is not permitted"),
    ("td.where(Mask, td.exclude('b'))", "Key b not found and no pad value provided"),
    ("td.exclude('b').where(Mask, td)", "not found and no pad value provided"),
    ("lz.where(Mask, lz.exclude('b'))", "not found and no pad value provided"),
    (
        "import tempfile; p = tempfile.TemporaryDirectory(); q = tempfile.TemporaryDirectory(); "
        "td.memmap(p.name).memmap(q.name)",
        "A filename was provided but the tensor already has a file associated",
    ),
    (
        "import tempfile; p = tempfile.TemporaryDirectory(); m = MemoryMappedTensor; "
        "m.from_tensor(m.from_tensor(torch.ones(3), filename=p.name + '/x'), filename=p.name + '/y')",
        "A filename was provided but the tensor already has a file associated",
    ),
    (
        "import tempfile; p = tempfile.TemporaryDirectory(); td.memmap(p.name); TD.load_memmap(p.name, subpath='zz')",
        "No tensordict found under subpath 'zz'",
    ),
    ("ds.append(3)", "Expected new value to be TensorDictBase instance but got <class 'int'> instead"),
    ("ds.insert(0, 'a')", "Expected new value to be TensorDictBase instance"),
    ("TensorDictParams(fl).memmap_()", "Cannot build a memmap TensorDict in-place"),
    ("TD({'a.b': torch.ones(2), 'a': {'b': torch.ones(2)}}).flatten_keys('.')", "Flattening keys in tensordict causes"),
    ("TD({'a.b': torch.ones(2), 'a': torch.ones(2)}).unflatten_keys('.')", "Unflattening key(s) in tensordict will"),
    ("TD({'a.b': torch.ones(2), 'a': {'b': torch.ones(2)}}).unflatten_keys('.')", "will override an existing"),
    ("td.pad([0, -5])", "negative output size"),
    ("ds.set_('new', torch.ones(3, 2))", "setting a value in-place on a stack of TensorDict"),
    ("td.fliplr()", "fliplr requires at least 2 batch dimensions"),
    ("td.rot90()", "rot90 requires at least 2 batch dimensions"),
    ("td.get(3.5)", "Only NestedKeys are supported"),
    ("td.set(3.5, 1)", "Only NestedKeys are supported"),
    ("torch.cat([ds, ds[:2]], 1)", "same number of stacked tensordicts"),
    ("torch.stack([td, td[:2]])", "requires them to have congruent batch sizes"),
    ("fl.requires_grad_().backward(torch.ones(3))", "gradient must be a TensorDictBase instance"),
    ("fl.requires_grad_().backward(TD({'b': torch.ones(3)}, [3]))", "Missing gradient entry for key 'a'"),
    ("nm.refine_names('p', 'y')", "refine_names: cannot coerce TensorDict"),
    ("c.device = 'cpu'", "device cannot be set using tensorclass.device = device"),
    (
        "define('@tensorclass\\nclass B:\\n    reshape: torch.Tensor\\n')(globals())",
        "Attribute name reshape can't be used with @tensorclass",
    ),
    ("c[0] = D(torch.ones(4), batch_size=[])", "__setitem__ is only allowed for same-class or compatible class"),
    ("td.set('q', torch.ones(5))", "batch dimension mismatch"),
    ("td.lock_(); td['q'] = torch.ones(3)", "Cannot modify locked"),
    ("td['zz']", 'key "zz" not found in TensorDict with keys'),
]


@pytest.mark.parametrize(("source", "fragment"), MESSAGES, ids=[source for source, _ in MESSAGES])
def test_messages_hold_the_fragment(source: str, fragment: str) -> None:
    theirs, mine = (evaluate(Case("message", source), library).error for library in (REFERENCE, PROJECT))
    assert fragment in str(theirs), "the reference words it otherwise now"
    assert fragment in str(mine)
