"""What errors and warnings say, one line of Python each: the names are those of the differential cases."""

import re
import warnings
from dataclasses import FrozenInstanceError

import pytest

from tests.differential.harness import Case, evaluate
from tests.differential.harness.namespace import PROJECT, build

ERRORS = [
    # keys and entries
    ("td.pop(('n', 'q'))", KeyError, r'"n\.q" not found.*Did you mean'),
    ("td.pop(('a', 'q'))", ValueError, "'a' is a Tensor"),
    ("td.get_item_shape(('a', 'q'))", ValueError, "is a Tensor, not a tensordict, so it has no entry"),
    ("td.entry_class(('n', 'c', 'q'))", ValueError, "is a Tensor, not a tensordict, so it has no entry"),
    ("td.get_non_tensor(('a', 'q'))", ValueError, "is a Tensor, not a tensordict, so it has no entry"),
    ("TD({'l': lz}, [3]).del_(('l', 'b', 'q'))", ValueError, "is a Tensor, not a tensordict, so it has no entry"),
    ("nt.pop(('s', 'q'))", KeyError, "'s' is a NonTensorData"),
    ("1 in td", RuntimeError, "takes a key"),
    ("1 in td.keys()", TypeError, "strings"),
    ("TD().popitem()", KeyError, "empty"),
    ("td[['a', 'b']]", TypeError, r"td\.select\('a'"),
    ("nm[0, ['a', 'b']]", TypeError, r"td\.select\('a'"),
    ("TD({}, [3, 2]).update({'a': torch.zeros(3, 3)})", RuntimeError, "'a'"),
    ("td.update(TD({'a': torch.zeros(2)}, [2]))", RuntimeError, "update_batch_size=True"),
    ("td.update_({'n': {'q': torch.ones(3)}})", KeyError, r"n\.q"),
    ("td.update_({'a': 0, 'n': {'c': torch.ones(2, 7)}})", RuntimeError, r"\('n', 'c'\).*\[3, 2\]"),
    ("td.replace([1])", RuntimeError, "mapping"),
    ("td.select('a', ('n', 'q'))", KeyError, '"q"'),
    ("td.select(('a', 'q'))", KeyError, "not a tensordict"),
    ("td.select(['a', 'b'])", RuntimeError, "one by one"),
    ("TD({'a.b': 1, 'a': {'b': 1}}).flatten_keys('.')", KeyError, r"\['a\.b'\] to collide"),
    ("td.rename_key_('a', 'b', safe=True)", KeyError, "safe=True"),
    ("td.rename_key_('b', ('a', 'q'))", KeyError, "'a'"),
    ("td.empty(recurse=True, batch_size=[7])", RuntimeError, "does not start with it"),
    ("td.cat_from_tensordict(0, sorted=['a'])", RuntimeError, "every leaf"),
    ("td.tolist(convert_tensors=True, convert_nodes=False)", TypeError, "convert_nodes"),
    ("TD({'a b': torch.zeros(1)}).to_namedtuple()", ValueError, "a b"),
    *(
        (f"{join}([{items}])", (RuntimeError, TypeError), "cannot combine|expected Tensor|members of a lazy stack")
        for join in ("torch.stack", "torch.cat", "TD.stack", "TD.cat", "lazy_stack", "maybe_dense_stack")
        for tensors in ("td", "lz", "c", "nt.get('s')")
        for items in (f"torch.ones(3), {tensors}", f"{tensors}, torch.ones(3)")
    ),
    ("torch.stack([td, 5])", TypeError, "expected Tensor as element 1"),
    ("maybe_dense_stack([td, 5])", TypeError, "members of a lazy stack are tensor collections, got a int"),
    ("td.set_at_('a', ['a', 'b', 'c'], 0)", ValueError, "Failed to update 'a'"),
    ("td.set_at_('a', [[1], [2, 3]], 0)", ValueError, "Failed to update 'a'"),
    ("td.set_at_('a', object(), 0)", ValueError, "Failed to update 'a'"),
    ("td.set_at_('a', [1, 2], 0)", RuntimeError, "expanded size"),
    ("td[:2] = TD({'a': torch.zeros(4)}, [])", RuntimeError, "indexed destination TensorDict batch size is"),
    ("td.update(TD({}, [5]), update_batch_size=True)", RuntimeError, "must hold every key.*'a'"),
    ("td.repeat_interleave(2, inplace=True)", RuntimeError, "explicit dim"),
    ("td.gather(0, torch.tensor([0]), out=td.clone(), inplace=True)", ValueError, "mutually exclusive"),
    ("nm.gather(0, torch.tensor([0]), inplace=True)", NotImplementedError, "index.ndim == batch_dims"),
    *(
        (f"{kind}.{call}, inplace=True)", TypeError, "inplace")
        for kind in ("nm", "ds")
        for call in ("squeeze(0", "unsqueeze(0", "permute(1, 0", "expand(2, 3, 2", "view(6")
    ),
    ("ds.lock_().pad([1, 0, 0, 0], inplace=True)", RuntimeError, "locked"),
    ("ds.repeat(2, 1, inplace=True)", NotImplementedError, r"repeat\(inplace=True\) is not supported"),
    ("NonTensorData('x', batch_size=[2]).pad([0, 1], inplace=True)", RuntimeError, "identity"),
    ("ds.pad([1])", RuntimeError, "pair"),
    # functions over leaves
    ("td.apply(lambda x, y: x + y, td.exclude('b'))", KeyError, '"b"'),
    ("td.apply(lambda x: x[:2])", RuntimeError, "key 'a'"),
    ("td.apply(lambda x: x[:2], inplace=True)", RuntimeError, "shape"),
    ("td.apply(lambda x: x, out=td.clone(), batch_size=[])", RuntimeError, "batch size of `out`"),
    ("td + TD({'a': td['a'], 'z': td['b'], 'n': td['n']}, [3])", KeyError, r"keys \['b'\].*second TD has keys \['z'\]"),
    ("td.select('a', 'b').add_(td)", KeyError, r"\('n', 'c'\)"),
    ("td.add(td.select('a'), default='union')", TypeError, "intersection"),
    ("td + torch.ones(4)", RuntimeError, r"\[3\].*\[4\]"),
    ("td.add_(torch.ones(5, 3))", RuntimeError, "in-place"),
    ("td + 'x'", TypeError, "expected a number, a tensor or a tensor collection"),
    ("td + object()", TypeError, "expected a number, a tensor or a tensor collection"),
    ("td + np.ones(3)", TypeError, "expected a number, a tensor or a tensor collection"),
    ("td.clamp(0, td)", ValueError, "Mixed"),
    ("td.clamp()", TypeError, "neither"),
    ("fl.addcmul(2.0, fl)", TypeError, "two tensors or collections"),
    ("fl.softmax(1)", IndexError, "dim 1"),
    ("td.fill_('zz', 1)", KeyError, "zz"),
    ("td.copy_at_(TD({'zz': torch.ones(())}), 0)", RuntimeError, "fast=False"),
    ("td == torch.ones(5)", RuntimeError, "broadcast"),
    ("td > {'a': 1, 'b': 1, 'n': {'c': 1, 'd': 2}}", KeyError, "mismatch"),
    ("bool(td == td)", RuntimeError, "bool"),
    ("nm.sum('feature', keepdim=True)", TypeError, "keepdim"),
    ("nm.min(keepdim=True)", TypeError, "keepdim"),
    ("nm.min((0, 1))", TypeError, "one dimension"),
    ("nm.all(2)", RuntimeError, "batch_dims"),
    ("nm.all((0,))", TypeError, "one batch dimension"),
    ("nm.sum(2)", IndexError, "dim 2"),
    ("nm.cummax(-3)", IndexError, "dim -3"),
    ("nm.logsumexp(2)", ValueError, "incompatible"),
    ("TD({}, [3]).sum(reduce=True)", ValueError, "no tensor leaves"),
    ("TD({'s': ['x', 'y']}, [2]).sum(0)", RuntimeError, "objects cannot be reduced"),
    ("(fl.requires_grad_() * 2).backward()", RuntimeError, r"scalar outputs.*'a'.*\(3, 4\)"),
    ("fl.backward()", RuntimeError, "no leaf"),
    # names of dimensions
    ("nm['w'] = TD({}, [2, 3], names=['z', 'w'])", RuntimeError, "contradict"),
    ("TD({'x': TD({}, [3], names=['a']), 'y': TD({}, [3], names=['z'])}, [3])", RuntimeError, "contradict"),
    ("nm.names = ['p', 'p']", ValueError, "non-unique.*p"),
    ("TD({'n': nm}, [2], names=['x']).names = ['y']", ValueError, "non-unique.*y is already taken"),
    ("TD({'b': TD({}, [3, 5])}, [3]).expand_as(TD({'b': TD({}, [3, 1])}, [3]))", RuntimeError, "expanded shape"),
    # making collections
    ("TD.from_dict({'a': torch.ones(3)}, batch_size=[3], batch_dims=1)", ValueError, "not both"),
    ("TD.from_dict({'b': {'c': torch.zeros(2)}}, batch_size=[3])", RuntimeError, "'c'"),
    ("TD.from_list([{'a': 1}, {'a': 2}], batch_size=[5])", ValueError, "length of the list, 2"),
    ("TD.from_list([])", RuntimeError, "empty"),
    ("TD.from_dataclass(3)", TypeError, "dataclass"),
    ("TD.from_schema({'a': ([4], torch.uint8)}, storage='tape')", ValueError, "'tape'"),
    ("lib.dense_stack_tds([td, td])", ValueError, "dim="),
    ("MemoryMappedTensor([3, 4])", TypeError, r"from_tensor\(torch.as_tensor"),
    ("lib.collate([td, td], pad_keys={'q': 0})", KeyError, "'q'"),
    ("merge_tensordicts(td)", RuntimeError, "two"),
    # state dicts, comparison of values
    ("td.exclude('a').load_state_dict(td.state_dict())", RuntimeError, r"extra keys \['a'\]"),
    ("td.load_state_dict(td.exclude('a').state_dict())", RuntimeError, r"lacks the keys \['a'\]"),
    (
        "lib.from_tuple((torch.ones(3),), auto_batch_size=True, batch_size=[3])",
        TypeError,
        r"from_tuple\(\) infers the batch size .* not both: \[3\]",
    ),
    ("TD({'a.b': 1, 'a': {'b': 1}}).state_dict()", KeyError, "flatten=False"),
    ("x = fl.clone(); x['n', 'c'] += 0.5; assert_close(fl, x)", AssertionError, r"\('n', 'c'\).*mse = 0.5000"),
    ("assert_close(td, td.exclude(('n', 'c')))", KeyError, r"below \('n',\).*\['c'\]"),
    ("assert_close(td, td.to(torch.float64))", AssertionError, "dtype"),
    ("assert_close(TD(a=torch.zeros(3)), TD(a=torch.zeros(2)))", RuntimeError, r"\[3\] and \[2\]"),
    ("set_printoptions(typo=True)", TypeError, "typo"),
    # lazy stacks
    ("lz['a']", RuntimeError, r"'a'.*\(2, 1\), \(2, 2\).*as_list=True"),
    ("lz['z'] = torch.zeros(4)", RuntimeError, r"3.*4.*'z'"),
    ("ds.append(TD({'a': torch.zeros(4)}, [4]))", ValueError, "2.*4"),
    ("ds.append(torch.zeros(3))", TypeError, "Tensor"),
    ("lazy_stack(tall.tensordicts, strict_shape=True)", RuntimeError, "strict_shape"),
    ("lz.lock_(); lz['z'] = torch.zeros(3)", RuntimeError, "locked"),
    ("lz.lock_(); lz.append(TD())", RuntimeError, "locked"),
    ("lz.lock_()[0].unlock_()", RuntimeError, "locked graph"),
    ("lazy_stack([C(torch.zeros(2)), C(torch.ones(3))]).x", RuntimeError, r"'x'.*2.*3"),
    # tensorclasses
    ("Only('text')", TypeError, r"Only\.x.*tensor_only"),
    ("x = Only(torch.ones(3)); x.x = NonTensorData('t')", TypeError, r"Only\.x.*tensor_only"),
    ("x = Auto(torch.ones(3)); x.x = 'text'", TypeError, r"Auto\.x.*Tensor"),
    ("del Frozen(torch.ones(3)).x", FrozenInstanceError, "Frozen"),
    ("Frozen(torch.ones(3)).set('x', torch.ones(3))", RuntimeError, "locked Frozen"),
    ("x = Frozen(torch.ones(3)); x.zzz = 1", AttributeError, "zzz"),
    ("TensorClass['autocast', 'nocast']", TypeError, "autocast is exclusive with nocast"),
    ("tensorclass(autocast=True, nocast=True)", TypeError, "autocast is exclusive with nocast"),
    ("TensorClass['nocats']", TypeError, "nocats"),
    ("D['nocast']", TypeError, "D is not a generic class"),
    ("State(a=torch.zeros(2))", TypeError, r"State\(\) missing required field\(s\): n"),
    ("State(a=torch.zeros(2), n={}, q=1)", TypeError, r"State\(\) got unexpected field\(s\): q"),
    ("State(torch.zeros(2))", ValueError, "Tensor"),
    ("State.from_dict({'a': torch.zeros(2)})", TypeError, "missing required"),
    ("State.from_tensordict(torch.zeros(2))", TypeError, "tensor collections"),
    ("TypedTensorDict(a=torch.zeros(2))", TypeError, "subclass it"),
    ("State(a=torch.zeros(2), n={}).extra", AttributeError, "'State' object has no attribute 'extra'"),
    ("x = State(a=torch.zeros(2), n={}); del x['a']; x.a", AttributeError, "field 'a' declared but not set"),
    ("c.colour = 1", AttributeError, "C.*colour"),
    ("tensorclass(3)", TypeError, "decorates a class"),
    ("TypedTensorDict['bad']", ValueError, "Unknown TypedTensorDict option: 'bad'"),
    *(
        (f"{base}; define('class B({base}{flags}):\\n  {field}: {kind}')(globals())", error, pattern)
        for base, flags, field, kind, error, pattern in (
            ("TensorClass", ", tensor_only=True", "s", "str", TypeError, r"B\.s.*str"),
            ("TensorClass", "", "sum", "torch.Tensor", AttributeError, "B.*sum.*shadow"),
            ("TensorClass", "", "get", "torch.Tensor", AttributeError, "B.*get.*shadow"),
            ("TensorClass", "", "from_tensordict", "torch.Tensor", AttributeError, "B.*from_tensordict.*shadow"),
            ("TensorClass", ", shadow=True", "_source", "torch.Tensor", AttributeError, "B.*_source"),
            ("TensorClass", "", "x", "object = None\\n  y: object", TypeError, "non-default argument 'y' follows"),
            ("TensorClass", ", nocats=True", "x", "int", TypeError, ""),
            ("TypedTensorDict", "", "sum", "int", AttributeError, r"'sum' shadows.*TypedTensorDict\['shadow'\]"),
            ("Frozen", ", frozen=False", "y", "int", TypeError, "B.*non-frozen.*frozen.*Frozen"),
            ("D", ", frozen=True", "y", "int = 3", TypeError, "cannot inherit frozen"),
        )
    ),
    # objects
    ("NonTensorStack('a', 'b').data", AttributeError, "tolist"),
    ("NonTensorStack(TD())", RuntimeError, "TensorDict"),
    ("NonTensorData('a').lock_().data = 'c'", RuntimeError, "locked"),
    ("td['x'] = ['a', 'b']", RuntimeError, "batch dimension mismatch.*'x'"),
    ("nt.lock_().set_('s', ['b'])", RuntimeError, "a list cannot be written into it in place"),
    (
        "TD({'l': ['p', 'q']}, [2]).update_({'l': ['b', 'c', 'd']})",
        RuntimeError,
        r"a list of 3 objects cannot be written .* size \[2\]",
    ),
    (
        "TD({'l': ['p', 'q']}, [2]).set_at_('l', [], slice(None))",
        RuntimeError,
        r"a list of 0 objects cannot be written .* size \[2\]",
    ),
    ("MetaData[int | None]('x')", TypeError, "Expected data of type"),
    ("x = MetaData[int](3); x.data = 'y'", TypeError, r"Expected data of type int.*MetaData\[int\]"),
    ("TD({'m': MetaData[int](3)}, [2]).set_('m', 'y')", Exception, "Expected data of type|Failed to update"),
    ("tall['q'] = ['x', 'y', 'z']", RuntimeError, "a list with one value per member"),
    (
        "x = lazy_stack([TD({'s': f't{n}'}, [n]) for n in (2, 3)]); x.get('s')[0] = 'new'",
        ValueError,
        "different lengths.*of the member",
    ),
    (
        "x = torch.stack([TD({'s': 'x'}, [3]), TD({'s': ['b', 'c', 'd']}, [3])]); x.get('s')[0][1] = 'Q'",
        ValueError,
        r"maybe_to_stack\(\)",
    ),
    ("TD({'u': UnbatchedTensor(torch.ones(7, 11))}, [3]).set_('u', torch.ones(11, 7))", RuntimeError, "shape"),
    ("TD({'u': UnbatchedTensor(torch.ones(7))}, [3])[0] = {'u': torch.zeros(11)}", RuntimeError, "shape"),
    ("TD({'u': UnbatchedTensor(torch.ones(7))}, [3]) * torch.ones(3)", RuntimeError, "unbatched entry"),
    ("x = TD({'u': UnbatchedTensor(torch.ones(7))}, [3]); x.where(Mask, x + 1)", RuntimeError, "unbatched"),
    ("TD({'u': UnbatchedTensor(torch.ones(7))}, [3]).set_('u', 'text')", ValueError, "Failed to update"),
    (
        "torch.stack([TD({'u': UnbatchedTensor(torch.ones(3))}, [3]), TD({'u': torch.zeros(3)}, [3])])",
        RuntimeError,
        "unbatched",
    ),
    ("NonTensorData('x')()", TypeError, "holds a str, which is not callable"),
    # modules and parameters
    ("Mod(nn.Linear(4, 2), ['q'], ['o'])(td)", KeyError, r"TensorDictModule\(Linear\) reads \['q'\].*it has .*'a'"),
    ("Mod(lambda x: x, ['q'], ['o'])(td)", RuntimeError, r"called with None for \['q'\]"),
    ("Mod(lambda x: x.nothing, ['a'], ['o'])(td)", AttributeError, "nothing"),
    ("Mod(torch.relu, ['a'], ['o']).weight", AttributeError, "no attribute 'weight', nor has the"),
    (
        "Mod(torch.chunk, ['a'], ['o'], method_kwargs={'chunks': 2, 'dim': -1})(fl)",
        RuntimeError,
        r"more tensors than out_keys: TensorDictModule\(chunk\) returned 2 for 1",
    ),
    ("Seq(Mod(abs, ['a'], ['o']), 3)", TypeError, "cannot be called"),
    ("Seq({'one': Mod(abs, ['a'], ['o'])})['three']", KeyError, r"no module 'three'; there are \['one'\]"),
    ("TD.from_modules(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))", RuntimeError, r"differ in \['bias'\]"),
    ("TD.from_modules(nn.Linear(2, 2), nn.Linear(3, 2))", RuntimeError, "different shapes at 'weight'"),
    ("x = Params(TD(w=torch.ones(2))); x.w = torch.zeros(2)", TypeError, "cannot assign 'torch.FloatTensor' as .*'w'"),
    ("Params(TD(w=torch.ones(2))).register_buffer('a.b', torch.ones(1))", KeyError, "no dot"),
    ("Params(TD(w=torch.ones(2))).register_parameter('t', torch.ones(1))", TypeError, r"wrap a tensor in a torch\.nn"),
    (
        "torch.vmap(lambda q: q, 2)(TD({}, [3, 2]))",
        ValueError,
        "in_dim=2 for a TensorDict with 2 .*-2 <= in_dim < 2",
    ),
    ("torch.vmap(lambda q: q, 0, 2)(nm)", IndexError, "with 1 batch dimensions.*-2 <= out_dim < 2"),
    ("torch.vmap(lambda q, x: q, (0, 0))(td, torch.ones(4))", ValueError, "same size in the mapped dimension"),
    ("torch.vmap(lambda q: q, 0, (0, 0))(td)", ValueError, "out_dims is not compatible"),
    ("torch.vmap(lambda x: TD())(torch.ones(3))", RuntimeError, "how many rows"),
    # arrays of other libraries
    (
        "TD.from_dlpack({'n': {'a': [1, 2]}})",
        TypeError,
        r"\('n', 'a'\) is a list, which has no __dlpack__: use from_",
    ),
    ("TD.from_dlpack({'s': np.array(['text'])})", ValueError, r"\('s',\), a ndarray, cannot be shared: .*DLPack"),
    ("TD.from_dlpack(np.ones(3))", TypeError, r"got a ndarray: from_dlpack\(\{'x': array\}\)"),
    ("pickle.dumps(TD({'x': __import__('threading').Lock()}))", TypeError, "lock"),
    # parameters of the reference that have no effect there or here
    ("td.apply(lambda x: x, checked=True)", TypeError, "checked"),
    ("td.pad([0, 1], safe=True)", TypeError, "safe"),
    ("td.update_at_(td, 0, clone=True)", TypeError, "clone"),
    ("td.update_(td, True)", TypeError, "positional"),
    ("td.consolidate(metadata=True)", TypeError, "metadata"),
    ("td.attrs(num_threads=2)", TypeError, "num_threads"),
    ("td.send(1, consolidated=True)", TypeError, "consolidated"),
    ("td.init_remote(1, None, 'cpu')", TypeError, "positional"),
    ("C.from_tensordict(td, safe=True)", TypeError, "safe"),
    ("lib.maybe_dense_stack([td, td], strict=True)", TypeError, r"\['strict'\]"),
    ("lazy_stack([td, td], strict=True)", TypeError, r"\['strict'\]"),
    ("lazy_stack([torch.ones(3)], strict=True)", TypeError, "strict"),
    ("lib.TypedTensorDict['nocast']", ValueError, "Valid options: shadow, frozen"),
]
"""A line, the type of its error, and a pattern that its message holds."""

WARNINGS = [
    ("td.new_tensor(torch.ones(3))", UserWarning, "To copy construct from a tensor"),
    ("td.new_tensor(td)", UserWarning, "To copy construct from a tensor"),
]


@pytest.mark.parametrize(("source", "kind", "pattern"), ERRORS, ids=[row[0] for row in ERRORS])
def test_an_error_says_what_is_wrong(source: str, kind: type[Exception], pattern: str) -> None:
    error = evaluate(Case("message", source), PROJECT).error
    assert isinstance(error, kind), repr(error)
    assert re.search(pattern, str(error), re.DOTALL), str(error)


@pytest.mark.parametrize(("source", "kind", "pattern"), WARNINGS, ids=[row[0] for row in WARNINGS])
def test_a_warning_is_given_once(source: str, kind: type[Warning], pattern: str) -> None:
    case = Case("message", source)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        eval(source, build(PROJECT, case.names()))
    (said,) = [str(warning.message) for warning in caught if warning.category is kind]
    assert re.search(pattern, said)
