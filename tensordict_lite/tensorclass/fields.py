"""The fields of a tensorclass: meaning of annotations, constructor and descriptors.

A tensorclass stores its fields in the same ``_source`` dictionary as a TensorDict its entries, so a field is a property
over one key. Constructor and properties are generated as source code and compiled once per class, as in dataclasses: at
run time there are no loops over fields, no ``**kwargs`` unpacking and no ``getattr`` by name.

==================  =====================================================================================
annotation          conversion of values
==================  =====================================================================================
anything            tensors and collections are kept, numbers and arrays become tensors, lists are stacked,
                    other objects become non-tensor data
int, float, bool    a number of that type stays a Python number if it cannot be a tensor, that is if the
                    batch size is not ``[]``
a tensorclass       ``from_tensordict`` converts a plain TensorDict to it
==================  =====================================================================================

``autocast`` calls the annotation on the value, ``nocast`` keeps numbers and arrays.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union

import numpy as np
import torch
from torch import Tensor

from tensordict_lite.arrays import tensor_of
from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.kernel import as_size, check_names, normalise_device
from tensordict_lite.settings import MISSING

if sys.version_info >= (3, 14):
    import annotationlib


FLAGS = ("autocast", "nocast", "frozen", "tensor_only", "shadow", "skip_post_init_on_rebuild")
METADATA = frozenset(("batch_size", "shape", "device", "names"))

_UNION_TYPES = (Union, getattr(types, "UnionType", Union))
_CAST_TYPES = (int, float, bool, str, bytes, complex, dict, list, tuple, set, frozenset)


@dataclasses.dataclass(frozen=True)
class Flags:
    """The options of a tensorclass, see :class:`TensorClass`."""

    autocast: bool = False
    """Call the annotation of a field on its value."""
    nocast: bool = False
    """Keep numbers and arrays instead of making tensors of them."""
    frozen: bool = False
    """Only the constructor writes fields."""
    tensor_only: bool = False
    """Every field is a tensor or a collection; other values raise."""
    shadow: bool = False
    """Allow fields that hide a method of the same name."""
    skip_post_init_on_rebuild: bool = False
    """Run ``__post_init__`` only in the constructor, not on the results of operations."""

    def updated(self, changes: Mapping[str, bool], owner: str) -> Flags:
        """These flags with changes; TypeError if they conflict."""
        new = dataclasses.replace(self, **{name: bool(value) for name, value in changes.items()})
        if new.autocast and new.nocast:
            raise TypeError(f"{owner}: autocast is exclusive with nocast, set one of them")
        if new.tensor_only and (new.autocast or new.nocast):
            raise TypeError(f"{owner}: tensor_only and autocast or nocast are exclusive, set one of them")
        return new


@dataclasses.dataclass(frozen=True)
class FieldSpec:
    """The meaning of the annotation of one field, computed once per class."""

    name: str
    hint: Any
    """The resolved annotation, or the string if it cannot be resolved."""
    scalar: type | None = None
    """``int``, ``float`` or ``bool`` for such a field, optional or not."""
    tensorclass: type | None = None
    """The tensorclass that the field holds, optional or not."""
    tensors: bool = False
    """Whether the annotation allows only tensors, collections and ``None``."""


def own_annotations(cls: type) -> dict[str, Any]:
    """The annotations of the class body; all as strings if one contains a name that is not defined (yet)."""
    try:
        return inspect.get_annotations(cls)
    except NameError:  # Python 3.14 evaluates annotations on access, when the class itself has no name yet
        if sys.version_info >= (3, 14):
            return annotationlib.get_annotations(cls, format=annotationlib.Format.STRING)
        raise


def field_specs(cls: type, names: Iterable[str], namespaces: list[Mapping[str, Any]]) -> dict[str, FieldSpec]:
    """The specification of each field, in order.

    Args:
        cls: the class, already a dataclass.
        names: its fields.
        namespaces: where names in string annotations are looked up, in this order.
    """
    declared = cls.__dataclass_fields__  # type: ignore[attr-defined]
    inherited = {
        name: spec for base in reversed(cls.__mro__[1:]) for name, spec in base.__dict__.get("_field_specs", {}).items()
    }
    own = own_annotations(cls)
    specs = {}
    for name in names:
        if name in inherited and name not in own:
            specs[name] = inherited[name]
            continue
        hint = declared[name].type
        specs[name] = make_spec(name, _resolve(hint, cls, namespaces) if isinstance(hint, str) else hint, cls)
    return specs


def make_spec(name: str, hint: Any, owner: type) -> FieldSpec:
    """Interpret one resolved annotation."""
    core = [part for part in _members(hint) if part is not type(None)]
    only = core[0] if len(core) == 1 else None
    known = isinstance(only, type) and (only is owner or bool(getattr(only, "_field_specs", None)))
    return FieldSpec(
        name,
        hint,
        scalar=only if only in (int, float, bool) else None,
        tensorclass=only if known else None,
        tensors=all(map(_holds_tensors, core)),
    )


def _holds_tensors(hint: Any) -> bool:
    """Whether it is a class of tensors or collections, such as ``TensorDict[str, Tensor]``."""
    cls = typing.get_origin(hint) or hint
    return isinstance(cls, type) and issubclass(cls, (Tensor, TensorCollection))


def _members(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union (nested or quoted ones too), the annotation itself otherwise."""
    if typing.get_origin(hint) in _UNION_TYPES:
        return tuple(member for part in typing.get_args(hint) for member in _members(part))
    if typing.get_origin(hint) is typing.Annotated:
        return _members(typing.get_args(hint)[0])
    return (hint,)


def _resolve(text: str, cls: type, namespaces: list[Mapping[str, Any]]) -> Any:
    """The object named by a string annotation; the string itself if a name is not defined (yet)."""
    module = sys.modules.get(cls.__module__)
    names: dict[str, Any] = {cls.__name__: cls}
    for space in reversed([vars(cls), *namespaces, vars(module) if module else {}]):
        names.update(space)
    names[cls.__name__] = cls
    try:
        return eval(text, {"__builtins__": __builtins__}, names)
    except Exception:  # a name under TYPE_CHECKING, newer syntax, or a class defined later
        return text


def init_var_names(cls: type) -> dict[str, Any]:
    """``InitVar`` pseudo-fields and their defaults (``dataclasses.MISSING`` for none)."""
    return {
        name: field.default
        for name, field in cls.__dataclass_fields__.items()  # type: ignore[attr-defined]
        if field._field_type is dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]
    }


# -- values ------------------------------------------------------------------------------------------------


def convert_default(owner: Any, spec: FieldSpec, value: Any) -> Any:
    """A plain Python value as an entry of ``owner``: tensor, collection or non-tensor wrapper."""
    if isinstance(value, np.ndarray):
        return owner._from_array(value, spec.name)
    if isinstance(value, (bool, int, float)):
        if spec.scalar is not None and owner._batch_size and _fits_scalar(value, spec.scalar):
            return owner._wrap(value)
        return owner._convert_plain(value)
    return owner._convert_plain(value) if isinstance(value, list) else owner._wrap(value)


def _fits_scalar(value: Any, scalar: type) -> bool:
    return isinstance(value, (int, float) if scalar is float else scalar)


def convert_nocast(owner: Any, spec: FieldSpec, value: Any) -> Any:
    """:func:`convert_default`, except that numbers and arrays are kept."""
    return owner._convert_plain(value) if isinstance(value, list) else owner._wrap(value)


def convert_tensor_only(owner: Any, spec: FieldSpec, value: Any) -> Any:
    """A tensor or a collection; TypeError for other values."""
    if isinstance(value, tuple):
        value = list(value)
    is_array = isinstance(value, np.ndarray)
    entry = owner._from_array(value, spec.name) if is_array else owner._convert_plain(value)
    if not isinstance(entry, Tensor) and entry._is_non_tensor and not entry._is_unbatched:
        raise TypeError(
            f"{type(owner).__name__}.{spec.name} takes tensors and tensor collections only (tensor_only=True), got "
            f"{value!r} of type {type(value).__name__}. Drop the flag to store other objects."
        )
    return entry


def convert_autocast(owner: Any, spec: FieldSpec, value: Any) -> Any:
    """The annotation called on the value, if it is a class; otherwise the value."""
    hint = spec.hint
    if not _is_class(hint):
        if isinstance(value, (list, tuple)):
            return owner._wrap(value)
        return value if isinstance(value, (Tensor, TensorCollection)) else convert_default(owner, spec, value)
    if issubclass(hint, Tensor):
        if isinstance(value, (Tensor, TensorCollection)):
            return value
        return owner._wrap(value) if isinstance(value, dict) else _cast_tensor(owner, spec, value)
    if issubclass(hint, TensorCollection):
        return value if isinstance(value, hint) else _cast_collection(owner, hint, value)
    if isinstance(value, dict):
        return owner._wrap(value)
    if hint is np.ndarray:
        return owner._wrap(np.asarray(value))
    if type(value) is hint or (isinstance(value, hint) and hint not in _CAST_TYPES):
        return owner._wrap(value)
    return owner._wrap(hint(value))


def _is_class(hint: Any) -> bool:
    """Whether a value can be cast by calling the annotation (``Any`` is a class from Python 3.11 on)."""
    return isinstance(hint, type) and hint is not object and hint is not Any


def converter_for(flags: Flags) -> Callable[[Any, FieldSpec, Any], Any]:
    """The function that converts plain values to entries under these flags."""
    if flags.tensor_only:
        return convert_tensor_only
    if flags.autocast:
        return convert_autocast
    return convert_nocast if flags.nocast else convert_default


def _cast_tensor(owner: Any, spec: FieldSpec, value: Any) -> Tensor:
    try:
        return tensor_of(value, owner._device)
    except TypeError as err:
        raise TypeError(
            f"failed to cast the value of {type(owner).__name__}.{spec.name} to its annotation {spec.hint}: got "
            f"{value!r} of type {type(value).__name__}"
        ) from err


def _cast_collection(owner: Any, hint: type, value: Any) -> Any:
    size = owner._batch_size
    if isinstance(value, Mapping) and not isinstance(value, TensorCollection):
        if hasattr(hint, "_field_specs"):
            return hint.from_dict(value, batch_size=size)  # type: ignore[attr-defined]
        return hint(value, batch_size=size)
    if isinstance(value, TensorDict) and hasattr(hint, "_field_specs"):
        return hint.from_tensordict(value)  # type: ignore[attr-defined]
    return hint(value, batch_size=size)


# -- compiled code -------------------------------------------------------------------------------------------


def _compile(text: str, name: str, scope: dict[str, Any]) -> Any:
    out: dict[str, Any] = {}
    exec(compile(text, f"<tensorclass {name}>", "exec"), scope, out)
    return out[name.rpartition(".")[2]]


_GETTER = """
def get(self):
    try:
        value = self._source[{name!r}]
    except KeyError:
        return None
    if type(value) is Tensor:
        return value
    return value if isinstance(value, Tensor) else value._as_value()
"""

_SETTER = """
def set(self, value):
    if type(value) is Tensor and self._lock is None and self._device is None{condition}:
        size = self._batch_size
        try:
            if not size or value.shape[:len(size)] == size:
                self._source[{name!r}] = value
                return
        except RuntimeError:  # a strided nested tensor has no shape
            pass
    self._set_field({name!r}, value)
"""


def field_property(owner: str, spec: FieldSpec, flags: Flags, doc: str | None = None) -> property:
    """The descriptor of one field.

    An exact ``property`` around a plain function, since the interpreter inlines its getter.
    """
    name = spec.name
    scope = {"Tensor": Tensor, "isinstance": isinstance, "type": type}
    getter = _compile(_GETTER.format(name=name), "get", dict(scope))
    getter.__name__ = name
    getter.__qualname__ = f"{owner}.{name}"
    if flags.frozen:

        def frozen_set(self: Any, value: Any) -> None:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r} of the frozen class {owner}")

        def frozen_delete(self: Any) -> None:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r} of the frozen class {owner}")

        return property(getter, frozen_set, frozen_delete, doc)
    takes_any_tensor = not flags.autocast or _keeps_tensors(spec)
    setter = _compile(
        _SETTER.format(name=name, condition="" if takes_any_tensor else " and False"),
        "set",
        {"Tensor": Tensor, **scope},
    )

    def delete(self: Any) -> None:
        self._delete_field(name)

    return property(getter, setter, delete, doc)


def _keeps_tensors(spec: FieldSpec) -> bool:
    """Whether ``autocast`` keeps a tensor in this field unchanged."""
    return not _is_class(spec.hint) or issubclass(spec.hint, Tensor)


def unknown_field_error(cls: type, name: str) -> Exception:
    """The error for an attribute that is not a field; lists the fields."""
    known = sorted(cls._field_specs)  # type: ignore[attr-defined]
    if name in known:
        return TypeError(f"{cls.__name__}.__init__() takes no argument {name!r}: the field is declared with init=False")
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return AttributeError(
        f"cannot set the attribute {name!r}: {cls.__name__} has no such field. Its fields are {known}.{hint}"
    )


def is_key(index: Any) -> bool:
    """Whether an index is a field name, or a tuple of them, by mistake."""
    return isinstance(index, str) or (type(index) is tuple and bool(index) and isinstance(index[0], str))


def key_error(cls: type, index: Any, verb: str, call: str) -> Exception:
    """The error for such an index."""
    return ValueError(
        f"invalid index {index!r}: a {cls.__name__} is indexed along its batch dimensions; to {verb} a field, use the "
        f"attribute or {call}"
    )


def compile_init(cls: type, specs: Mapping[str, FieldSpec], flags: Flags) -> Callable[..., None]:
    """``__init__`` of a class, as one function without loops over its fields."""
    fields = cls.__dataclass_fields__  # type: ignore[attr-defined]
    init_vars = init_var_names(cls)
    scope: dict[str, Any] = {
        "_EMPTY": torch.Size(()),
        "_FACTORY": MISSING,
        "_Size": torch.Size,
        "_Tensor": Tensor,
        "_as_size": as_size,
        "_check_names": check_names,
        "_cls": cls,
        "_device_of": normalise_device,
        "_unknown_field": unknown_field_error,
    }
    positional: list[str] = []
    keyword: list[str] = []
    lines = []
    for name, field in fields.items():
        if name not in specs and name not in init_vars:
            continue  # a ClassVar
        source = _default_source(name, field, scope)
        if not field.init:
            if source:
                lines.append(f"{name} = {'_FACTORY' if source == '_FACTORY' else source}")
            else:
                lines.append(f"{name} = None")
        else:
            if not (source or field.kw_only) and positional and "=" in positional[-1]:
                raise TypeError(
                    f"{cls.__qualname__}: non-default argument {name!r} follows default argument "
                    f"{positional[-1].partition('=')[0]!r}. Give it a default or move it up."
                )
            (keyword if field.kw_only else positional).append(f"{name}={source}" if source else name)
        if field.default_factory is not dataclasses.MISSING:
            lines.append(f"if {name} is _FACTORY: {name} = _factory_{name}()")
    options = [name for name in ("batch_size", "device", "names") if name not in fields]
    keyword += [f"{name}=None" for name in options]
    arguments = ", ".join(["self", *positional, *(["*", *keyword] if keyword else []), "**_td_unknown"])
    text = [f"def __init__({arguments}):", "    if _td_unknown: raise _unknown_field(_cls, next(iter(_td_unknown)))"]
    text += _slot_lines(options) + [f"    {line}" for line in lines]
    if hasattr(cls.__setattr__, "_guards") and not flags.frozen:  # a user-defined __setattr__ sees every field
        text += [f"    if {name} is not None: self.{name} = {name}" for name in specs]
    else:
        text += _field_lines(specs, flags)
    if getattr(cls, "__post_init__", None) is not None:
        text.append(f"    self.__post_init__({', '.join(init_vars)})")
    if flags.frozen:
        text.append("    self._propagate_lock(None)")
    init: Any = _compile("\n".join(text), "__init__", scope)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    init._tensorclass_generated = True
    types_ = {name: fields[name].type for name in (*specs, *init_vars)}
    hints = {name: hint.type if isinstance(hint, dataclasses.InitVar) else hint for name, hint in types_.items()}
    init.__annotations__ = {**hints, "return": None}
    signature = inspect.signature(init)
    init.__signature__ = signature.replace(
        parameters=[p for p in signature.parameters.values() if p.name != "_td_unknown"]
    )
    return init


def _default_source(name: str, field: Any, scope: dict[str, Any]) -> str:
    if field.default is not dataclasses.MISSING:
        scope[f"_default_{name}"] = field.default
        return f"_default_{name}"
    if field.default_factory is not dataclasses.MISSING:
        scope[f"_factory_{name}"] = field.default_factory
        return "_FACTORY"
    return ""


def _slot_lines(options: list[str]) -> list[str]:
    """Statements that set the slots from the keywords ``batch_size``, ``device`` and ``names``."""
    size = "_EMPTY if batch_size is None else batch_size if type(batch_size) is _Size else _as_size(batch_size)"
    return [
        "    self._source = _td_source = {}",
        f"    self._batch_size = _td_size = {size if 'batch_size' in options else '_EMPTY'}",
        f"    self._device = {'None if device is None else _device_of(device)' if 'device' in options else 'None'}",
        "    self._names = "
        + ("None if names is None else _check_names(names, len(_td_size))" if "names" in options else "None"),
        "    self._types = None",
        "    self._lock = None",
        "    _td_dims = len(_td_size)",
        "    _td_plain = self._device is None",
    ]


def _field_lines(specs: Mapping[str, FieldSpec], flags: Flags) -> list[str]:
    lines = []
    for name, spec in specs.items():
        if not flags.autocast or _keeps_tensors(spec):
            lines += [
                "    try:",
                f"        _td_fits = _td_plain and type({name}) is _Tensor"
                f" and (not _td_dims or {name}.shape[:_td_dims] == _td_size)",
                "    except RuntimeError:  # a strided nested tensor has no shape",
                "        _td_fits = False",
                "    if _td_fits:",
                f"        _td_source[{name!r}] = {name}",
                f"    elif {name} is not None:",
            ]
        else:
            lines.append(f"    if {name} is not None:")
        lines.append(f"        _td_source[{name!r}] = self._fit({name}, {name!r})")
    return lines
