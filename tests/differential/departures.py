"""Expressions whose result differs from the reference on purpose, with the result and the reason.

In these cases the reference contradicts its own documentation or common sense. ``docs/coming-from-tensordict.md`` shows
the list: ``python -m tests.differential.departures`` rewrites it.
"""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-tensordict.md"
BEGIN, END = "<!-- departures: written by tests/differential/departures.py -->", "<!-- end of departures -->"


def rows_of(text: str) -> list[tuple[str, str, str]]:
    """The rows of a table: an expression, ``==>`` and one that equals its result here, and the reason in a comment."""
    found, joined = [], re.sub(r"\n {8}", " ", text.strip("\n"))
    for row in re.split(r"\n(?! )", joined):
        line, *reason = re.split(r"\n    # ", row)
        source, same_as = re.split(r"\s+==> ", line)
        found.append((source, same_as, " ".join(reason)))
    return found


TREES = rows_of(
    r"""
td.update_(TD({"a": torch.zeros(3, 4), "zz": torch.zeros(3)}, [3])) ==> td.update_({"zz": torch.zeros(3)})
    # an entry that the destination lacks raises, from a TensorDict as from a dict; otherwise it would be lost
    # silently
td.select("a").add_(td.select("a", "b")) ==> raise KeyError("'b'")
    # an entry that the left side lacks raises in place as in `+` (and in lerp, addcmul and addcdiv)
td.note = 1 ==> raise AttributeError("note")
    # entries are set by key: an attribute that is no property would be lost in every copy
td.to(td.select("a").double()) ==> td.to(torch.float64)
    # the documentation says that the dtype of the other tree applies
td.to(TD({}, [], device="cpu")) ==> td.to("cpu")
    # the documentation says that the device of the other tree applies
C.from_tensordict(TD({"x": torch.ones(3)}, [3]), {"s": "nt"}) ==> C(torch.ones(3), s="nt", batch_size=[3])
    # the documentation says that non_tensordict fills the non-tensor fields
TD({"a": torch.ones(2, 3)}, []).logsumexp() ==> TD({"a": torch.ones(2, 3).logsumexp((0, 1))}, [])
    # the same as with keepdim=True, and as sum(); the reference raises an internal error
TD({"a": torch.zeros(0, 3)}, [0]).set_("a", torch.zeros(0))
    ==> TD({"a": torch.zeros(2, 3)}, [2]).set_("a", torch.zeros(2))
    # a value that does not fit raises for zero rows as for two
nm.prod((0, 1)) ==> nm.prod(0).prod(0)
    # every dim of a tuple is reduced
nm.amax((0, 1)) ==> nm.amax(0).amax(0)
    # every dim of a tuple is reduced
(x := TD({'s': ['a', 'b']}, [2]))['s'][0] = 'z'; x['s'] ==> ['a', 'b']
    # objects that differ per row are read as a list, which is a copy: rows are written by x[0] = TD({'s': 'z'})
TD.from_dict({'s': [TD(a=1), TD(a=2)]})['s'] ==> TD({'s': [TD(a=1), TD(a=2)]}, [2])['s']
    # a list of trees becomes a stack, as in the constructor
td.memmap()[:2].is_memmap() ==> False
    # a part of the rows is not the dataset: saved_path and memmap_refresh_() refer to all rows
x = __import__("tempfile").TemporaryDirectory(); TD(other=torch.ones(3), batch_size=[3]).memmap(x.name);
        td.memmap(x.name, existsok=False) ==> raise RuntimeError('already holds a dataset')
    # another dataset is kept; its files would stay without an entry in the metadata
x = TD(n=torch.zeros(2), s="a", batch_size=[2]); x.clone(False).update_(
        TD(n=torch.ones(2), s="b", batch_size=[2]));
        (x["n"].tolist(), x["s"]) ==> ([1.0, 1.0], "b")
    # a shallow copy shares text as it shares tensors: the reference writes the numbers of the source and not its text
td.memmap()[0].is_locked ==> td.clone().lock_()[0].is_locked
    # rows accept new entries, as rows of any locked tree do
x = td.share_memory_()[0]; (x.is_locked, x.is_shared(), x['a'].is_shared()) ==> (False, False, True)
    # the same for shared memory; the tensors report that they are shared
x = td.float().lock_(); x.detach().requires_grad_(); x.detach().requires_grad ==> False
    # a locked tree caches the result of detach() as the reference does, until requires_grad_(), unlock_(), a batch
    # size or names change it
td.clear_device_().lock_().detach(); td.names = ['x']; td.detach().names ==> ['x']
    # the same cache: after a change under the lock, detach() makes a new result
TD({"a": np.array(["x", "y"])}, [2])[0]["a"] ==> "x"
    # an array of strings or objects with as many elements as the batch has rows is a column, so that filters and
    # sorts move its elements with their rows
TD({"a": np.array([{1}, None], dtype=object)}, [2])[1:] ==> TD({"a": [{1}, None]}, [2])[1:]
    # the same for arrays of objects, and for columns of pandas, Arrow and Polars
TD({'a': torch.ones(4, 3)}, []) + TD({'a': torch.ones(4, 3)}, [4, 3]) ==> TD({'a': torch.ones(4, 3)}, [4, 3]) * 2
    # entries of equal shape are combined element by element, for any number of batch dimensions
(TD({'a': torch.ones(4, 3)}, [4]) == TD({'a': torch.ones(4, 3)}, [4, 3])).all() ==> True
    # as above; the reference fails for batch sizes that do not broadcast
(TD({'s': 'x'}, [2]) == TD({'s': torch.zeros(2)}, [2])).all() ==> False
    # an object never equals a tensor; without a result, different trees would be equal
c == c.to_dict(), ==> c == c,
    # a field that is None is not an entry, in a dict as in a tree
TD({'s': 'x'}, [2]) | TD({'s': 'y'}, [2]) ==> TD({'s': 'x'}, [2])
    # objects without this operator are kept, as in arithmetic: strings beside masks are common
TD({'s': NonTensorData(True)}) & TD({'s': NonTensorData(False)}) ==> TD({'s': torch.tensor(False)})
    # `&` answers for objects as `|` and `^` do
ds.update_at_(TD({'z': torch.ones(3)}, [3]), slice(None))
    ==> td.update_at_(TD({'z': torch.ones(3)}, [3]), slice(None))
    # update_at_ copies into existing entries, of a lazy stack as of a dense tree
(td.get_at(('a', 'q'), 0, 5), td.get_non_tensor(('a', 'q'), 5)) ==> (5, 5)
    # a key below a tensor is absent, so get(), pop() and others return their default
td.set_('n', 'text') ==> td.set_('a', 'text')
    # a string cannot be written into a nested tree; otherwise the call would silently do nothing
c.update(TD({'x': torch.zeros(3, 4), 'zz': torch.zeros(3)}, [3]))
    ==> c.update({'x': torch.zeros(3, 4), 'zz': torch.zeros(3)})
    # a key that is not a field raises, from a tree as from a dict (and from set())
c.update_({'x': torch.zeros(3, 4), 's': 'new'}, keys_to_update=['x']).s ==> 'hi'
    # the documentation says that only keys_to_update are written
torch.cat([TD({'m': MetaData('x')}, [1]), TD({'m': MetaData('y')}, [1])])['m']
    ==> TD({'m': NonTensorStack('x', 'y')}, [2])['m']
    # values that differ are kept per row; the first value does not describe the other rows
type(td['a'] + UnbatchedTensor(torch.ones(3, 4))) ==> torch.Tensor
    # a result computed with rows has rows; as an unbatched entry, map would keep only one chunk
TD({'u': UnbatchedTensor(torch.ones(2, 4))}, [3]).masked_fill(torch.tensor([True, False, True]), 9)['u']
    ==> UnbatchedTensor(torch.ones(2, 4))
    # masked_fill fills rows, and an unbatched tensor has no rows (where() as well)
TD({'u': UnbatchedTensor(torch.ones(2, 4))}, [3]).all(0)['u'] ==> UnbatchedTensor(torch.ones(2, 4))
    # unchanged, as by sum(0)
(t := TD({'u': UnbatchedTensor(torch.ones(2, 4))}, [3]), t.__setitem__(0, 7))[0]['u']
    ==> UnbatchedTensor(torch.ones(2, 4))
    # a value for some rows does not replace the value for all rows
TD({'u': UnbatchedTensor(torch.ones(2, 4))}, [3]).pad([1, 1])['u'].batch_size ==> torch.Size([5])
    # the batch size of an entry starts with the batch size of its tree
isinstance(c, TensorClass) ==> True
    # the decorator makes the same classes as the base class
type(c.consolidate(return_early=True, num_threads=2).result()).__name__
    ==> type(c.consolidate(num_threads=2)).__name__
    # the future has the same result as the call without return_early
x = td.consolidate(); x.consolidate(device='meta')['a'].device ==> td.consolidate(device='meta')['a'].device
    # another device, file or kind of memory is applied, as the reference announces for version 0.17
TD({'a': torch.ones(2).to(torch.float8_e4m3fn)}, [2]).consolidate()['a'].dtype ==> torch.float8_e4m3fn
    # tensors of every dtype are consolidated
type(TD({'s': NonTensorData('x', batch_size=[3])}, [3]).expand(2, 3).get('s')).__name__
    ==> type(TD({'s': NonTensorData('x', batch_size=[3])}, [3])[None].get('s')).__name__
    # one object for all rows stays one object, as with reshape, repeat, [None], broadcast_to and unsqueeze
TD({'a': torch.ones(3, 4)}, [3])[:, 0] ==> raise IndexError('more dimensions than the batch')
    # an index with more dimensions than the batch would index into rows if all entries happened to have enough
    # dimensions
type(lazy_stack([c, c])) is C ==> False
    # a lazy stack of a tensorclass has its own class of the same name; isinstance(stack, C) is True
(U := type('U', (), {'__annotations__': {'a': torch.Tensor}}), tensorclass(U) is U)[1] ==> False
    # the decorator returns a new class and does not change the decorated class
(TD({'e': {}, 'z': torch.ones(2)}, [2]) + 1).keys() == {'e', 'z'} ==> True
    # a nested tree without tensors stays, as in apply, clone and indexing
type(MemoryMappedTensor.from_tensor(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))).__name__
    ==> 'MappedNestedTensor'
    # a nested tensor has no single shape, so it is not a MemoryMappedTensor
MemoryMappedTensor.empty(3, dtype=torch.qint8) ==> raise TypeError('int_repr')
    # the scale of a quantized tensor would be lost; the reference leaves a file, or crashes
MemoryMappedTensor([3, 4]) ==> raise TypeError('from_tensor')
    # the reference returns a tensor that is not mapped; the error shows how to map values
TD({'a': torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}, [2]).bytes() ==> 20
    # the bytes of strided nested tensors are counted too
lib.collate(lz.select('a'), pad_keys={'a': 0})['a'].shape
    ==> lib.collate(list(lz.select('a').unbind(0)), pad_keys={'a': 0})['a'].shape
    # a DataLoader over a ragged stack passes batches, whose entries are padded like those of samples
nm.masked_select(torch.tensor([True, False]), inplace=True).names
    ==> nm.masked_select(torch.tensor([True, False])).names
    # in place or not, the remaining dimensions keep their names
TD({'a.b': torch.ones(3), 'a': 'text'}, [3]).unflatten_keys('.') ==> raise KeyError('override an existing')
    # an entry below a string would be lost, like one below a tensor, which raises in both packages
delattr(c, 'y') ==> raise AttributeError('not set')
    # a field without a value is not an entry, and cannot be deleted twice
"""
)

MODULES = rows_of(
    r"""
m = nn.Linear(2, 2); TD(weight=torch.zeros(3, 3)).to_module(m) ==> raise RuntimeError("shape")
    # a weight of another shape raises before the module is changed, not in its next forward
Mod(lambda x: [x, x + 1], ["b"], ["o", "p"])(fl.select("b"))
    ==> Mod(lambda x: (x, x + 1), ["b"], ["o", "p"])(fl.select("b"))
    # a list of outputs is treated like a tuple
q = TD(b=torch.ones(3), h=torch.zeros(3), batch_size=[3]); Seq(Mod(lambda x: x + 1, ["b"], ["h"]), Mod(lambda x: x +
        1, ["h"], ["p"]), selected_out_keys=["p"])(q)["h"]
    ==> torch.zeros(3)
    # only selected keys are written, also over entries of the input
m, p = nn.Linear(2, 2), nn.Parameter(torch.ones(2, 2), requires_grad=False); TD(weight=p).to_module(m);
        m.weight.requires_grad
    ==> False
    # a Parameter keeps its requires_grad
type(TD.from_module(nn.ModuleDict({"p": Params(TD(a=torch.ones(2)))}))["p"]) ==> TD
    # the result is a separate tree: locking it locks no part of the model
p = Params(TD(w=torch.ones(2))); p.v = nn.Parameter(torch.ones(1)); list(p.keys()) ==> ["w", "v"]
    # the entries are the parameters, including parameters that are assigned as attributes
p = Params(TD(w=torch.ones(2))); p.w = nn.Parameter(torch.zeros(2)); p['w'].tolist() ==> [0.0, 0.0]
    # an attribute and a key of the same name are the same parameter
type(Params(TD(w=torch.ones(2))).to(torch.float64, inplace=True)["w"]).__name__ ==> 'Parameter'
    # parameters stay parameters in place, the same objects, as in nn.Module.to
m = nn.ModuleDict({"p": Params(TD(n=TD(b=torch.ones(2))))}); m.forward = lambda: m["p"]["n", "b"] * 1;
        torch.func.functional_call(m, {"p.n.b": torch.zeros(2)}, ())
    ==> torch.zeros(2)
    # a functional call uses the given parameters, read by key or by attribute
torch.vmap(lambda q: q)(lib.lazy_stack([TD(a=torch.ones(2)), TD(a=torch.ones(3))]))
    ==> raise RuntimeError("one shape")
    # all rows of a vmap have one shape; the error names the entry to leave out
torch.func.jacrev(lambda q: q["a"] * 2)(TD(a=torch.ones(3), b=torch.ones(3))).batch_size ==> torch.Size([3])
    # the dimensions of the output precede those of every entry, as in vmap
type(pickle.loads(pickle.dumps(Params(TD(w=torch.ones(3))).consolidate()))).__name__
    ==> type(Params(TD(w=torch.ones(3))).consolidate()).__name__
    # a pickle restores the type that was pickled; consolidated tensors are not parameters
torch.func.hessian(lambda q: (q["b"] ** 2).sum())(fl.select("b"))["b", "b"]
    ==> torch.func.hessian(lambda b: (b ** 2).sum())(fl["b"])
    # documented to work on tensordicts like on other pytrees
"""
)

DEPARTURES = [*TREES, *MODULES]


def table(rows: list[tuple[str, str, str]]) -> str:
    """The rows in Markdown."""
    lines = ["| Expression | Result in `tensordict_lite` | Why |", "|---|---|---|"]
    for source, same_as, reason in rows:
        answer = f"an error: {_error(same_as)}" if same_as.startswith("raise ") else _code(same_as)
        lines.append(f"| {_code(source)} | {answer} | {reason.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def _code(text: str) -> str:
    return "`" + text.removesuffix(",").replace("|", "\\|") + "`"


def _error(text: str) -> str:
    return _code(text.removeprefix("raise ").partition("(")[0])


def section() -> str:
    """What stands between the marks of the page."""
    return f"{BEGIN}\n\n### Trees\n\n{table(TREES)}\n\n### Modules\n\n{table(MODULES)}\n\n{END}"


def written(page: str) -> str:
    """The page with the list of now."""
    return page[: page.index(BEGIN)] + section() + page[page.index(END) + len(END) :]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
