"""Tensorclasses: reducers, groups, sorts and joins read their fields."""

import pytest
import torch

import tdmap
from tdmap.reducers import Count, Sum, Unique
from tensordict_lite import TensorDict, lazy_stack, tensorclass


@tensorclass
class Shot:
    x: torch.Tensor
    camera: str = "unknown"

    def twice(self):
        return self.x * 2


@pytest.fixture
def shots():
    return Shot(torch.arange(6.0), camera=list("cabcab"), batch_size=[6])


def test_groups_by_a_field_of_strings(shots):
    groups = tdmap.group_by(shots, "camera")
    answer = groups.reduce({"n": Count(), "sum": Sum("x")}, num_workers=0)
    assert answer["camera"] == ["a", "b", "c"]
    assert answer["sum"].tolist() == [5.0, 7.0, 3.0]
    mapped = groups.map_groups(lambda rows: TensorDict({"t": rows.twice().sum()}, []), num_workers=0)
    assert mapped["t"].tolist() == [10.0, 14.0, 6.0]
    same = groups.map_groups(lambda rows: rows, num_workers=0)
    assert type(same) is Shot and same.camera == list("aabbcc") and same.x.tolist() == [1, 4, 2, 5, 0, 3]


def test_sorts_stay_of_their_class(shots):
    by_name = tdmap.sort(shots, "camera", num_workers=0)
    assert type(by_name) is Shot and by_name.x.tolist() == [1, 4, 2, 5, 0, 3]
    assert tdmap.sort(shots, "x", descending=True, num_workers=0).camera == list("bacbac")


def test_joins_give_the_fields_of_both_sides(shots):
    where = TensorDict({"camera": ["b", "a"], "room": torch.tensor([2, 1])}, [2])
    both = tdmap.join(shots, where, "camera", num_workers=0)
    assert both["x"].tolist() == [1, 2, 4, 5] and both["room"].tolist() == [1, 2, 1, 2]
    assert tdmap.join(where, shots, "camera", num_workers=0)["x"].tolist() == [2, 5, 1, 4]


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_rows_chosen_by_a_join_stay_of_their_class(shots, how, tmp_path):
    where = TensorDict({"camera": ["b", "a"]}, [2])
    for out in (None, tmp_path / "out"):
        found = tdmap.join(shots, where, "camera", how, out=out, num_workers=0)
        assert type(found) is Shot and found.x.tolist() == ([1, 2, 4, 5] if how == "semi" else [0, 3])


CLASSES = {
    "a string a row": lambda: Shot(torch.arange(6.0), camera=list("aaabbb"), batch_size=[6]),
    "one string": lambda: Shot(torch.arange(6.0), camera="a", batch_size=[6]),
    "a lazy stack": lambda: lazy_stack([Shot(torch.tensor(float(n)), camera="aaabbb"[n]) for n in range(6)]),
    "a lazy stack of one string": lambda: lazy_stack([Shot(torch.tensor(float(n)), camera="a") for n in range(6)]),
}


@pytest.fixture(params=CLASSES)
def frames(request):
    return CLASSES[request.param]()


OPERATIONS = {
    "sort": lambda data: tdmap.sort(data, "camera", descending=True, num_workers=0),
    "sort by a number": lambda data: tdmap.sort(data, "x", descending=True, num_workers=0),
    "shuffle": lambda data: tdmap.shuffle(data, 0, num_workers=0),
    "filter": lambda data: tdmap.filter(data, lambda rows: rows.x > 1, num_workers=0),
    "filter by an expression": lambda data: tdmap.filter(data, tdmap.col("camera") == "a", num_workers=0),
    "top_k": lambda data: tdmap.top_k(data, "camera", 2, num_workers=0),
    "drop_duplicates": lambda data: tdmap.drop_duplicates(data, "camera", num_workers=0),
    "sample": lambda data: tdmap.sample(data, 3, weights="x", seed=0, num_workers=0),
    "train_test_split": lambda data: tdmap.train_test_split(data, 2, seed=0, stratify="camera", num_workers=0)[0],
    "map_groups": lambda data: tdmap.group_by(data, "camera").map_groups(lambda rows: rows[:2], num_workers=0),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_one_string_for_all_rows_and_lazy_stacks_are_strings_of_rows(frames, name):
    found = OPERATIONS[name](frames)
    camera = frames.camera if isinstance(frames.camera, list) else [frames.camera] * 6
    wanted = OPERATIONS[name](Shot(frames.x, camera=camera, batch_size=[6]))
    assert isinstance(found, Shot) and found.x.tolist() == wanted.x.tolist()
    assert (found.camera if isinstance(found.camera, list) else [found.camera] * len(found)) == wanted.camera


def test_one_string_for_all_rows_and_lazy_stacks_are_keys(frames):
    cameras = frames.camera if isinstance(frames.camera, list) else [frames.camera] * 6
    known = sorted(set(cameras))
    counts = [cameras.count(camera) for camera in known]
    answer = tdmap.group_by(frames, "camera").reduce({"n": Count()}, num_workers=0)
    assert answer["camera"] == known and answer["n"].tolist() == counts
    assert tdmap.unique(frames, "camera", num_workers=0)["camera"] == known
    assert tdmap.value_counts(frames, "camera", num_workers=0)["count"].tolist() == counts
    assert tdmap.reduce(frames, {"seen": Unique("camera")}, num_workers=0)["seen"] == known
    where = TensorDict({"camera": ["b", "a"], "room": torch.tensor([2, 1])}, [2])
    assert tdmap.join(frames, where, "camera", num_workers=0)["room"].tolist() == [1 + (c == "b") for c in cameras]
