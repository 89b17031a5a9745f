"""send, recv and reduce: values between ranks that hold the same structure."""

import asyncio
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.distributed.kinds import KINDS, make, same
from tests.distributed.ranks import Failure, Ranks

IN_PLACE = [*KINDS, "ragged", "locked"]


def test_values_of_every_kind_arrive_in_place(ranks: Ranks) -> None:
    def check(rank: int, kinds: list[str]) -> None:
        for tag, kind in enumerate(kinds):
            mine, wanted = make(kind, rank), make(kind, 0)
            options = {"init_tag": 1000 * tag, "pseudo_rand": tag % 2 == 1}
            if rank == 0:
                mine.send(1, **options)
                same(mine, wanted)
            elif rank == 1:
                leaves = [] if "lazy" in kind or kind == "ragged" else list(mine.values(True, True))
                mine.recv(0, **options)
                same(mine, wanted)
                now = mine.values(True, True) if leaves else ()
                assert all(a is b for a, b in zip(leaves, now, strict=True) if isinstance(a, torch.Tensor))
            else:
                same(mine, make(kind, 2))

    ranks(check, IN_PLACE)


@pytest.mark.parametrize("way", ["isend", "early", "async"])
def test_messages_on_their_way(ranks: Ranks, way: str) -> None:
    def check(rank: int, way: str) -> None:
        for kind in ("nested", "lazy", "objects", "large", "dtypes"):
            mine, wanted = make(kind, rank), make(kind, 2)
            if rank == 2:
                if way == "isend":
                    assert isinstance(mine.isend(0), int)
                elif way == "early":
                    for work in mine.isend(0, return_early=True):
                        work.wait()
                else:
                    asyncio.run(mine.asend(0))
            elif rank == 0:
                if way == "isend":
                    assert mine.irecv(2) is None
                elif way == "early":
                    works = mine.irecv(2, return_premature=True)
                    assert all(work.wait() for work in works) and all(work.is_completed() for work in works)
                else:
                    assert asyncio.run(mine.arecv(2)) is mine
                same(mine, wanted)

    ranks(check, way)


def test_transfers_at_the_same_time(ranks: Ranks) -> None:
    """Each pair in both directions at once, and two of one pair in another order than they were sent."""

    async def exchange(rank: int) -> None:
        others = [place for place in range(3) if place != rank]
        inbox = {other: make("nested", -1) for other in others}
        sends = [make("nested", rank * 10 + other).asend(other, init_tag=100 * rank) for other in others]
        await asyncio.gather(*sends, *(inbox[other].arecv(other, init_tag=100 * other) for other in others))
        for other in others:
            same(inbox[other], make("nested", other * 10 + rank))

    def check(rank: int) -> None:
        asyncio.run(exchange(rank))
        first, second = make("flat", 5), make("flat", 6)
        if rank == 0:
            works = [*first.isend(1, return_early=True), *second.isend(1, init_tag=50, return_early=True)]
            for work in works:
                work.wait()
        elif rank == 1:
            a, b = make("flat", 0), make("flat", 0)
            b.recv(0, init_tag=50)
            a.recv(0)
            same(a, first)
            same(b, second)

    ranks(check)


def test_small_tensors_of_one_dtype_share_a_message(ranks: Ranks) -> None:
    def check(rank: int) -> int | None:
        from tensordict_lite import TensorDict
        from tensordict_lite.distributed.link import Link

        entries = {
            f"{key}{dtype}": torch.full((4,), rank, dtype=dtype)
            for key in range(50)
            for dtype in (torch.int64, torch.float32)
        }
        td = TensorDict(entries, [4])
        if rank == 0:
            sent, isend = [], Link.isend
            Link.isend = lambda self, tensor, to, tag: (sent.append(tag), isend(self, tensor, to, tag))[1]
            td.send(1)
            Link.isend = isend
            return len(sent)
        if rank == 1:
            assert td.recv(0) == 99  # a tag for each tensor, used or not
            assert all((value == 0).all() for value in td.values())
        return None

    assert ranks(check)[0] == 2


def test_groups(ranks: Ranks) -> None:
    def check(rank: int) -> None:
        group = dist.new_group([0, 2])
        td = make("nested", rank)
        if rank == 1:
            try:
                td.all_reduce(group=group)
            except (RuntimeError, ValueError):
                return
            raise AssertionError("rank 1 is not in the group")
        if rank == 0:
            td.send(group_dst=1, group=group)
            td.send(2, group=group)
        else:
            td.recv(group_src=0, group=group)
            same(td, make("nested", 0))
            td.recv(0, group=group)
        td = make("nested", rank)
        td.all_reduce(group=group)
        same(td, make("nested", 2))
        assert [one["a"][0] for one in make("nested", rank).all_gather(group=group)] == [0, 2]
        same(make("nested", rank).broadcast(2, group=group), make("nested", 2))

    ranks(check)


def test_a_group_that_is_not_registered(ranks: Ranks, tmp_path: Any) -> None:
    def check(rank: int, path: str) -> None:
        group = dist.ProcessGroupGloo(dist.FileStore(path, 3), rank, 3)
        td = make("objects", rank)
        if rank == 0:
            td.send(group_dst=2, group=group)
        elif rank == 2:
            td.recv(group_src=0, group=group)
            same(td, make("objects", 0))
        dist.barrier()  # a rank that drops its group closes connections that others are still making

    ranks(check, str(tmp_path / "store"))


# -- reductions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["tensordict_lite", "tensordict"])
def test_reductions_are_those_of_each_tensor(ranks: Ranks, library: str) -> None:
    """Of the reference as well."""

    def check(rank: int, library: str) -> None:
        wanted = {"SUM": 1 + 2 + 3, "MAX": 3, "MIN": 1, "PRODUCT": 6}
        for name, value in wanted.items():
            op = getattr(dist.ReduceOp, name)
            for kind in ("nested", "lazy", "zero rows"):
                td = make(kind, rank + 1, library)
                td.all_reduce(op=op)
                full = make(kind, rank + 1, library).apply(lambda x, value=value: torch.full_like(x, value))
                same_values(td, full, kind)
                td = make(kind, rank + 1, library)
                td.reduce(1, op=op)
                if rank == 1:
                    same_values(td, full, kind)

    def same_values(td: Any, full: Any, kind: str) -> None:
        if kind == "lazy":  # its first member is all zeros
            assert not td["a"][:, 0].any() and torch.equal(td["a"][:, 1], full["a"][:, 1])
        else:
            same(td, full)

    ranks(check, library)


def test_reductions_of_every_kind_and_size_of_message(ranks: Ranks) -> None:
    def check(rank: int) -> None:
        for kind in IN_PLACE:
            if kind == "dtypes":
                continue  # gloo has no sums of some
            for options in ({}, {"bucket_bytes": 0}, {"bucket_bytes": 1 << 20}, {"async_op": True}):
                td = make(kind, 1)
                works = td.all_reduce(**options)
                for work in works or ():
                    work.wait()
                for key, value in make(kind, 1).items(True, True) if not hasattr(td, "tensordicts") else ():
                    if isinstance(value, torch.Tensor):
                        assert torch.equal(td[key], value * 3), (kind, key)
            td = make(kind, 1)
            works = td.reduce(2, async_op=True, return_premature=True)
            for work in works:
                work.wait()
        stack = make("ragged", 2)
        stack.all_reduce()
        assert [member["a"].tolist() for member in stack.tensordicts] == [[6], [6, 6]]

    ranks(check)


# -- bad input -------------------------------------------------------------------------------------------------------


def test_structures_are_compared_first(ranks: Ranks) -> None:
    def check(rank: int, what: str) -> Any:

        td = make("nested", rank)
        if rank == 1:
            td = {
                "send": lambda: td.set("extra", torch.zeros(3)),
                "isend": lambda: td.exclude(("n", "b")),
                "reduce": lambda: td.set("a", torch.zeros(3, 2)),
                "gather_and_stack": lambda: td.set("a", torch.zeros(3, dtype=torch.int8)),
                "all_reduce": lambda: td.set("extra", torch.zeros(3)),
            }[what]()
        if what in ("send", "isend") and rank < 2:
            return getattr(td, what if rank == 0 else what.replace("send", "recv"))(1 - rank, check=True)
        if what in ("reduce", "gather_and_stack"):
            if what == "gather_and_stack" and rank == 0:
                td = td.expand(2, 3).clone()
            return getattr(td, what)(0, check=True)
        if what == "all_reduce":
            td.all_reduce(check=True)
        return None

    wanted = {
        "send": "'extra' is on the receiver only",
        "isend": r"('n', 'b') is on the sender only",
        "reduce": "'a' is float32[3] on rank 0 and float32[3, 2] on rank 1",
        "gather_and_stack": "'a' is float32[3] on rank 0 and int8[3] on rank 1",
        "all_reduce": "'extra' is on rank 1 only",
    }
    for what, message in wanted.items():
        outcomes = ranks.outcomes(check, what)
        for rank, outcome in enumerate(outcomes):
            if rank < 2 or "send" not in what:
                assert isinstance(outcome, Failure) and outcome.kind == "ValueError", (what, rank, outcome)
                assert message in outcome.message


def test_ranks_that_agree_go_on(ranks: Ranks) -> None:
    def check(rank: int) -> None:
        td = make("objects", rank)
        if rank < 2:
            td.send(1, check=True) if rank == 0 else td.recv(0, check=True)
            same(td, make("objects", 0))
        td = make("nested", 1)
        td.all_reduce(check=True)
        same(td, make("nested", 3))

    ranks(check)


def test_bad_arguments_say_so(ranks: Ranks) -> None:
    def check(rank: int) -> list[str]:
        td = make("flat", rank)
        calls = [
            lambda: td.send(), lambda: td.recv(0, group_src=0), lambda: td.send(7), lambda: td.reduce(-1),
            lambda: td.send(group_dst=1), lambda: td.to("meta").all_reduce(), lambda: td.init_remote(),
            lambda: td.send(group_dst=9, group=dist.group.WORLD), lambda: make("expanded", 0).recv(1),
        ]  # fmt: skip
        return [message(call) for call in calls]

    def message(call: Any) -> str:
        try:
            call()
        except (ValueError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    found = ranks(check)[0]
    wanted = [
        "Exactly one of `dst` and `group_dst`", "Exactly one of `src` and `group_src`", "no rank 7 in a group of 3",
        "no rank -1", "`group_dst` requires `group`", "on the meta device: it has no values", "needs dst=",
        "group_dst=9 is not a rank of a group of 3", "the entry ('a',) is expanded",
    ]  # fmt: skip
    assert len(found) == len(wanted)
    for text, part in zip(found, wanted, strict=True):
        assert part in text


def test_without_a_group_the_error_says_what_to_call() -> None:
    with pytest.raises(RuntimeError, match="no process group: call torch.distributed.init_process_group"):
        make("flat", 0).all_reduce()


def test_threads_do_not_mix_up_their_tensors(ranks: Ranks) -> None:
    def check(rank: int) -> None:
        groups = [dist.new_group([0, 1, 2]) for _ in range(2)]
        errors: list[BaseException] = []

        def work(place: int) -> None:
            try:
                for step in range(15):
                    out = make("tensorclass", 100 * place + rank + step).all_gather(group=groups[place])
                    for other, td in enumerate(out):
                        same(td, make("tensorclass", 100 * place + other + step))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(place,)) for place in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    ranks(check)


def test_entries_that_are_no_tensors_and_do_not_match_are_named(ranks: Ranks) -> None:
    def check(rank: int) -> None:
        from tensordict_lite import TensorDict

        def made(**entries: Any) -> TensorDict:
            return TensorDict({"x": torch.zeros(2), **entries}, [2])

        cases = [
            ((made(a="one", b="two"), made(a="one")), "2 non-tensor entries arrived.*1 here"),
            ((TensorDict({"a": "one"}, [2]), TensorDict({"a": "one"}, [3])), r"'a' came with the batch size \[2\]"),
        ]
        for tag, ((theirs, mine), message) in enumerate(cases):
            if rank == 0:
                theirs.send(1, init_tag=100 * tag)
            elif rank == 1:
                with pytest.raises(ValueError, match=message):
                    mine.recv(0, init_tag=100 * tag)
        nested = TensorDict(
            {"a": {"s": "x"}, "x": torch.zeros(2)} if rank == 0 else {"b": {"s": "x"}, "x": torch.zeros(2)}
        )
        if rank < 2:
            with pytest.raises(ValueError, match=r"\('a', 's'\) is on the sender only"):
                nested.send(1, check=True, init_tag=900) if rank == 0 else nested.recv(0, check=True, init_tag=900)

    ranks(check)
