"""The language job gives the same with both libraries."""

from collections import Counter

import pytest

from benchmarks import language


def test_both_libraries_give_the_same(tmp_path):
    pytest.importorskip("datasets")
    lines = tmp_path / "lines.jsonl"
    language.make_whole_lines(lines, 0.1)
    ours, theirs = language.Ours(lines, tmp_path / "a", 2), language.Theirs(lines, tmp_path / "b", 2)
    for step in language.STEPS:
        ours.prepare(step)
        theirs.prepare(step)
    for step in ("read", "filter", "clean", "drop duplicates"):
        assert ours.made[step]["text"] == list(theirs.made[step]["text"]), step
    tokens = [row.tolist() for row in ours.made["tokenise"]["input_ids"]]
    assert tokens == list(theirs.made["tokenise"]["input_ids"])
    counts = ours.made["statistics"]
    assert Counter(dict(zip(counts["source"], counts["count"].tolist(), strict=True))) == theirs.made["statistics"]
