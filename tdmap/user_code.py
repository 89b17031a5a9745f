"""The user's own modules, told from those of installed packages, of the standard library and of this library."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig

OWN_PACKAGES = ("tdmap", "tensordict_lite")
"""The packages of this library. The format of a run's journal says how they work."""

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

    Its own modules are `__main__`, files outside the standard library and the installed packages (editable installs
    included), and modules that were made without a file.

    Example:
        >>> is_users_own("__main__"), is_users_own("torch"), is_users_own("json"), is_users_own("tdmap.ops.map")
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
