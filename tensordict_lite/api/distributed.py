"""Between processes: the methods over ``torch.distributed``; see the package ``distributed``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict_lite.kernel import Kernel

if TYPE_CHECKING:
    from typing import Self

__all__ = ["DistributedOps"]


class DistributedOps(Kernel):
    """Mixin of ``send``, ``broadcast`` and their kin.

    Ranks unpickle what others send: use them among ranks that trust each other. ``gloo`` moves tensors by way of the
    CPU; with ``nccl`` messages go through the current CUDA device.
    """

    __slots__ = ()

    # -- values, between ranks that hold the same structure ----------------------------------------------------

    def send(
        self,
        dst: int | Any | None = None,
        *,
        group: Any = None,
        group_dst: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
        check: bool = False,
    ) -> None:
        """Sends the values to another rank, which calls :meth:`recv` on a collection of the same structure.

        Small tensors of one dtype go together in a message, non-tensor data in one more.

        Messages hold nothing but values, so that structures that differ are found with ``check`` only. Without it, gloo
        ends the receiving process (SIGABRT) when a message is longer than expected, fills a part of the values when it
        is shorter, and waits for the timeout of the group when one is missing.

        Args:
            dst: the receiver, a global rank.
            group: the process group. Default: the default one.
            group_dst: the receiver's rank in ``group``, which may be a group that is not registered; instead of
                ``dst``.
            init_tag: tag of the first message; there are at most as many as tensors, and two more. The receiver
                passes the same. Give transfers at the same time other ranges.
            pseudo_rand: take pseudo-random tags from the seed ``init_tag``.
            consolidated: has no effect: values go in few messages anyway.
            check: compare the structures first, by a message and its answer; the receiver must do so as well.

        Raises:
            ValueError: both or none of ``dst`` and ``group_dst``; with ``check``, the structures differ.
            CommunicationError: the other rank has ended or is late.

        Example:
            Two ranks in two threads; programs call ``torch.distributed.init_process_group`` instead, and pass ``dst``.

            >>> import torch
            >>> from concurrent.futures import ThreadPoolExecutor
            >>> from tensordict_lite import TensorDict
            >>> store, pool = torch.distributed.HashStore(), ThreadPoolExecutor(2)
            >>> groups = list(pool.map(lambda rank: torch.distributed.ProcessGroupGloo(store, rank, 2), range(2)))
            >>> here, there = TensorDict({"x": torch.ones(2)}, [2]), TensorDict({"x": torch.zeros(2)}, [2])
            >>> received = pool.submit(there.recv, group=groups[1], group_src=0)
            >>> here.send(group=groups[0], group_dst=1)
            >>> received.result(), there["x"]
            (0, tensor([1., 1.]))
        """
        from tensordict_lite.distributed import values

        if dst is not None and not isinstance(dst, int):
            dst.send(self)  # a pipe of the caller's own
            return
        values.send(self, dst, group, group_dst, init_tag, pseudo_rand, check)

    def recv(
        self,
        src: int | Any | None = None,
        *,
        group: Any = None,
        group_src: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
        check: bool = False,
    ) -> int:
        """Receives the values that :meth:`send` sends, in place.

        Args:
            src: the sender, a global rank.
            group: see :meth:`send`.
            group_src: the sender's rank in ``group``, instead of ``src``.
            init_tag: see :meth:`send`.
            pseudo_rand: see :meth:`send`.
            consolidated: has no effect.
            check: see :meth:`send`.

        Returns:
            The tag of the last tensor.

        Example:
            Two ranks in two threads; programs call ``torch.distributed.init_process_group`` instead, and pass ``src``.

            >>> import torch
            >>> from concurrent.futures import ThreadPoolExecutor
            >>> from tensordict_lite import TensorDict
            >>> store, pool = torch.distributed.HashStore(), ThreadPoolExecutor(2)
            >>> groups = list(pool.map(lambda rank: torch.distributed.ProcessGroupGloo(store, rank, 2), range(2)))
            >>> here, there = TensorDict({"x": torch.ones(2)}, [2]), TensorDict({"x": torch.zeros(2)}, [2])
            >>> sent = pool.submit(here.send, group=groups[0], group_dst=1)
            >>> there.recv(group=groups[1], group_src=0)
            0
            >>> there["x"]
            tensor([1., 1.])
        """
        from tensordict_lite.distributed import values

        if src is not None and not isinstance(src, int):
            return src.recv(self)
        return values.recv(self, src, group, group_src, init_tag, pseudo_rand, check)

    def isend(
        self,
        dst: int | None = None,
        *,
        group: Any = None,
        group_dst: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        return_early: bool = False,
        consolidated: bool = False,
        check: bool = False,
    ) -> Any:
        """As :meth:`send`; with ``return_early`` it returns while the messages are on their way.

        Args:
            dst: see :meth:`send`.
            group: see :meth:`send`.
            group_dst: see :meth:`send`.
            init_tag: see :meth:`send`.
            pseudo_rand: see :meth:`send`.
            return_early: do not wait: call ``wait()`` of each result before the values change.
            consolidated: see :meth:`send`.
            check: see :meth:`send`.

        Returns:
            The tag of the last tensor; with ``return_early`` a list of objects with ``wait()``.

        Example:
            Two ranks in two threads; programs call ``torch.distributed.init_process_group`` instead, and pass ``dst``.

            >>> import torch
            >>> from concurrent.futures import ThreadPoolExecutor
            >>> from tensordict_lite import TensorDict
            >>> store, pool = torch.distributed.HashStore(), ThreadPoolExecutor(2)
            >>> groups = list(pool.map(lambda rank: torch.distributed.ProcessGroupGloo(store, rank, 2), range(2)))
            >>> here, there = TensorDict({"x": torch.ones(2)}, [2]), TensorDict({"x": torch.zeros(2)}, [2])
            >>> works = here.isend(group=groups[0], group_dst=1, return_early=True)
            >>> works += there.irecv(group=groups[1], group_src=0, return_premature=True)
            >>> [work.wait() for work in works], there["x"]
            ([True, True], tensor([1., 1.]))
        """
        from tensordict_lite.distributed import values

        works, tag = values.isend(self, dst, group, group_dst, init_tag, pseudo_rand, check)
        if return_early:
            return works
        values.wait_all(works)
        return tag

    def irecv(
        self,
        src: int | None = None,
        *,
        group: Any = None,
        group_src: int | None = None,
        return_premature: bool = False,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
        check: bool = False,
    ) -> Any:
        """As :meth:`recv`; with ``return_premature`` it returns while the messages are on their way.

        Args:
            src: see :meth:`recv`.
            group: see :meth:`recv`.
            group_src: see :meth:`recv`.
            return_premature: do not wait: call ``wait()`` of each result before the values are read.
            init_tag: see :meth:`recv`.
            pseudo_rand: see :meth:`recv`.
            consolidated: see :meth:`recv`.
            check: see :meth:`recv`.

        Returns:
            None; with ``return_premature`` a list of objects with ``wait()``.

        Example:
            Two ranks in two threads; programs call ``torch.distributed.init_process_group`` instead, and pass ``src``.

            >>> import torch
            >>> from concurrent.futures import ThreadPoolExecutor
            >>> from tensordict_lite import TensorDict
            >>> store, pool = torch.distributed.HashStore(), ThreadPoolExecutor(2)
            >>> groups = list(pool.map(lambda rank: torch.distributed.ProcessGroupGloo(store, rank, 2), range(2)))
            >>> here, there = TensorDict({"x": torch.ones(2)}, [2]), TensorDict({"x": torch.zeros(2)}, [2])
            >>> works = there.irecv(group=groups[1], group_src=0, return_premature=True)
            >>> works += here.isend(group=groups[0], group_dst=1, return_early=True)
            >>> [work.wait() for work in works], there["x"]
            ([True, True], tensor([1., 1.]))
        """
        from tensordict_lite.distributed import values

        works, _ = values.irecv(self, src, group, group_src, init_tag, pseudo_rand, check)
        if return_premature:
            return works
        values.wait_all(works)
        return None

    async def asend(self, dst: Any, **options: Any) -> None:
        """As :meth:`send`, for programs with ``async``: other tasks run while the messages are on their way.

        Args:
            dst: the receiver, a global rank; or a pipe of the caller's own with a method ``asend``.
            **options: see :meth:`send`.

        Example:
            A pipe of the caller's own; with ranks it is ``await td.asend(1)`` here and ``await td.arecv(0)`` there.

            >>> import asyncio, torch
            >>> from tensordict_lite import TensorDict
            >>> class Pipe(asyncio.Queue):
            ...     async def asend(self, td):
            ...         await self.put(td)
            ...     async def arecv(self, td, device=None):
            ...         return td.update_(await self.get())
            >>> async def both():
            ...     pipe, td = Pipe(), TensorDict({"x": torch.ones(2)}, [2])
            ...     sent, got = await asyncio.gather(td.asend(pipe), torch.zeros_like(td).arecv(pipe))
            ...     return got["x"]
            >>> asyncio.run(both())
            tensor([1., 1.])
        """
        if hasattr(dst, "asend"):
            await dst.asend(self)
            return
        await _wait_aside(self.isend(dst, return_early=True, **options))

    async def arecv(self, src: Any, *, device: Any = None, **options: Any) -> Self:
        """As :meth:`recv`, for programs with ``async``: other tasks run while the messages are on their way.

        Args:
            src: the sender, a global rank; or a pipe of the caller's own with a method ``arecv``.
            device: where the result goes; None: it stays.
            **options: see :meth:`recv`.

        Returns:
            self, or with ``device`` what it is there.

        Example:
            A pipe of the caller's own; with ranks it is ``await td.asend(1)`` here and ``await td.arecv(0)`` there.

            >>> import asyncio, torch
            >>> from tensordict_lite import TensorDict
            >>> class Pipe(asyncio.Queue):
            ...     async def asend(self, td):
            ...         await self.put(td)
            ...     async def arecv(self, td, device=None):
            ...         return td.update_(await self.get())
            >>> async def both():
            ...     pipe, td = Pipe(), TensorDict({"x": torch.ones(2)}, [2])
            ...     sent, got = await asyncio.gather(td.asend(pipe), torch.zeros_like(td).arecv(pipe))
            ...     return got["x"]
            >>> asyncio.run(both())
            tensor([1., 1.])
        """
        if hasattr(src, "arecv"):
            return await src.arecv(self, device=device)
        await _wait_aside(self.irecv(src, return_premature=True, **options))
        return self if device is None else self.to(device)

    def reduce(
        self,
        dst: int,
        op: Any = None,
        async_op: bool = False,
        return_premature: bool = False,
        group: Any = None,
        *,
        bucket_bytes: int | None = None,
        check: bool = False,
    ) -> Any:
        """Reduces every tensor over all ranks, in place on rank ``dst``; elsewhere the values stay or are undefined.

        Args:
            dst: the rank that gets the result, a global one.
            op: a ``torch.distributed.ReduceOp``. Default: the sum.
            async_op: with ``return_premature``, return while the messages are on their way.
            return_premature: see ``async_op``.
            group: the process group. Default: the default one.
            bucket_bytes: tensors of up to so many bytes share messages of up to so many. Default: tensors of up to
                64 KB share messages of up to 4 MB.
            check: compare the structures of all ranks first.

        Returns:
            None, or a list of objects with ``wait()``.

        Raises:
            ValueError: with ``check``, on every rank, the structures differ.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> dist = torch.distributed
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun: ("gloo")
            >>> td = TensorDict({"x": torch.ones(2)}, [2])
            >>> td.reduce(dst=0)
            >>> td["x"]  # of one rank: the sum is what it has
            tensor([1., 1.])
            >>> dist.destroy_process_group()
        """
        from tensordict_lite.distributed import values

        works = values.reduce(self, dst, op, group, bucket_bytes, check)
        if async_op and return_premature:
            return works
        values.wait_all(works)
        return None

    def all_reduce(
        self,
        op: Any = None,
        *,
        group: Any = None,
        async_op: bool = False,
        bucket_bytes: int | None = None,
        check: bool = False,
    ) -> Any:
        """Reduces every tensor over all ranks, in place on all of them.

        Args:
            op: a ``torch.distributed.ReduceOp``. Default: the sum.
            group: the process group. Default: the default one.
            async_op: return while the messages are on their way: call ``wait()`` of each result.
            bucket_bytes: see :meth:`reduce`.
            check: see :meth:`reduce`.

        Returns:
            None, or a list of objects with ``wait()``.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> dist = torch.distributed
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun: ("gloo")
            >>> td = TensorDict({"x": torch.ones(2)}, [2])
            >>> td.all_reduce(op=dist.ReduceOp.MAX)
            >>> td["x"]
            tensor([1., 1.])
            >>> dist.destroy_process_group()
        """
        from tensordict_lite.distributed import values

        works = values.reduce(self, None, op, group, bucket_bytes, check)
        if async_op:
            return works
        values.wait_all(works)
        return None

    # -- collections, with their structure ---------------------------------------------------------------------

    def init_remote(
        self, dst: int | None = None, group: Any = None, device: Any = None, use_broadcast: bool = False
    ) -> None:
        """Sends structure and values to a rank that knows neither, and calls :meth:`from_remote_init`.

        Memory-mapped tensors go as the path of their file where the receiver sees the same file.

        Args:
            dst: the receiver, a global rank.
            group: the process group. Default: the default one.
            device: has no effect; it is accepted because the interface has it.
            use_broadcast: to all ranks of the group, see :meth:`broadcast`.

        Raises:
            ValueError: no ``dst``.
            UnsendableError: an entry cannot be pickled, or is on the meta device; the receiver raises as well.

        Example:
            >>> import multiprocessing, tempfile, torch
            >>> from tensordict_lite import TensorDict
            >>> def begin(rank, meeting):
            ...     torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
            >>> def other(meeting):
            ...     begin(1, meeting)
            ...     assert TensorDict.from_remote_init(src=0)["who"] == "rank 0"
            >>> meeting = f"file://{tempfile.mkdtemp()}/group"
            >>> process = multiprocessing.get_context("fork").Process(target=other, args=(meeting,))
            >>> process.start()
            >>> begin(0, meeting)
            >>> TensorDict({"a": {"x": torch.ones(2)}, "who": "rank 0"}, [2]).init_remote(dst=1)
            >>> process.join(), process.exitcode
            (None, 0)
            >>> torch.distributed.destroy_process_group()
        """
        from tensordict_lite.distributed import trees

        if use_broadcast:
            import torch.distributed as dist

            trees.broadcast(self, dist.get_rank(), group, None)
            return
        if dst is None:
            raise ValueError("init_remote() needs dst=, the rank to send to, or use_broadcast=True")
        trees.init_remote(self, dst, group)

    @classmethod
    def from_remote_init(cls, src: int, group: Any = None, device: Any = None, use_broadcast: bool = False) -> Self:
        """Receives what :meth:`init_remote` sends: a new collection, of the class that was sent.

        Args:
            src: the sender, a global rank.
            group: the process group. Default: the default one.
            device: where the result goes. Default: the type of device where each tensor was.
            use_broadcast: as the sender has it.

        Example:
            >>> import multiprocessing, tempfile, torch
            >>> from tensordict_lite import TensorDict
            >>> def begin(rank, meeting):
            ...     torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
            >>> def other(meeting):
            ...     begin(1, meeting)
            ...     TensorDict({"a": {"x": torch.ones(2)}, "who": "rank 1"}, [2]).init_remote(dst=0)
            >>> meeting = f"file://{tempfile.mkdtemp()}/group"
            >>> process = multiprocessing.get_context("fork").Process(target=other, args=(meeting,))
            >>> process.start()
            >>> begin(0, meeting)
            >>> td = TensorDict.from_remote_init(src=1)
            >>> td["a", "x"], td["who"]
            (tensor([1., 1.]), 'rank 1')
            >>> process.join()
            >>> torch.distributed.destroy_process_group()
        """
        from tensordict_lite.distributed import trees

        if use_broadcast:
            return trees.broadcast(None, src, group, device)
        return trees.from_remote_init(src, group, device)

    def broadcast(self, src: int, *, group: Any = None, device: Any = None) -> Self:
        """The collection of rank ``src``, on every rank of the group; all must call it.

        The others need not know its structure: they may call it on an empty TensorDict. Memory-mapped tensors go as
        the path of their file where every rank sees the same file.

        Args:
            src: the rank that has it, a global one.
            group: the process group. Default: the default one.
            device: where the result goes. Default: the type of device where each tensor is.

        Returns:
            On rank ``src`` self, elsewhere a new collection.

        Raises:
            CommunicationError: a rank has ended or is late, or ``src`` could not send.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> dist = torch.distributed
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun: ("gloo")
            >>> td = TensorDict({"x": torch.ones(2)}, [2]).broadcast(src=0)  # elsewhere: TensorDict().broadcast(src=0)
            >>> td["x"]
            tensor([1., 1.])
            >>> dist.destroy_process_group()
        """
        from tensordict_lite.distributed import trees

        return trees.broadcast(self, src, group, device)

    def all_gather(self, *, group: Any = None) -> list[Any]:
        """The collections of all ranks of the group, on every rank; their structures may differ.

        Args:
            group: the process group. Default: the default one.

        Returns:
            A list of new collections, in the order of the ranks.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> dist = torch.distributed
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun: ("gloo")
            >>> [td["x"] for td in TensorDict({"x": torch.ones(2)}, [2]).all_gather()]
            [tensor([1., 1.])]
            >>> dist.destroy_process_group()
        """
        from tensordict_lite.distributed import trees

        return trees.all_gather(self, group)

    def gather_and_stack(self, dst: int, group: Any = None, *, check: bool = False) -> Self | None:
        """Stacks the collections of all other ranks into that of rank ``dst``, in place.

        Args:
            dst: the rank that gets them, a global one; its first batch dimension is the number of other ranks.
            group: the process group. Default: the default one.
            check: compare the structures first (of the rows, on ``dst``).

        Returns:
            self on rank ``dst``, None elsewhere.

        Raises:
            RuntimeError: on ``dst``, the first dimension has another size.

        Example:
            >>> import multiprocessing, tempfile, torch
            >>> from tensordict_lite import TensorDict
            >>> def begin(rank, meeting):
            ...     torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
            >>> def other(meeting):
            ...     begin(1, meeting)
            ...     TensorDict({"x": torch.ones(2)}, []).gather_and_stack(dst=0)
            >>> meeting = f"file://{tempfile.mkdtemp()}/group"
            >>> process = multiprocessing.get_context("fork").Process(target=other, args=(meeting,))
            >>> process.start()
            >>> begin(0, meeting)
            >>> rows = TensorDict({"x": torch.zeros(1, 2)}, [1])  # one for each other rank
            >>> rows.gather_and_stack(dst=0)["x"]
            tensor([[1., 1.]])
            >>> process.join()
            >>> torch.distributed.destroy_process_group()
        """
        from tensordict_lite.distributed import trees

        return trees.gather_and_stack(self, dst, group, check)

    def scatter(self, src: int, tensordicts: list[Any] | None = None, *, group: Any = None, device: Any = None) -> Self:
        """Gives each rank its own of a list of collections on rank ``src``; this collection plays no part.

        Args:
            src: the rank that has them, a global one.
            tensordicts: there, one for each rank.
            group: the process group. Default: the default one.
            device: where the result goes. Default: the type of device where each tensor is.

        Raises:
            ValueError: on ``src``, there is not one for each rank; the others raise as well.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> dist = torch.distributed
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun: ("gloo")
            >>> parts = [TensorDict({"rank": torch.tensor(rank)}) for rank in range(dist.get_world_size())]
            >>> TensorDict().scatter(0, parts)["rank"]  # elsewhere: TensorDict().scatter(0)
            tensor(0)
            >>> dist.destroy_process_group()
        """
        from tensordict_lite.distributed import trees

        return trees.scatter(tensordicts, src, group, device)


async def _wait_aside(works: list[Any]) -> None:
    """Waits in a thread, one message after the other: what a message brings is put into place in order."""
    import asyncio

    for work in works:
        await asyncio.to_thread(work.wait)
