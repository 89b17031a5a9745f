"""The harness itself can tell two answers apart, and says where."""

import pytest
import torch

from tests.differential.cases import ALL_CASES
from tests.differential.harness import Case, Outcome, difference, evaluate, parse_cases
from tests.differential.harness.snapshot import differences, snapshot

tensordict = pytest.importorskip("tensordict")


def _tree(**kwargs: object) -> object:
    arguments = {"source": {"a": torch.ones(3, 2), "n": {"b": torch.zeros(3)}}, "batch_size": [3], **kwargs}
    return snapshot(tensordict.TensorDict(**arguments))


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (_tree(names=["t"]), "names"),
        (_tree(batch_size=[]), "batch_size"),
        (_tree(device="cpu"), "device"),
        (_tree(lock=True), "is_locked"),
        (_tree(source={"a": torch.ones(3, 2)}), "missing keys ['n']"),
        (_tree(source={"a": torch.ones(3, 2).double(), "n": {"b": torch.zeros(3)}}), "['a'].dtype"),
        (_tree(source={"a": torch.ones(3, 1), "n": {"b": torch.zeros(3)}}), "['a'].shape"),
        (_tree(source={"a": torch.ones(3, 2), "n": {"b": torch.ones(3)}}), "['n']['b']"),
        (_tree(source={"a": "text", "n": {"b": torch.zeros(3)}}), "['a']"),
        (snapshot(torch.ones(3)), "result"),
    ],
)
def test_every_kind_of_difference_is_named(other: object, named: str) -> None:
    lines = differences(_tree(), other)
    assert any(named in line for line in lines), lines


def test_nan_equals_nan_and_only_nan() -> None:
    nan, one = snapshot(torch.tensor([float("nan")])), snapshot(torch.tensor([1.0]))
    assert not differences(nan, snapshot(torch.tensor([float("nan")])))
    assert differences(nan, one)


def test_the_state_of_a_named_fixture_is_compared_after_the_case() -> None:
    changed = evaluate(Case("x", 'td["b"] = torch.ones(3)'), "tensordict")
    untouched = evaluate(Case("x", "td; None"), "tensordict")
    assert difference(untouched, changed)


def test_exceptions_compare_by_their_public_type() -> None:
    key_error = evaluate(Case("x", 'td["missing"]'), "tensordict")
    assert not difference(key_error, Outcome(error=KeyError("other words")))
    assert difference(key_error, Outcome(error=ValueError("other type")))
    assert difference(key_error, Outcome(value=1))
    assert not difference(key_error, Outcome(value=1), "may work")
    assert not difference(key_error, Outcome(error=ValueError()), "any error")
    private = evaluate(Case("x", 'td["a", "c"]'), "tensordict")
    assert not difference(private, Outcome(error=ValueError()))
    assert difference(private, Outcome(error=KeyError()))


def test_indented_lines_continue_a_row() -> None:
    assert parse_cases("x", "f(a,\n    b)\n\n# note\ng()  #! may work") == [
        Case("x", "f(a, b)"),
        Case("x", "g()", "may work"),
    ]
    with pytest.raises(ValueError, match="unknown relaxation"):
        parse_cases("x", "f()  #! maybe")


def test_the_reference_agrees_with_itself() -> None:
    for case in ALL_CASES[::25]:
        first, second = evaluate(case, "tensordict"), evaluate(case, "tensordict")
        assert not difference(first, second, case.relaxation), case.source
