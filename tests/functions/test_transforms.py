"""torchvision's transforms give what they give when they are called by hand."""

import pytest
import torch

import tdmap
from tdmap.functions import OnKeys, OnPictures, as_function
from tensordict_lite import TensorDict


@pytest.fixture
def pictures() -> TensorDict:
    image = torch.randint(0, 256, (20, 3, 16, 16), dtype=torch.uint8)
    return TensorDict({"image": image, "mask": torch.zeros(20, 1, 16, 16), "label": torch.arange(20)}, [20])


@pytest.fixture
def transform(v2):
    return v2.Compose(
        [
            v2.RandomHorizontalFlip(1.0),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.2] * 3),
            v2.Resize(8),
        ]
    )


@pytest.fixture(scope="module")
def pool(v2):
    """Forks of this process, where torchvision can be imported by now."""
    with tdmap.WorkerPool(2, "fork") as forks:
        yield forks


@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
def test_a_transform_takes_the_picture_and_leaves_the_rest(pictures, transform, executor, pool):
    options = {"pool": pool} if executor == "process" else {"executor": executor, "num_workers": 2}
    result = tdmap.map(pictures, transform, chunksize=6, **options)
    assert torch.equal(result["image"], transform(pictures["image"]))
    assert torch.equal(result["label"], pictures["label"]) and result["mask"].shape == (20, 1, 16, 16)
    assert torch.equal(tdmap.map(pictures["image"], transform, **options), transform(pictures["image"]))


def test_row_by_row_and_iterated(pictures, transform, pool):
    rows = list(tdmap.map_iter(pictures, transform, pool=pool, chunksize=0))
    assert torch.allclose(torch.stack([row["image"] for row in rows]), transform(pictures["image"]), atol=1e-5)


def test_transforms_and_functionals_on_chosen_entries(pictures, v2, pool):
    result = tdmap.map(pictures, v2.Resize(4), in_keys="mask", pool=pool)
    assert result["mask"].shape == (20, 1, 4, 4) and result["image"].shape == (20, 3, 16, 16)
    flipped = tdmap.map(pictures, v2.functional.hflip, in_keys="image", pool=pool)
    assert torch.equal(flipped["image"], pictures["image"].flip(-1))


def test_random_transforms_follow_the_seed(pictures, v2, pool):
    noise = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.RandomCrop(12), v2.RandomErasing(1.0)])
    once = tdmap.map(pictures, noise, pool=pool, chunksize=0, seed=3)["image"]
    again = tdmap.map(pictures, noise, executor="serial", chunksize=0, seed=3)["image"]
    assert torch.equal(once, again) and once.shape == (20, 3, 12, 12)
    assert not torch.equal(once, tdmap.map(pictures, noise, pool=pool, chunksize=0, seed=4)["image"])


def test_what_counts_as_a_transform(v2):
    class Own(v2.Transform):
        def transform(self, inpt, params):
            return inpt + 1

    assert isinstance(as_function(Own()), OnPictures) and isinstance(as_function(v2.Resize(4)), OnPictures)
    assert isinstance(as_function(v2.Resize(4), "image"), OnKeys)
    chunk = TensorDict({"image": torch.zeros(2, 3, 4, 4), "n": torch.zeros(2)}, [2])
    assert bool((as_function(Own())(chunk)["image"] == 1).all()) and not chunk["image"].any()


def test_pictures_that_cannot_be_told_apart_are_an_error(v2):
    chunk = TensorDict({"left": torch.zeros(2, 3, 4, 4), "right": torch.zeros(2, 3, 4, 4)}, [2])
    with pytest.raises(ValueError, match="'left'.*'right'.*in_keys"):
        tdmap.map(chunk, v2.Resize(2), executor="serial")
