"""Where a drawn line answers otherwise than the reference: families of departures, each with its reason.

A rule holds for lines, kinds and differences that match its three regular expressions; what no rule explains fails the
suite, and ``python -m tests.differential.count`` names rules that explain nothing any more. Departures that a user of
the reference may meet on the way here have a row of their own in ``tests/differential/departures.py``.
"""

import dataclasses
import re
from collections.abc import Sequence

_ANY = ".*"
_LAZY = "lazy stack"
_OBJECTS = "NonTensor(Data|Stack)"
_CLASS = "tensorclass"
_MAPPED = "mapped"
_ANSWERED = "^returned .*reference raised"
"""What the reference refuses, mostly by an accident of its code. Each rule names methods, so that a new one is seen."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """One reason, and where it holds."""

    reason: str
    lines: str = _ANY
    kinds: str = _ANY
    how: str = _ANY

    def explains(self, line: str, kind: str, difference: str) -> bool:
        """Whether the difference is one of these."""
        return all(
            re.search(pattern, text, re.DOTALL)
            for pattern, text in ((self.lines, line), (self.kinds, kind), (self.how, difference))
        )


RULES = [
    Rule("what is done member by member needs no entries that can be stacked", kinds="ragged", how=_ANSWERED),
    Rule(
        "classes with flags, classes in classes and objects are made and combined as plain classes are",
        r"x\.(stack|cat|lazy_stack|maybe_dense_stack|fromkeys|load|load_memmap|from_\w+)\(",
        f"{_CLASS}|{_OBJECTS}",
        _ANSWERED,
    ),
    Rule("lazy stacks and parameters make TensorDicts of other things", r"x\.from_(any|struct_array)", how=_ANSWERED),
    Rule("keys of a class that are no fields make a TensorDict", r"flatten_keys", _CLASS, _ANSWERED),
    Rule(
        "members of a stack take what an instance takes",
        "rename_key_|create_nested|update_at_|extend",
        _CLASS,
        _ANSWERED,
    ),
    Rule("a field is taken out as an entry is", "popitem|delitem", _CLASS, _ANSWERED),
    Rule("a class without gradients has the gradient None", r"x\.grad", f"{_CLASS}|{_OBJECTS}", _ANSWERED),
    Rule("a number in a dict goes to all rows, as one alone does", r"update_at_\(\{", how=_ANSWERED),
    Rule("rows of a tree are a tree: copy_at_ takes them", "copy_at_", how=_ANSWERED),
    Rule(
        "entries that are there are written in place, locked or not",
        r"set\(.*inplace=True|__setitem__|detach_",
        "frozen|mapped|parameters",
        _ANSWERED,
    ),
    Rule(
        "an unbatched tensor is left alone by what works on rows",
        "masked_fill|where|bytes|to_struct_array",
        "unbatched",
        _ANSWERED,
    ),
    Rule("a value for all rows fits a lazy stack in a tree", "where", "lazy stack in a tree", _ANSWERED),
    Rule(
        "no dimension, no row and no entry are sizes like others",
        r"movedim|moveaxis|rename\(|gather|cat_tensors|memmap|to_struct_array",
        "0 dims|no rows|no entries",
        _ANSWERED,
    ),
    Rule(
        "objects are entries like others, and stay under operations of tensors",
        r"x [|^] y|update_at_|create_nested|to_namedtuple|to_struct_array|append|insert|extend",
        _OBJECTS,
        _ANSWERED,
    ),
    Rule("a mapped tree pickles by its files", "pickle", _MAPPED, _ANSWERED),
    Rule(
        "an object has no entries: KeyError, whichever way one is asked for",
        kinds=_OBJECTS,
        how="^raised .*(KeyThroughLeaf|KeyError|no entries).*reference (raised|returned)",
    ),
    Rule(
        "an object alone is no tree of the operation",
        r"\.(update|cat_from|flatten|x\.rename|with_of)|with_of",
        _OBJECTS,
        "^raised",
    ),
    Rule(
        "the error names the key that is no field before it speaks of the lock",
        r"set\(|setdefault|set_non_tensor",
        _CLASS,
        "has no such field",
    ),
    Rule("a locked tree says so first", "del_|delitem", _CLASS, "Cannot modify locked"),
    Rule(
        "a batch without dimensions has no rows: RuntimeError for each index, as for reading",
        "x.__setitem__|update_at_|gather",
        "0 dims",
        "^raised.*reference raised",
    ),
    Rule("a mapping of rows is taken for a tree; the reference knows trees only", "update_at_", how="^raised"),
    Rule(
        "cat_tensors takes its sources out when the result has been written",
        "cat_tensors",
        how="^raised.*reference raised",
    ),
    Rule(
        "the error is that of torch, which says what to do",
        r"set\(|set_\(|load_state_dict",
        "expanded|requiring grad",
        "^raised.*reference raised",
    ),
    Rule("the error is that of torch for one tensor", "maximum|minimum", "dtypes", "^raised.*reference raised"),
    Rule("keys that are no fields are named", r"from_(namedtuple|pytree)", _CLASS, "must correspond"),
    Rule("a class with required fields is not made without them", r"from_", "typed", "missing required"),
    Rule(
        "a dict of members has their numbers as keys",
        "from_dict",
        _LAZY + "|NonTensorStack",
        "^raised.*reference raised",
    ),
    Rule("nothing to do: the collection itself, as of a TensorDict", how=r"^result\[1\]: expected False, found True$"),
    Rule("nothing to do: the collection itself, with its device", r"to\(y\)", how="device"),
    Rule("a copy, as its docstring says", "to_tensordict", _OBJECTS, r"^result\[1\]: expected True, found False"),
    Rule(
        "rows of a mapped tree are not what its folder holds: they are not locked",
        kinds=_MAPPED,
        how="is_locked: expected True, found False",
    ),
    Rule(
        "a view of mapped memory stays a MemoryMappedTensor",
        kinds="mapped|no rows",
        how="expected Tensor, found MemoryMappedTensor",
    ),
    Rule("as_tensor() gives ordinary tensors, in an ordinary tree", "as_tensor"),
    Rule(
        "the device of a tree is that of what is nested in it, loaded or saved",
        "mem(map|ory)|load|save|dumps|tree_map|vmap|new_tensor|auto_device",
        how="device: expected",
    ),
    Rule("objects that JSON does not hold need allow_pickle=True", "memmap|load|save|dumps", "a set", "^raised .*JSON"),
    Rule(
        "results of a TypedTensorDict keep the class",
        kinds="typed",
        how="expected a (TensorDict|Typed), found a (Typed|TensorDict)",
    ),
    Rule("results of nested tensorclasses keep the class", r"max|min", _CLASS, "expected a TensorDict, found a Plain"),
    Rule(
        "an operation on a tree without entries gives such a tree",
        kinds="no entries|NonTensorData",
        how=r"^result\[0\]: expected None",
    ),
    Rule(
        "objects cannot be reduced: the error says to leave them out",
        "all|any|amax|amin|logsumexp|norm|softmax",
        "objects|NonTensorStack|tensorclasses",
        "cannot be reduced",
    ),
    Rule("an unbatched tensor is left alone by what reduces rows", "all|any|max|min", "unbatched"),
    Rule(
        "an unbatched tensor and objects have no rows to write to or to fill",
        r"__setitem__|where|apply|map",
        "unbatched|metadata",
    ),
    Rule("a number is stored as it is in rows of objects", r"__setitem__|where", how="found 0"),
    Rule("rows of an object cannot be written without a stack: maybe_to_stack()", "__setitem__", "NonTensorData"),
    Rule("lazy stacks stay lazy under views of them", "expand|broadcast_to|tile|narrow|apply|cat|contiguous", _LAZY),
    Rule(
        "rows picked from a lazy stack are rows of its members, by a mask as by a list",
        r"x\[torch.ones|repeat_interleave|masked_select",
        _LAZY,
    ),
    Rule("a dimension of size 1 in front of a stack is one of its members", "unflatten", _LAZY),
    Rule("merged dimensions of nested stacks are dense", r"flatten\(0, 1\)|tree_map|vmap", "lazy stack"),
    Rule("sizes that do not add up are an error, as for tensors", "split", _LAZY, "^raised"),
    Rule(
        "more dimensions than the batch has are an error, though all entries may have them",
        r"x\[:, 0\]|flatten\(0, 1\)|repeat_interleave",
        how="^raised (Index|Value)Error",
    ),
    Rule("entries that cannot be stacked say how to read them", "softmax|vmap|x.get", "ragged|lazy stacks", "^raised"),
    Rule("names of dimensions that stay are kept in nested trees", "broadcast_to|tile|expand_as", "named"),
    Rule("expand_as() follows the other collection level by level", "expand_as", "deeper batch|objects|NonTensorStack"),
    Rule("a class of tensors only takes no objects", "set_non_tensor", "tensor_only", "^raised"),
    Rule("a size of its own has no names", "new_", "named"),
    Rule(
        "rows that are made anew hold None where there were objects", "new_|pad", "objects|tensorclasses|NonTensorData"
    ),
    Rule(
        "objects stay under functions of tensors",
        r"apply|masked_select|grad|numpy|mod|&|bitwise|x >= 1|~",
        "objects|tensorclasses|NonTensor",
    ),
    Rule("vmap keeps device and objects, and gives an unlocked tree", "vmap"),
    Rule("fields that are None are no entries", "non_tensor_items", "tensorclass|NonTensorData"),
    Rule("from_module gives an unlocked tree, as TensorDict.from_module does", "from_module", how="is_locked"),
    Rule(
        "parameters stay parameters, and their tree a TensorDictParams",
        "with_of|rename_keys|replace|from_dict_instance|from_any|share_memory_",
        "parameters",
    ),
    Rule("there is no process group to reduce over", r"reduce\(dst", how="^raised"),
    Rule("objects are no entries that go along with others", "separates"),
    Rule("nested dimensions are in the shape of a field, and objects are objects", "to_struct_array"),
    Rule("a numeric factor makes numbers of truth values, as in torch", "alpha=2", "dtypes"),
    Rule("what belongs to the tree has no size of its own", "auto_batch_size_", "metadata"),
    Rule("a nested tree is locked with its root", "unflatten_keys", how="is_locked: expected False, found True"),
    Rule("members are instances of their class", "tensordicts|from_list", "tensorclasses"),
    Rule("a namedtuple of no fields, and a module of no parameters", "to_namedtuple|to_module", "NonTensorData"),
    Rule("nested parameters stay so in place, too", "inplace=True", "parameters", "expected Tensor, found Parameter"),
    Rule("lazy stacks and objects follow in place", "inplace=True", "objects|lazy stack|0 dims", _ANSWERED),
    Rule("rows that are made anew are dense", "inplace=True", _LAZY, "LazyStackedTensorDict, found a TensorDict"),
    Rule("hook_in and hook_out are internals of the reference", "hook_in"),
    Rule("rows leave out fields that are None at every level, not at the first alone", "tolist", _CLASS),
]
"""Departures on purpose."""

OPEN: list[Rule] = []
"""Differences that are known, and not meant to stay."""


def explained(line: str, kind: str, difference: Sequence[str]) -> Rule | None:
    """The first rule that holds for a difference."""
    text = "\n".join(difference)
    return next((rule for rule in [*RULES, *OPEN] if rule.explains(line, kind, text)), None)
