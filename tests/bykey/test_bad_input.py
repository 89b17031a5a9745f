"""Wrong arguments: what was asked, what was found, what to do."""

import pytest
import torch

import tdmap
from tdmap.reducers import Count, Sum
from tensordict_lite import TensorDict


@pytest.fixture
def data():
    return TensorDict(
        {
            "k": torch.tensor([3, 1, 3]),
            "f": torch.tensor([1.0, torch.nan, torch.nan]),
            "wide": torch.zeros(3, 2),
            "z": torch.zeros(3, dtype=torch.complex64),
            "m": {"id": torch.arange(3)},
        },
        [3],
    )


def operations(key):
    return [
        lambda data: tdmap.group_by(data, key).reduce({"n": Count()}, num_workers=0),
        lambda data: tdmap.group_by(data, key).map_groups(lambda rows: rows, num_workers=0),
        lambda data: tdmap.sort(data, key, num_workers=0),
        lambda data: tdmap.join(data, data, key, num_workers=0),
    ]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("nothing", KeyError, r"key of \w+ is 'nothing'.*Entries: \('m', 'id'\), 'f', 'k', 'wide', 'z'"),
        (("k", "f"), KeyError, r"pass the list \['k', 'f'\]"),
        ("wide", ValueError, r"'wide'.*rows of shape \[2\].*one value a row"),
        ("z", TypeError, r"'z'.*complex64.*cannot be a key"),
        ("m", (TypeError, KeyError), r"'m'"),
        ([], ValueError, "at least one key"),
        (["k", "k"], ValueError, "each key once"),
        (7, TypeError, "got 7"),
        ([lambda rows: 1], TypeError, "a list of entries"),
    ],
    ids=["missing", "tuple", "wide", "complex", "nested", "none", "twice", "number", "functions"],
)
def test_keys(data, number, key, error, message):
    with pytest.raises(error, match=message):
        operations(key)[number](data)


def test_nan_is_named_with_its_rows(data):
    for call in operations("f")[:2]:
        with pytest.raises(ValueError, match=r"NaN or None in rows 1, 2\. Pass dropna=True.*dropna=False"):
            call(data)
    many = TensorDict({"f": torch.full((50_000,), torch.nan)}, [50_000])
    with pytest.raises(ValueError, match=r"NaN or None in rows \d+, \d+, \d+, \.\.\."):
        tdmap.group_by(many, "f").reduce(Count(), num_workers=2)
    with pytest.raises(ValueError, match="dropna must be"):
        tdmap.group_by(data, "f", dropna="yes")


@pytest.mark.parametrize(
    ("reducers", "error", "message"),
    [
        ({}, ValueError, "at least one reducer"),
        ({"n": lambda a, b: a + b}, TypeError, r"'n' is a function.*map_groups"),
        ({"n": Count}, TypeError, "pass an instance"),
        ({"s": Sum("w")}, KeyError, r"entry of the reducer 's' is 'w'.*Entries:"),
        ({"k": Count()}, ValueError, r"'k' has the name of a key"),
        ({3: Count()}, TypeError, "names of reducers are strings"),
        ({"s": Sum("f", dim=4)}, IndexError, "dim=4 is out of range"),
    ],
)
def test_reducers(data, reducers, error, message):
    with pytest.raises(error, match=message):
        tdmap.group_by(data, "k").reduce(reducers, num_workers=0)


@pytest.mark.parametrize(
    ("fn", "error", "message"),
    [
        (lambda rows: rows["k"][:1], ValueError, "returned 1 values for 3 rows"),
        (lambda rows: None, TypeError, "one number or string for each row.*got NoneType"),
        (lambda rows: rows["wide"], ValueError, r"result of the key function has rows of shape \[2\]"),
        (lambda rows: [("a",)] * len(rows), TypeError, "one number or string"),
    ],
)
def test_key_functions(data, fn, error, message):
    def key(rows):
        return fn(rows) if len(rows) == 3 or error is not ValueError else rows["k"]

    with pytest.raises(error, match=message):
        tdmap.group_by(data, key if "shape" not in message else fn).reduce(Count(), num_workers=0)


def test_a_key_function_whose_dtype_changes():
    def fickle(rows):
        return rows["k"].float() if 900 in rows["k"] and len(rows) == 100 else rows["k"]

    data = TensorDict({"k": torch.arange(10_000)}, [10_000])
    with pytest.raises(ValueError, match=r"float32 \[\] a row from row 900 on, and torch.int64"):
        tdmap.group_by(data, fickle).reduce(Count(), num_workers=2, chunksize=100)


def test_data_without_rows():
    for call in operations("k"):
        with pytest.raises(TypeError, match="rows in dimension 0"):
            call(TensorDict({"k": torch.tensor(1)}, []))
        with pytest.raises(TypeError, match="got a dict"):
            call({"k": [1]})
        with pytest.raises(TypeError, match="tensor"):
            call(torch.arange(3))


def test_options(data):
    with pytest.raises(TypeError, match="no option 'workers'"):
        tdmap.sort(data, "k", workers=2)
    with pytest.raises(ValueError, match="chunksize"):
        tdmap.sort(data, "k", chunksize=0, num_workers=0)
    with pytest.raises(ValueError, match="chunksize"):
        tdmap.join(data, data, "k", chunksize=0, num_workers=0)
    with pytest.raises(ValueError, match="retries"):
        tdmap.group_by(data, "k").reduce(Count(), retries=-1)
    with pytest.raises(ValueError, match="list of 2 bools"):
        tdmap.sort(data, ["k", "f"], descending=[True], num_workers=0)
    with pytest.raises(ValueError, match="how must be one of 'inner', 'left'"):
        tdmap.join(data, data, "k", "full")
    with pytest.raises(TypeError, match="map the function first"):
        tdmap.join(data, data, lambda rows: rows["k"])
    with pytest.raises(TypeError, match="must be a function, a module or a transform"):
        tdmap.group_by(data, "k").map_groups(None)


def test_keys_of_a_join_must_be_of_one_kind(data):
    other = TensorDict({"k": torch.tensor([1], dtype=torch.float32), "s": ["a"]}, [1])
    with pytest.raises(
        TypeError, match=r"'k' of the first dataset is int64 \[\], and 'k' of the second one is float32"
    ):
        tdmap.join(data, other, "k", num_workers=0)
    with pytest.raises(TypeError, match=r"int64 \[\].*strings"):
        tdmap.join(data, other, {"k": "s"}, num_workers=0)


def test_a_key_that_is_not_there_is_an_error_before_anything_is_asked_for(data):
    with pytest.raises(KeyError, match="key of group_by is 'nothing'"):
        tdmap.group_by(data, "nothing")


@pytest.mark.parametrize("call", [
    lambda data: tdmap.sort(data, "name", num_workers=0),
    lambda data: tdmap.group_by(data, "name", dropna=True).agg({"x": "sum"}, num_workers=0),
    lambda data: tdmap.unique(data, "name", num_workers=0),
    lambda data: tdmap.join(data, data, on="name", num_workers=0),
])  # fmt: skip
def test_a_key_of_bytes_with_none_says_what_to_do(call):
    data = TensorDict({"name": [b"b", None, b"a"], "x": torch.arange(3.0)}, [3])
    with pytest.raises(TypeError, match=r"'name'.*found bytes beside None: have b'' stand for None.*filter those rows"):
        call(data)
