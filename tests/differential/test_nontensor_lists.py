"""Random lists as values, and random writes to non-tensor entries, against the reference."""

from hypothesis import given
from hypothesis import strategies as st

from tests.differential.harness import Case, compare_case
from tests.differential.harness.strategies import examples, indices

ATOMS = ("1", "2.5", "True", "'a'", "'b'", "None", "b'x'", "torch.ones(2)", "torch.zeros(3)", "np.ones(2)", "{'k': 1}")


@st.composite
def lists(draw: st.DrawFn, length: int, depth: int = 2) -> str:
    """The source of a list, ragged or not, of one kind of atoms or of several."""
    uniform = draw(st.booleans())
    atom = draw(st.sampled_from(ATOMS))
    inner = draw(st.integers(0, 3))
    parts = []
    for _ in range(length):
        if depth > 1 and draw(st.integers(0, 2)) == 0:
            parts.append(draw(lists(inner, depth - 1)))
        else:
            parts.append(atom if uniform else draw(st.sampled_from(ATOMS)))
    return f"[{', '.join(parts)}]"


def _agree(source: str, relaxation: str | None = None) -> None:
    lines = compare_case(Case("lists", source, relaxation))
    assert not lines, "\n".join([source, *lines])


@examples(200)
@given(st.data(), st.sampled_from(((), (2,), (2, 2))), st.integers(0, 3))
def test_lists_become_what_they_become_in_the_reference(
    data: st.DataObject, batch: tuple[int, ...], length: int
) -> None:
    source = data.draw(lists(length))
    _agree(f"x = TD({{}}, {list(batch)}); x['a'] = {source}; x", "any error")


@examples(120)
@given(st.data(), st.sampled_from(((3,), (2, 3))))
def test_rows_of_objects_are_written_as_in_the_reference(data: st.DataObject, batch: tuple[int, ...]) -> None:
    start = data.draw(st.sampled_from(("'a'", "NonTensorStack.from_list(rows)")))
    index = data.draw(indices(batch))
    rows = [["a", "b", "c"], ["d", "e", "a"]] if len(batch) == 2 else ["a", "b", "a"]
    value = data.draw(st.sampled_from(("'a'", "'z'")))
    _agree(
        f"rows = {rows}; x = TD({{'s': {start}, 't': torch.zeros({batch})}}, {list(batch)}); "
        f"size = x[{index}].batch_size; x[{index}] = TD({{'s': {value}, 't': torch.ones(size)}}, size); x",
        "any error",
    )


@examples(120)
@given(st.data(), st.sampled_from(((3,), (2, 3))))
def test_rows_of_objects_are_read_as_in_the_reference(data: st.DataObject, batch: tuple[int, ...]) -> None:
    rows = [["a", "b", "c"], ["d", "e", "a"]] if len(batch) == 2 else ["a", "b", "a"]
    index = data.draw(indices(batch))
    _agree(
        f"x = TD({{'s': NonTensorStack.from_list({rows})}}, {list(batch)}); y = x[{index}]; "
        "(y.batch_size, y['s'] if y.batch_size.numel() else None)",
        "any error",
    )
