"""Whether a module is the user's own and counts by its content, or of a package and counts by its version."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
import sysconfig
import types

OWN_PACKAGES = ("tdmap", "tensordict_lite")
"""Of this library: what they do to a run, the format of its journal tells."""

_INSTALLED = ("site-packages", "dist-packages")
_PLACES = ("stdlib", "platstdlib", "purelib", "platlib")


@functools.lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    places = {sysconfig.get_path(name) for name in _PLACES}
    return tuple(os.path.realpath(place) + os.sep for place in places if place)


@functools.lru_cache(maxsize=4096)
def is_installed_file(path: str) -> bool:
    """Whether a file belongs to the standard library or to an installed package."""
    real = os.path.realpath(path)
    return real.startswith(_installed()) or any(place in real.split(os.sep) for place in _INSTALLED)


def is_users_own(module: str | None) -> bool:
    """Whether a module is the user's.

    That is `__main__`, a file outside the standard library and the installed packages (an editable install included),
    and what was made by hand, of which nobody knows a file.

    Example:
        >>> is_users_own("__main__"), is_users_own("torch"), is_users_own("json"), is_users_own("tdmap.operations.map")
        (True, False, False, False)
    """
    if module is None:
        return True
    top = module.partition(".")[0]
    if top in OWN_PACKAGES:
        return False
    if module in ("__main__", "__mp_main__"):
        return True
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        spec = getattr(sys.modules.get(module), "__spec__", None)
        places = list(getattr(spec, "submodule_search_locations", None) or ())
        return not any(map(is_installed_file, places))
    return not is_installed_file(file)


def is_own_module(value: object) -> bool:
    """Whether a value is a module of the user's."""
    return isinstance(value, types.ModuleType) and is_users_own(value.__name__)


def package_of(module: str | None) -> tuple[str, str] | None:
    """Name and version of the installed package that a module belongs to; None for the standard library and our own."""
    top = (module or "").partition(".")[0]
    if not top or top in OWN_PACKAGES or top in sys.stdlib_module_names:
        return None
    return top, _version(top)


@functools.lru_cache(maxsize=256)
def _version(top: str) -> str:
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:  # it goes by another name
        pass
    version = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(version, str):
        return version
    names = importlib.metadata.packages_distributions().get(top, ())
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(set(names))) or "unknown"
