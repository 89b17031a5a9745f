"""The public methods and properties of both libraries, found by introspection, and those that are drawn elsewhere."""

import torch

from tests.differential.harness.namespace import PROJECT, REFERENCE, load
from tests.differential.interface.expressions import EXPRESSIONS

CLASSES = ("TensorDict", "LazyStackedTensorDict", "TensorDictParams", "NonTensorData", "NonTensorStack", "TensorClass")

ELSEWHERE = {
    "tests/distributed": "all_gather all_reduce arecv asend broadcast from_remote_init gather_and_stack init_remote"
    " irecv isend recv send",
    "tests/consolidated": "from_consolidated",
    "tests/engine": "map_reduce pipeline",
    "tests/memmap": "checksum sync",
    "tests/core": "fields from_dlpack from_pandas from_parquet from_tensordict to_pandas",
    "tests/differential": "register_get_post_hook",
    "tests/persistent": "from_h5 from_zarr to_h5 to_zarr",
}
"""Folder of tests that draw them, and the names: what needs several processes, or belongs to one kind."""

FORMATS = ("parquet", "csv", "json")
"""Readers and writers that ``tests/core/test_frames.py`` draws by the names of the formats."""

ABSENT = {
    "formats that no function here reads or writes": "to_mds to_store",
    "internals of the reference": "hook_in hook_out",
    "left out, see the page": "pack get_nestedtensor",
}
"""Why this project has no method of the name, and the names."""


def public(library: str) -> set[str]:
    """The public names of all collections of a library, without those of torch.nn.Module."""
    names = {name for cls in CLASSES for name in dir(getattr(load(library), cls)) if not name.startswith("_")}
    modules = {name for name in dir(torch.nn.Module) if not name.startswith("_")}
    plain = {name for cls in CLASSES if cls != "TensorDictParams" for name in dir(getattr(load(library), cls))}
    return names - (modules - plain)


def drawn() -> set[str]:
    """The names that some line draws."""
    return {method for expression in EXPRESSIONS for method in expression.methods}


def elsewhere() -> set[str]:
    """The names that other tests draw."""
    formats = {f"{way}_{kind}" for way in ("from", "to") for kind in FORMATS}
    return formats | {name for names in ELSEWHERE.values() for name in names.split()}


def absent() -> set[str]:
    """The names that this project leaves out."""
    return {name for names in ABSENT.values() for name in names.split()}


def undrawn() -> set[str]:
    """Public names of either library that nobody draws."""
    return (public(REFERENCE) | public(PROJECT)) - drawn() - elsewhere() - absent()
