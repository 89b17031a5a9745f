"""Keys as words: they compare as the keys do, and come back as they were."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tdmap.keys.codec import KeyCodec, KeyColumn
from tdmap.keys.order import group_starts, is_sorted, search, stable_order
from tdmap.keys.splits import Splits

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def codec_of(*columns, descending=()):
    return KeyCodec(tuple(KeyColumn("k", c.dtype, tuple(c.shape[1:])) for c in columns), tuple(descending))


def extremes(dtype):
    info = np.iinfo(str(dtype).removeprefix("torch."))
    return torch.from_numpy(np.array([info.min, info.max, 0, 1, info.max - 1, info.min + 1], dtype=info.dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_keep_their_order_and_come_back(dtype):
    values = extremes(dtype)
    codec = codec_of(values)
    words = codec.encode([values])
    assert np.argsort(words[0], kind="stable").tolist() == np.argsort(values.numpy(), kind="stable").tolist()
    assert torch.equal(codec.decode(words)[0], values)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_keep_their_order_and_come_back(dtype):
    tiny = torch.finfo(dtype).tiny
    values = torch.tensor([0.0, -0.0, 1.5, -1.5, tiny, -tiny, math.inf, -math.inf, math.nan, 3.0], dtype=dtype)
    codec = codec_of(values)
    words = codec.encode([values])
    expected = torch.sort(values.double(), stable=True).indices
    order, _ = stable_order(words)
    assert order.tolist() == expected.tolist()
    back = codec.decode(words)[0]
    assert back.dtype is dtype
    assert torch.equal(back.nan_to_num(7.0), values.nan_to_num(7.0))
    assert not back.signbit()[1]  # -0.0 is 0.0


def test_the_sign_and_the_bits_of_nan_do_not_matter():
    bits = torch.tensor([0x7FF8000000000001, -1, 0x7FF0000000000000], dtype=torch.int64)
    words = codec_of(bits.double()).encode([bits.view(torch.float64)])[0]
    assert words[0] == words[1] > words[2]


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


@pytest.mark.parametrize("shape", [(), (1,)])
def test_the_shape_of_a_row_comes_back(shape):
    values = torch.arange(4, dtype=torch.int32).reshape(4, *shape)
    assert codec_of(values).decode(codec_of(values).encode([values]))[0].shape == values.shape


def test_composite_keys_share_words_while_their_bits_fit():
    a, b = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.uint8)
    assert codec_of(a, b, b).num_words == 1
    assert codec_of(a, a, b).num_words == 2
    assert codec_of(a.long(), b).num_words == 2


@pytest.mark.parametrize("descending", [(False, False, False), (True, False, True)])
def test_composite_keys_compare_column_by_column(descending):
    columns = [torch.randint(-2, 3, (300,)), torch.randn(300).round(), torch.randint(0, 3, (300, 3)).byte()]
    codec = codec_of(*columns, descending=descending)
    words = codec.encode(columns)

    def key(row):
        values = [int(columns[0][row]), float(columns[1][row]), int.from_bytes(bytes(columns[2][row].tolist()), "big")]
        return [-value if down else value for value, down in zip(values, descending, strict=True)]

    order, _ = stable_order(words)
    assert order.tolist() == sorted(range(300), key=key)
    for column, back in zip(columns, codec.decode(words), strict=True):
        assert torch.equal(back, column + 0 if column.is_floating_point() else column)


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
