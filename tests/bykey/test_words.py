"""Keys as words: they compare as the keys do, and come back as they were."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tdmap.keys.codec import KeyCodec, KeyColumn
from tdmap.keys.order import group_starts, is_sorted, search, stable_order
from tdmap.keys.splits import Splits


def codec_of(*columns, descending=()):
    return KeyCodec(tuple(KeyColumn("k", c.dtype, tuple(c.shape[1:])) for c in columns), tuple(descending))


def test_bool_and_bytes():
    flags = torch.tensor([True, False, True])
    assert torch.equal(codec_of(flags).decode(codec_of(flags).encode([flags]))[0], flags)
    for width in (2, 7, 8, 9, 20):
        rows = torch.randint(0, 256, (200, width), dtype=torch.uint8)
        rows[:, : width - 1] = 3
        codec = codec_of(rows)
        order, _ = stable_order(codec.encode([rows]))
        assert order.tolist() == sorted(range(200), key=lambda row: bytes(rows[row].tolist()))
        assert torch.equal(codec.decode(codec.encode([rows]))[0], rows)


words_lists = st.lists(
    st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1), st.sampled_from([0, 2**63, 2**63 + 1, 2**64 - 1])),
    min_size=1,
    max_size=200,
)


@settings(max_examples=60, deadline=None)
@given(words_lists, st.integers(1, 3), st.randoms(use_true_random=False))
def test_the_order_is_stable_for_any_words(first, count, random):
    words = [np.array(first, dtype=np.uint64)]
    words += [np.array([random.choice(first) for _ in first], dtype=np.uint64) for _ in range(count - 1)]
    order, ordered = stable_order(words)
    keys = list(zip(*(word.tolist() for word in words), strict=True))
    assert order.tolist() == sorted(range(len(keys)), key=keys.__getitem__)
    assert is_sorted(ordered)
    assert list(zip(*(word.tolist() for word in ordered), strict=True)) == sorted(keys)
    assert len(group_starts(ordered)) == len(set(keys))


@pytest.mark.parametrize("bits", [28, 29, 30, 31, 60, 61, 62, 64])
def test_keys_that_just_fit_beside_a_row_number(bits):
    """Of eight rows, whose numbers take three bits."""
    keys = np.array([(1 << bits) - 1, 0, 1, (1 << bits) - 1, (1 << bits) - 2, 1 << bits - 1, 0, 5], dtype=np.uint64)
    order, (ordered,) = stable_order([keys])
    assert order.tolist() == sorted(range(8), key=keys.tolist().__getitem__)
    assert ordered.tolist() == sorted(keys.tolist())


@settings(max_examples=60, deadline=None)
@given(words_lists, words_lists, st.integers(1, 3))
def test_search_finds_what_bisect_finds(table, wanted, count):
    import bisect

    _, ordered = stable_order([np.array(table, dtype=np.uint64)] * count)
    needles = [np.array(wanted, dtype=np.uint64)] * count
    keys = sorted(table)
    assert search(ordered, needles).tolist() == [bisect.bisect_left(keys, w) for w in wanted]
    assert search(ordered, needles, right=True).tolist() == [bisect.bisect_right(keys, w) for w in wanted]


@settings(max_examples=60, deadline=None)
@given(words_lists, words_lists, st.integers(1, 40), st.integers(1, 2))
def test_partitions_are_ranges_of_keys(sample, keys, parts, count):
    splits = Splits.of_sample([np.array(sample, dtype=np.uint64)] * count, parts)
    assert 1 <= splits.count <= parts
    _, words = stable_order([np.array(keys, dtype=np.uint64)] * count)
    ids = splits.ids(words)
    assert ids.max() < splits.count
    assert (np.diff(ids.astype(np.int64)) >= 0).all()  # sorted keys give sorted partitions
    for key, number in zip(keys, splits.ids([np.array(keys, dtype=np.uint64)] * count).tolist(), strict=True):
        assert number == ids[words[0].tolist().index(key)]


@settings(max_examples=60, deadline=None)
@given(words_lists, st.integers(1, 5), st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.integers(1, 2))
def test_a_heavy_key_has_a_partition_of_its_own(keys, parts, alone, count):
    words = [np.array(keys, dtype=np.uint64)] * count
    splits = Splits.of_sample(words, parts, alone)
    ids = splits.ids(words)
    assert ids.max() < splits.count
    _, ordered = stable_order(words)
    assert (np.diff(splits.ids(ordered).astype(np.int64)) >= 0).all()
    for key in set(keys):
        if keys.count(key) > alone * len(keys):
            number = ids[keys.index(key)]
            assert {other for other, its in zip(keys, ids, strict=True) if its == number} == {key}
            beside = [np.array([max(key - 1, 0), min(key + 1, 2**64 - 1)], dtype=np.uint64)] * count
            if 0 < key < 2**64 - 1:
                assert number not in splits.ids(beside)


def test_partitions_are_even_when_keys_crowd_together():
    random = np.random.default_rng(0)
    crowd = random.integers(2**40, 2**40 + 10_000, 9_000).astype(np.uint64)
    words = [np.concatenate([crowd, np.array([0, 2**64 - 1], dtype=np.uint64)])]
    counts = np.bincount(Splits.of_sample(words, 16).ids(words))
    assert len(counts) == 16 and counts.max() < 2 * len(words[0]) / 16
