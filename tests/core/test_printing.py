"""``repr`` in its two forms, the options that choose between them, and the way back from text."""

from __future__ import annotations

import pytest
import torch

from tensordict_lite import (
    TensorDict,
    get_printoptions,
    lazy_stack,
    parse_tensor_dict_string,
    set_printoptions,
    tensorclass,
)


@pytest.fixture
def td() -> TensorDict:
    return TensorDict({"b": torch.zeros(3, 4), "a": {"c": torch.zeros(3, 1, dtype=torch.bfloat16)}}, [3], device="cpu")


def test_compact_form_is_sorted_and_leaves_the_batch_out(td):
    assert repr(td) == "TensorDict(batch_size=[3], device=cpu, fields={a: {c: bf16[1]}, b: f32[4]})"
    extra = TensorDict({"n": TensorDict({"q": torch.zeros(3, 4, dtype=torch.bool)}, [3, 4]), "s": "x"}, [3])
    assert repr(extra) == "TensorDict(batch_size=[3], fields={n: [4]{q: bool[]}, s: str})"
    assert repr(TensorDict(a=torch.zeros(2, device="meta"))) == "TensorDict(batch_size=[], fields={a: f32[2]@meta})"
    assert repr(TensorDict()) == "TensorDict(batch_size=[], fields={})"


def test_long_text_breaks_one_entry_a_line():
    td = TensorDict({"a" * 30: torch.zeros(3), "n": {"b" * 30: torch.zeros(3), "c" * 30: torch.zeros(3)}}, [3])
    assert repr(td).split("\n") == [
        "TensorDict(batch_size=[3], fields={",
        f"    {'a' * 30}: f32[],",
        "    n: {",
        f"        {'b' * 30}: f32[],",
        f"        {'c' * 30}: f32[]}}}})",
    ]
    exact = TensorDict({"a" * 25: torch.zeros(3), "b": torch.zeros(3)})
    assert len(repr(exact)) == 80 and "\n" in repr(TensorDict({"a" * 26: torch.zeros(3), "b": torch.zeros(3)}))


def test_lazy_stacks_show_ragged_and_exclusive_entries():
    stack = lazy_stack([TensorDict(a=torch.zeros(3), b=torch.zeros(3)), TensorDict(a=torch.zeros(2), c=torch.zeros(3))])
    text = " ".join(repr(stack).split())
    assert text == (
        "LazyStackedTensorDict(batch_size=[2], stack_dim=0, fields={ a: f32[-1]}, "
        "exclusive_fields={0: {b: f32[3]}, 1: {c: f32[3]}})"
    )


def test_tensorclasses_show_empty_fields():
    @tensorclass
    class Thing:
        x: torch.Tensor
        note: str | None = None

    thing = Thing(torch.zeros(3), batch_size=[3])
    assert repr(thing) == "Thing(batch_size=[3], fields={x: f32[], note: None})"
    assert repr(TensorDict({"t": thing}, [3])) == "TensorDict(batch_size=[3], fields={t: Thing{x: f32[], note: None}})"


def test_detailed_form(td):
    with set_printoptions(compact=False):
        assert repr(td) == (
            "TensorDict(\n"
            "    fields={\n"
            "        a: TensorDict(\n"
            "            fields={\n"
            "                c: Tensor(shape=torch.Size([3, 1]), device=cpu, dtype=torch.bfloat16, is_shared=False)},\n"
            "            batch_size=torch.Size([3]),\n"
            "            device=cpu,\n"
            "            is_shared=False),\n"
            "        b: Tensor(shape=torch.Size([3, 4]), device=cpu, dtype=torch.float32, is_shared=False)},\n"
            "    batch_size=torch.Size([3]),\n"
            "    device=cpu,\n"
            "    is_shared=False)"
        )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"show_grad": True}, "requires_grad=False"),
        ({"show_is_contiguous": True}, "is_contiguous=True"),
        ({"show_is_view": True}, "is_view=False"),
        ({"show_storage_size": True}, "storage_size=48"),
        ({"plain": True}, "mean=0, std=0"),
        ({"show_dtype": False}, "a: {c: [1]}, b: [4]"),
        ({"show_batch_size": False}, "TensorDict(device=cpu, fields="),
        ({"sort_keys": False}, "fields={b: f32[4], a: {c: bf16[1]}}"),
        ({"verbose": False, "compact": False}, "b: Tensor(shape=torch.Size([3, 4]))}"),
        ({"compact": True, "show_grad": True}, "fields={a: {c: bf16[1]}, b: f32[4]}"),
    ],
)
def test_print_options(td, options, expected):
    with set_printoptions(**options):
        assert expected in repr(td)


def test_print_options_nest_decorate_and_come_back(td):
    before = get_printoptions()
    with set_printoptions(compact=False), set_printoptions(show_device=False):
        assert not get_printoptions()["show_device"] and not get_printoptions()["compact"]

    @set_printoptions(compact=False)
    def text():
        return repr(td)

    assert text().startswith("TensorDict(\n") and get_printoptions() == before
    with pytest.raises(TypeError, match="typo"):
        set_printoptions(typo=True)


@pytest.mark.parametrize("compact", [True, False])
def test_printed_form_parses_back(compact):
    td = TensorDict(
        {
            "obs": torch.zeros(3, 4),
            "next": TensorDict({"done": torch.zeros(3, 2, 1, dtype=torch.bool)}, [3, 2]),
            "meta": torch.zeros(3, dtype=torch.complex64, device="meta"),
            "e": {},
            "k" * 70: torch.zeros(3),
        },
        [3],
    )
    with set_printoptions(compact=compact):
        text = repr(td)
        again = parse_tensor_dict_string(text)
        assert repr(again) == text
    with pytest.raises(ValueError, match="cannot parse"):
        parse_tensor_dict_string("TensorDict(batch_size=[], fields={s: str})")


def test_stacks_of_ragged_stacks_are_printed() -> None:
    rows = [TensorDict({"a": torch.ones(2, i)}, [2]) for i in (1, 2)]
    ragged = lazy_stack(rows)
    assert "a: f32[-1]" in repr(lazy_stack([ragged, ragged.clone()]))
    assert "0: {a: f32[-1]}" in repr(lazy_stack([ragged, ragged.exclude("a")]))
