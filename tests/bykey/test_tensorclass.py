"""Tensorclasses: reducers, groups, sorts and joins read their fields."""

import pytest
import torch

import tdmap
from tdmap.reducers import Count, Sum
from tensordict_lite import TensorDict, tensorclass


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
