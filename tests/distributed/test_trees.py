"""broadcast, all_gather, scatter and their kin: collections with their structure."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import MemoryMappedTensor, TensorDict
from tests.distributed.kinds import KINDS, make, same
from tests.distributed.ranks import Failure, Ranks

ALL = [*KINDS, "ragged", "locked", "expanded"]


def test_collections_of_every_kind_arrive_where_nothing_is_known(ranks: Ranks) -> None:
    def check(rank: int, kinds: list[str]) -> None:
        mine = lambda kind: make(kind, 1) if rank == 1 else TensorDict()  # noqa: E731
        for kind in kinds:
            wanted = make(kind, 1)
            same(mine(kind).broadcast(1), wanted)
            if rank == 1:
                wanted.init_remote(0)
                wanted.init_remote(use_broadcast=True)
            else:
                if rank == 0:
                    same(TensorDict.from_remote_init(1), wanted)
                same(TensorDict.from_remote_init(1, use_broadcast=True), wanted)
            for place, td in enumerate(make(kind, rank).all_gather()):
                same(td, make(kind, place))
            same(
                TensorDict().scatter(2, [make(kind, place) for place in range(3)] if rank == 2 else None),
                make(kind, rank),
            )

    ranks(check, ALL)


def test_structures_may_differ_between_ranks(ranks: Ranks) -> None:
    def check(rank: int) -> None:
        kinds = ["large", "objects", "no entries"]
        for place, td in enumerate(make(kinds[rank], rank).all_gather()):
            same(td, make(kinds[place], place))
        mine = TensorDict().scatter(0, [make(kind, 7) for kind in kinds] if rank == 0 else None)
        same(mine, make(kinds[rank], 7))

    ranks(check)


@pytest.mark.parametrize("kind", ["nested", "lazy", "objects", "tensorclass"])
def test_rows_are_stacked_on_one_rank(ranks: Ranks, kind: str) -> None:
    def check(rank: int, kind: str) -> None:
        if rank != 1:
            assert make(kind, rank).gather_and_stack(1) is None
            return
        room = torch.stack([make(kind, 9).clone() for _ in range(2)])
        assert room.gather_and_stack(1) is room
        same(room[0], make(kind, 0))
        same(room[1], make(kind, 2))

    ranks(check, kind)


def test_what_is_received_is_the_receivers_own(ranks: Ranks) -> None:
    def check(rank: int) -> None:
        td = make("nested", rank)
        gathered = td.all_gather()
        gathered[rank]["a"] += 100
        gathered[0]["n"].set_("b", gathered[0]["n", "b"] + 5)
        same(td, make("nested", rank))
        out = td.broadcast(0)
        assert (out is td) == (rank == 0)
        parts = TensorDict().scatter(0, [td, td, td] if rank == 0 else None)
        parts["a"] += 1
        same(td, make("nested", rank))

    ranks(check)


# -- as the reference has it ------------------------------------------------------------------------------------------


KNOWN = ("flat", "nested", "scalar", "lazy", "ragged", "zero rows", "no entries", "objects")


DEPARTURES = {
    "gather objects": "the reference stacks the objects of the last rank twice",
    "send objects": "the reference leaves objects out, so that the receiver keeps its own",
}


def every_call(rank: int, library: str) -> dict[str, Any]:
    """What each method gives for each kind, without its library."""
    td_class = importlib.import_module(library).TensorDict
    out: dict[str, Any] = {}
    for kind in KNOWN:
        mine = make(kind, rank, library)
        all_of_them = [make(kind, place, library) for place in range(3)]
        out[f"broadcast {kind}"] = plain(mine.clone().broadcast(2))
        out[f"all_gather {kind}"] = plain(mine.clone().all_gather())
        out[f"scatter {kind}"] = plain(td_class().scatter(1, all_of_them if rank == 1 else None))
        if rank == 0:
            mine.init_remote(1)
        elif rank == 1:
            out[f"remote {kind}"] = plain(td_class.from_remote_init(0))
        reduced = mine.clone()
        reduced.all_reduce()
        out[f"all_reduce {kind}"] = plain(reduced)
        received = mine.clone()
        if rank < 2:
            received.send(1) if rank == 0 else received.recv(0)
            out[f"send {kind}"] = plain(received)
        if "lazy" not in kind and kind != "ragged":
            room = torch.stack([mine, mine]).contiguous() if rank == 0 else mine
            out[f"gather {kind}"] = plain(room.gather_and_stack(0))
    return out


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(one) for one in value]
    if hasattr(value, "tensordicts"):
        return (type(value).__name__, value.stack_dim, [plain(one) for one in value.tensordicts])
    if hasattr(value, "batch_size"):
        entries = {key: plain(value[key]) for key in sorted(value.keys())}
        return (type(value).__name__, tuple(value.batch_size), entries)
    return (str(value.dtype), value.tolist()) if isinstance(value, torch.Tensor) else value


def test_results_are_those_of_the_reference(ranks: Ranks) -> None:
    ours, theirs = ranks(every_call, "tensordict_lite"), ranks(every_call, "tensordict")
    for rank in range(3):
        assert ours[rank].keys() == theirs[rank].keys()
        for name, wanted in theirs[rank].items():
            if name not in DEPARTURES:
                assert ours[rank][name] == wanted, (rank, name)


# -- memory-mapped content --------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = TensorDict({"big": torch.arange(400_000.0).view(1000, 400), "n": {"small": torch.arange(1000)}}, [1000])
    rows.memmap(tmp_path / "rows")
    return tmp_path / "rows"


def test_memory_mapped_content_travels_as_a_path(ranks: Ranks, folder: Path) -> None:
    def check(rank: int, folder: Path) -> list[int]:
        from tensordict_lite.distributed import trees

        sizes: list[int] = []
        packed = trees._packed
        trees._packed = lambda td, link, **options: note(sizes, packed(td, link, **options))
        try:
            for name in ("broadcast", "all_gather", "scatter", "remote"):
                opened(call(name, rank, TensorDict.load_memmap(folder)), folder, name)
        finally:
            trees._packed = packed
        return sizes

    def note(sizes: list[int], parcel: Any) -> Any:
        sizes.append(parcel.body.nbytes + sum(one.nbytes for one in parcel.direct))
        return parcel

    def call(name: str, rank: int, rows: Any) -> Any:
        if name == "broadcast":
            return rows.broadcast(0) if rank == 0 else TensorDict().broadcast(0)
        if name == "all_gather":
            return rows.all_gather()[(rank + 1) % 3]
        if name == "scatter":
            return TensorDict().scatter(1, [rows, rows, rows] if rank == 1 else None)
        if rank == 2:
            return rows
        return rows.init_remote(1) or rows if rank == 0 else TensorDict.from_remote_init(0)

    def opened(td: Any, folder: Path, name: str) -> None:
        for key in ("big", ("n", "small")):
            assert isinstance(td[key], MemoryMappedTensor), (name, key)
            assert str(td[key].filename).startswith(str(folder)), name
        assert td["big"][999, 399] == 399_999 and td["n", "small"][999] == 999

    for sizes in ranks(check, folder):
        assert sizes and max(sizes) < 20_000  # of 1.6 MB


def test_content_goes_along_where_a_rank_does_not_see_the_files(ranks: Ranks, folder: Path) -> None:
    def check(rank: int, folder: Path) -> None:
        from tensordict_lite.distributed import parcels

        seen = parcels._is_same_file
        if rank == 2:
            parcels._is_same_file = lambda facts: False
        try:
            rows = TensorDict.load_memmap(folder)
            results = [
                TensorDict().broadcast(0) if rank else rows.broadcast(0),
                rows.all_gather()[0],
                TensorDict().scatter(1, [rows, rows, rows] if rank == 1 else None),
            ]
            for td in results:
                assert torch.equal(td["big"], rows["big"]) and torch.equal(td["n", "small"], rows["n", "small"])
                if rank == 2:
                    assert not isinstance(td["big"], MemoryMappedTensor)
        finally:
            parcels._is_same_file = seen

    ranks(check, folder)


def test_a_file_that_is_another_here_is_not_taken(ranks: Ranks, tmp_path: Path) -> None:
    """Two machines may have files of one name, and local disks under one path."""

    def check(rank: int, base: Path) -> None:
        import os

        os.chdir(base / f"machine {rank}")
        path = Path("rows")  # one name, three folders
        TensorDict({"a": torch.full((10,), rank)}, [10]).memmap(path)
        td = TensorDict.load_memmap(path)
        for place, other in enumerate(td.all_gather()):
            assert (other["a"] == place).all()
        assert (td.broadcast(1)["a"] == 1).all()
        os.chdir(base)

    for rank in range(3):
        (tmp_path / f"machine {rank}").mkdir()
    ranks(check, tmp_path)


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["broadcast", "all_gather", "scatter", "gather_and_stack", "remote"])
@pytest.mark.parametrize("what", ["unpicklable", "meta"])
def test_what_cannot_be_sent_is_an_error_on_every_rank(ranks: Ranks, name: str, what: str) -> None:
    def check(rank: int, name: str, what: str) -> Any:
        td = make("nested", rank)
        if rank == 1 and what == "meta":
            td["n", "b"] = torch.zeros(3, device="meta")
        elif rank == 1:
            td["n"].set_non_tensor("f", (part for part in "generator"))
        if name == "scatter":
            return td.scatter(1, [make("flat", 0), td, td] if rank == 1 else None)
        if name == "remote":
            return td.init_remote(0) if rank == 1 else TensorDict.from_remote_init(1) if rank == 0 else None
        if name == "all_gather":
            return td.all_gather()
        return getattr(td, name)(1 if name == "broadcast" else 0)

    outcomes = ranks.outcomes(check, name, what)
    text = {"unpicklable": "('n', 'f')", "meta": "('n', 'b')"}[what]
    sender = outcomes[1]
    assert isinstance(sender, Failure) and sender.kind == "UnsendableError" and text in sender.message
    told = {"gather_and_stack": [0], "remote": [0], "scatter": [2]}.get(name, [0, 2])
    for rank in told:
        failure = outcomes[rank]
        assert isinstance(failure, Failure) and failure.kind == "CommunicationError", failure
        assert "rank 1 could not send" in failure.message and text in failure.message
    ranks(lambda rank: same(make("flat", rank).broadcast(2), make("flat", 2)))  # and the group is as good as before


def test_a_list_that_does_not_fit_the_ranks(ranks: Ranks) -> None:
    for given, text in ((None, "got none"), (2, "got 2")):
        outcomes = ranks.outcomes(
            lambda rank, given: TensorDict().scatter(0, None if given is None else [make("flat", 0)] * given), given
        )
        assert [outcome.kind for outcome in outcomes] == ["ValueError", "CommunicationError", "CommunicationError"]
        assert f"to each of 3 ranks, and {text}" in outcomes[0].message
        assert "rank 0 scatters a tensordict to each of 3 ranks, and got" in outcomes[1].message


def test_room_that_does_not_fit_the_ranks(ranks: Ranks) -> None:
    outcomes = ranks.outcomes(lambda rank: make("nested", rank).gather_and_stack(0))
    assert outcomes[0].kind == "RuntimeError" and "its first dimension must be 2" in outcomes[0].message
    assert outcomes[1:] == [None, None]
