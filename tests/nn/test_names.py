"""The public names of the reference are here, in the same modules, or the page says what to use instead."""

import importlib
from pathlib import Path

import pytest

MODULES = ["", "nn", "nn.common", "nn.sequence", "nn.utils", "nn.params", "nn.tensorclass_module", "utils"]
PAGE = (Path(__file__).parents[2] / "docs" / "coming-from-tensordict.md").read_text()

DEPARTURES = {
    "device": "deprecated there, and wrong for modules on several devices",
    "is_functional": "deprecated there: it asks for classes of functorch that are gone",
    "get_source": "deprecated there, and internal",
}


def module_of(package: str, module: str):
    return importlib.import_module(f"{package}.{module}" if module else package)


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_those_of_the_reference(module: str) -> None:
    theirs, ours = module_of("tensordict", module), module_of("tensordict_lite", module)
    public = set(getattr(theirs, "__all__", ())) - {"__version__"}
    places = {f"{place}." if place else "" for place in ("", module, module.partition(".")[0])}
    absent = {name for name in public - set(ours.__all__) if not any(f"`{top}{name}`" in PAGE for top in places)}
    assert not absent, f"no line on the page for {sorted(absent)}"
    for name in public & set(ours.__all__):
        cls, wanted = getattr(ours, name), getattr(theirs, name)
        if isinstance(wanted, type) and wanted.__module__.startswith("tensordict.nn") and name != "TensorDictParams":
            missing = {attr for attr in dir(wanted) if not attr.startswith("_") and not hasattr(cls, attr)}
            assert missing <= set(DEPARTURES), f"{name} lacks {sorted(missing - set(DEPARTURES))}"
