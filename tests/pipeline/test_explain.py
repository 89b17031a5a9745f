"""The plan for people."""

import xml.etree.ElementTree as ElementTree

import pytest
import torch

from tensordict_lite import TensorDict


def decode(td):
    return td.clone(False).set("image", td["image"].float())


def is_sharp(td):
    return td["label"] % 2 == 0


def augment(td):
    return td


@pytest.fixture
def pictures() -> TensorDict:
    image = torch.zeros(1, 3, 64, 64, dtype=torch.uint8).expand(5000, 3, 64, 64)
    return TensorDict({"image": image, "label": torch.arange(5000)}, [5000])


FUSED = """\
Pipeline(TensorDict [5000], seed=1).shuffle(seed=0).map(decode).filter(is_sharp).batch(256).map(augment)
rows     TensorDict, 5,000 rows of 12.0 KiB
           shuffle(seed=0)
           - row numbers only: nothing is moved
workers  one pass, 2 workers
           map(decode)
           filter(is_sharp)
           - 20 chunks of 256 rows, 3.0 MiB each
           - reads 58.6 MiB
here     in this process, in order
           batch(256)
           map(augment)
           - functions here run in one process: those of rows belong before .batch()
result   batches: known when it has run
         48.0 KiB a row
         memory about 78.1 MiB: 30.0 MiB in workers, 48.0 MiB ahead, 39.1 KiB of order"""


def test_the_text_tells_what_runs_where(pictures):
    pipeline = pictures.pipeline(seed=1).shuffle(0).map(decode).filter(is_sharp).batch(256).map(augment)
    assert str(pipeline.explain(num_workers=2, prefetch=4)) == FUSED


CACHED = """\
input 1
  rows     TensorDict, 5,000 rows of 12.0 KiB
input 2
  rows     TensorDict, 5,000 rows of 12.0 KiB
             map(decode) (in the workers)
rows     10,000 rows, one after the other
workers  one pass, 2 workers
           map(decode)
           - 589 chunks of 17 rows, 204.1 KiB each
           - reads 117.3 MiB
cache    cache {path}
           - not written yet: a pass of its own
rows     10,000 rows of the cache
           shuffle(seed=1)
           - row numbers only: nothing is moved
workers  one pass, 2 workers
           batch(8, drop_last)
           - 3 epochs
           - 1,250 chunks of 8 rows, 96.1 KiB each
           - reads 117.3 MiB an epoch
result   3,750 batches"""


def test_a_cache_is_a_pass_of_its_own(pictures, tmp_path):
    pipeline = pictures.pipeline().concat(pictures.pipeline().map(decode)).map(decode).cache(tmp_path / "c")
    text = str(pipeline.shuffle(1).batch(8, drop_last=True).repeat(3).explain(num_workers=2))
    assert text.partition("\n")[2] == CACHED.format(path=tmp_path / "c")


def test_functions_are_tried_on_one_row_only_when_asked(pictures):
    seen = []

    def noted(td):
        seen.append(len(td))
        return td

    pipeline = pictures.pipeline().map(noted)
    assert "a row" not in str(pipeline.explain(probe=False)).split("result")[1]
    assert seen == []
    assert "12.0 KiB a row" in str(pipeline.explain())
    assert seen == [1]


def test_the_picture_is_well_formed_and_shows_every_stage(pictures):
    left = pictures.pipeline().shuffle(0).map(decode).filter(is_sharp)
    right = (
        pictures.pipeline().filter(is_sharp).select("image").map(lambda td: TensorDict({"o": td["image"]}, td.shape))
    )
    pipeline = left.zip(right).shuffle(1, buffer=1000).batch(32)
    explanation = pipeline.explain()
    drawings = (pipeline.svg, pipeline._repr_svg_(), pipeline._repr_html_(), explanation.svg, explanation._repr_svg_())
    for svg in drawings:
        root = ElementTree.fromstring(svg)
        name = "{http://www.w3.org/2000/svg}"
        texts = [element.text for element in root.iter(f"{name}text")]
        for stage in ("shuffle(seed=0)", "map(decode)", "map(<lambda>)", "zip", "batch(32)"):
            assert stage in texts
        boxes = [
            {key: float(box.get(key)) for key in ("x", "y", "width", "height")} for box in root.iter(f"{name}rect")
        ]
        assert len(boxes) == 7
        width, height = float(root.get("width")), float(root.get("height"))
        for number, box in enumerate(boxes):
            assert 0 <= box["x"] and box["x"] + box["width"] <= width
            assert 0 <= box["y"] and box["y"] + box["height"] <= height
            for other in boxes[:number]:
                apart = box["x"] >= other["x"] + other["width"] or other["x"] >= box["x"] + box["width"]
                assert apart or box["y"] >= other["y"] + other["height"] or other["y"] >= box["y"] + box["height"]


def test_a_share_of_batches_says_what_this_rank_computes():
    data = TensorDict({"x": torch.zeros(1000, 4)}, [1000])
    batches = data.pipeline().map(torch.exp).batch(100)
    for rank, count in enumerate((4, 3, 3)):
        text = str(batches.shard(rank, 3).explain(num_workers=2))
        assert f"rank {rank} of 3" in text and f"compute {count} of the 10 batches" in text
        assert f"result   {count} batches" in text
        assert sum(1 for _ in batches.shard(rank, 3).iter(num_workers=0)) == count
    assert "of the 10 batches" not in str(batches.explain(num_workers=2))
