"""What a notebook shows of a collection."""

import base64
import io
import re
from html.parser import HTMLParser

import pytest
import torch

from tensordict_lite import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    TensorDict,
    UnbatchedTensor,
    lazy_stack,
    set_printoptions,
    tensorclass,
)


@tensorclass
class Sample:
    obs: torch.Tensor
    note: str | None = None


class Page(HTMLParser):
    """The text of a page, whose tags must be closed in turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open, self.text, self.pictures = [], [], []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            self.pictures.append(dict(attributes)["src"])
        else:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] != "style":
            self.text.append(data)


def text_of(value) -> str:
    return "".join(Page(value._repr_html_()).text)


def pictures_of(value) -> list:
    image = pytest.importorskip("PIL.Image")
    sources = Page(value._repr_html_()).pictures
    return [image.open(io.BytesIO(base64.b64decode(s.removeprefix("data:image/png;base64,")))) for s in sources]


def test_a_tree_with_shapes_types_and_bytes():
    data = TensorDict({"a": torch.zeros(3, 4), "n": {"b": torch.ones(3, dtype=torch.int64)}}, [3], device="cpu")
    text = text_of(data)
    assert "TensorDict batch_size=[3], 2 entries, 72 B, cpu" in text
    assert "a: f32[4] · 48 B" in text and "b: i64[] · 24 B" in text


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (
            lambda: Sample(obs=torch.zeros(2, 3), note="hi", batch_size=[2]),
            ["Sample batch_size=[2]", "obs: f32[3]", "note: str 'hi'"],
        ),
        (lambda: TensorDict({"s": ["x", "y", "z", "w"]}, [4]), ["s: str ['x', 'y', 'z', ...]"]),
        (lambda: TensorDict({"s": NonTensorData("x", batch_size=[4])}, [4]), ["s: str 'x'"]),
        (lambda: TensorDict({"m": MetaData({"k": 1})}, [4]), ["m: dict {'k': 1}"]),
        (lambda: TensorDict({"u": UnbatchedTensor(torch.ones(7))}, [4]), ["u: f32[7] for the whole batch"]),
        (lambda: TensorDict({}, [2]), ["0 entries"]),
        (lambda: TensorDict({"x": torch.zeros(())}), ["batch_size=[]", "1 entry", "x: f32[] · 4 B"]),
        (lambda: LazyStackedTensorDict(stack_dim=0), ["LazyStackedTensorDict batch_size=[0]"]),
        (
            lambda: lazy_stack([TensorDict(a=torch.zeros(2)), TensorDict(a=torch.zeros(3), c=torch.ones(1))]),
            ["stack_dim=0", "a: f32[-1], other shapes in other rows", "only in member 1", "c: f32[1]"],
        ),
        (lambda: TensorDict({"a": torch.zeros(1 << 20)}), ["4.0 MiB"]),
        (lambda: TensorDict({"a": torch.empty(0)}), ["0 B"]),
    ],
)
def test_every_kind(make, wanted):
    text = text_of(make())
    assert all(part in text for part in wanted), text


def test_names_and_objects_are_no_markup():
    page = TensorDict({"<script>": torch.zeros(2), "o": NonTensorData("<b>&", batch_size=[2])}, [2])._repr_html_()
    assert "<script>" not in page and "<b>&" not in page and "&lt;script&gt;" in page


def test_an_object_that_cannot_say_what_it_is():
    class Broken:
        def __repr__(self):
            raise RuntimeError("no")

    assert "Broken" in text_of(TensorDict({"o": NonTensorData(Broken(), batch_size=[1])}, [1]))


def test_long_and_deep_trees_are_cut():
    wide = text_of(TensorDict({f"k{i}": torch.zeros(1) for i in range(1000)}, [1]))
    assert wide.count("f32") + int(re.search(r"and (\d+) more", wide)[1]) == 1000
    deep = TensorDict({"x": torch.zeros(1)}, [1])
    for _ in range(30):
        deep = TensorDict({"n": deep}, [1])
    assert text_of(deep).endswith("TensorDict ...")


def test_a_mapped_dataset_says_where_it_lies(tmp_path):
    data = TensorDict({"a": torch.zeros(3)}, [3]).memmap(tmp_path)
    assert f"mapped from {tmp_path}" in text_of(data) and f'title="{tmp_path}/a.memmap"' in data._repr_html_()


@pytest.mark.parametrize("shape", [(3, 32, 20), (32, 20, 3), (1, 32, 20), (32, 20, 1), (4, 32, 20)])
@pytest.mark.parametrize("batch", [(), (2,), (9,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
def test_pictures_are_drawn(shape, batch, dtype):
    values = torch.zeros(*batch, *shape) + torch.linspace(0, 1, 20).reshape(20, *[1] * (shape[-1] < 5))
    pixels = (values * 255).to(torch.uint8) if dtype is torch.uint8 else values.to(dtype)
    drawn = pictures_of(TensorDict({"p": pixels}, batch))
    assert len(drawn) == (min(batch[-1], 6) if batch else 1)
    assert all(picture.size == (20, 32) for picture in drawn)
    rows = drawn[0].convert("L").getpixel((0, 5)), drawn[0].convert("L").getpixel((19, 5))
    assert rows[0] == 0 and rows[1] == 255


@pytest.mark.parametrize(
    "pixels",
    [
        torch.full((2, 3, 16, 16), float("nan")),
        torch.full((2, 3, 16, 16), 7.0),
        torch.zeros(2, 3, 16, 16, dtype=torch.int64),
        torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
        torch.zeros(2, 5, 16, 16, dtype=torch.uint8),
        torch.zeros(0, 3, 16, 16, dtype=torch.uint8),
        torch.zeros(2, 3, 16, 16, dtype=torch.uint8, device="meta"),
    ],
    ids=["NaN", "beyond 1", "integers", "tiny", "channels", "no rows", "meta"],
)
def test_what_is_no_picture_is_not_drawn(pixels):
    assert not Page(TensorDict({"p": pixels}, pixels.shape[:1])._repr_html_()).pictures


def test_large_pictures_are_made_small():
    (picture,) = pictures_of(TensorDict({"p": torch.zeros(1, 3, 4000, 3000, dtype=torch.uint8)}, [1]))
    assert max(picture.size) <= 112


def test_the_option_turns_it_off():
    with set_printoptions(html=False):
        assert TensorDict({})._repr_html_() is None


def test_the_same_on_a_light_and_a_dark_page():
    """No colour of its own but a grey that shows on both."""
    page = TensorDict({"a": torch.zeros(2)}, [2])._repr_html_()
    assert set(re.findall(r"color: ?([^;}]+)", page)) == {"inherit"} and "background" not in page
