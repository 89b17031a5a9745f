"""A user changes one import: the public names of the reference's ``nn`` are here, in the same modules."""

import importlib

import pytest

MODULES = [
    "nn", "nn.common", "nn.sequence", "nn.probabilistic", "nn.utils", "nn.params", "nn.ensemble", "nn.cudagraphs",
    "nn.tensorclass_module", "nn.distributions", "nn.distributions.continuous", "nn.distributions.discrete",
    "nn.distributions.composite", "nn.distributions.truncated_normal", "nn.distributions.utils",
]  # fmt: skip

DEPARTURES = {
    "device": "deprecated there, and wrong for modules on several devices",
    "is_functional": "deprecated there: it asks for classes of functorch that are gone",
    "det_part": "deprecated there: get_dist_params() runs those modules",
    "get_source": "deprecated there, and internal",
}


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_those_of_the_reference(module: str) -> None:
    theirs = importlib.import_module(f"tensordict.{module}")
    ours = importlib.import_module(f"tensordict_lite.{module}")
    public = set(getattr(theirs, "__all__", ()))
    assert public <= set(ours.__all__)
    for name in public:
        cls, wanted = getattr(ours, name), getattr(theirs, name)
        if isinstance(wanted, type) and wanted.__module__.startswith("tensordict.nn") and name != "TensorDictParams":
            missing = {attr for attr in dir(wanted) if not attr.startswith("_") and not hasattr(cls, attr)}
            assert missing <= set(DEPARTURES), f"{name} lacks {sorted(missing - set(DEPARTURES))}"


def test_utils_lack_what_the_page_says() -> None:
    theirs = importlib.import_module("tensordict.utils")
    ours = importlib.import_module("tensordict_lite.utils")
    assert set(theirs.__all__) - set(ours.__all__) <= {"timeit"}


def test_names_at_the_top_of_the_package() -> None:
    import tensordict_lite

    for name in ("TensorDictParams", "TensorClassModuleBase", "TensorClassModuleWrapper", "as_tensordict_module"):
        assert name in tensordict_lite.__all__
