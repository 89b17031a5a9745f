"""torchvision, also where its compiled part does not load."""

import sys
from types import ModuleType

import pytest
import torch

_kept: list[torch.library.Library] = []


@pytest.fixture(scope="session")
def v2() -> ModuleType:
    """`torchvision.transforms.v2`.

    The wheels of the index are built for CUDA. With a torch for the CPU their operators are missing, and importing the
    package fails at the first of them that it describes, although transforms need none: so these are declared here.
    """
    import importlib.util

    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    try:
        from torchvision.transforms import v2
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
        from torchvision.transforms import v2
    return v2
