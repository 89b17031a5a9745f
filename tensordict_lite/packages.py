"""Packages that only some need, which are imported when they are used."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, extra: str, purpose: str) -> Any:
    """Import a package of an extra.

    Args:
        module: what to import.
        extra: of tdmap, that brings it.
        purpose: what it is needed for, as the beginning of a sentence.

    Raises:
        ImportError: it is not installed; says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        if error.name not in (package, module):
            raise  # it is there, and something that it needs is not
        raise ImportError(
            f"{purpose} needs the package {package}: install it with `pip install 'tdmap[{extra}]'`", name=package
        ) from None


def pyarrow() -> Any:
    return need("pyarrow", "arrow", "reading and writing Arrow's formats")


def compute() -> Any:
    """The functions of Arrow."""
    return need("pyarrow.compute", "arrow", "reading and writing Arrow's formats")


def pandas() -> Any:
    return need("pandas", "arrow", "making data frames")


def h5py() -> Any:
    return need("h5py", "hdf5", "reading and writing HDF5")


def zarr() -> Any:
    return need("zarr", "zarr", "reading and writing Zarr stores")
