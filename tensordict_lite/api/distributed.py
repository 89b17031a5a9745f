"""Between processes: the methods over ``torch.distributed``; see the package ``distributed``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from tensordict_lite.kernel import DeviceLike, Kernel

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class DistributedOps(Kernel):
    """Mixin of ``send``, ``recv``, ``broadcast`` and the other collectives.

    Ranks unpickle what others send: use them only among ranks that trust each other. ``gloo`` moves tensors through the
    CPU; with ``nccl`` messages go through the current CUDA device.
    """

    __slots__ = ()

    # -- values, between ranks that hold the same structure ----------------------------------------------------

    def send(
        self,
        dst: int | Any | None = None,
        *,
        group: ProcessGroup | None = None,
        group_dst: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        check: bool = False,
    ) -> None:
        """Send the values to another rank, which calls :meth:`recv` on a collection of the same structure.

        Small tensors of the same dtype share a message; non-tensor data takes one more.

        Messages hold values only, so different structures are detected only with ``check``. Without it, gloo aborts the
        receiving process (SIGABRT) when a message is longer than expected, fills part of the values when it is shorter,
        and waits for the timeout of the group when one is missing.

        Args:
            dst: global rank of the receiver.
            group: the process group; the default group if not given.
            group_dst: rank of the receiver in ``group``, which may be an unregistered group; replaces ``dst``.
            init_tag: tag of the first message. A transfer uses at most one tag per tensor and two more. The receiver
                passes the same tag. Concurrent transfers need disjoint ranges.
            pseudo_rand: draw pseudo-random tags with ``init_tag`` as the seed.
            check: compare the structures first, with one message and its answer; the receiver must pass it as well.

        Raises:
            ValueError: both or none of ``dst`` and ``group_dst``; with ``check``, the structures differ.
            CommunicationError: the other rank has ended or timed out.

        Example:
            Two ranks in two threads. A program calls ``torch.distributed.init_process_group`` and passes ``dst``.

            >>> from concurrent.futures import ThreadPoolExecutor
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
            dst.send(self)  # an object with its own asend()
            return
        works, _ = values.transfer(self, True, dst, group, group_dst, init_tag, pseudo_rand, check)
        values.wait_all(works)

    def recv(
        self,
        src: int | Any | None = None,
        *,
        group: ProcessGroup | None = None,
        group_src: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        check: bool = False,
    ) -> int:
        """Receive the values that :meth:`send` sends, in place.

        Args:
            src: global rank of the sender.
            group: the process group; the default group if not given.
            group_src: rank of the sender in ``group``; replaces ``src``.
            init_tag, pseudo_rand: as for :meth:`send`.
            check: as for :meth:`send`.

        Returns:
            The tag of the last tensor.

        The example of :meth:`send` shows both sides.
        """
        from tensordict_lite.distributed import values

        if src is not None and not isinstance(src, int):
            return src.recv(self)
        works, tag = values.transfer(self, False, src, group, group_src, init_tag, pseudo_rand, check)
        values.wait_all(works)
        return tag

    def isend(
        self,
        dst: int | None = None,
        *,
        group: ProcessGroup | None = None,
        group_dst: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        return_early: bool = False,
        check: bool = False,
    ) -> Any:
        """:meth:`send`; with ``return_early`` it returns before the messages are sent.

        Args:
            dst, group, group_dst, init_tag, pseudo_rand, check: as for :meth:`send`.
            return_early: do not wait. Call ``wait()`` of each result before the values change.

        Returns:
            The tag of the last tensor; with ``return_early`` a list of objects with ``wait()``.

        Example:
            Two ranks in two threads. A program calls ``torch.distributed.init_process_group`` and passes ``dst``.

            >>> from concurrent.futures import ThreadPoolExecutor
            >>> store, pool = torch.distributed.HashStore(), ThreadPoolExecutor(2)
            >>> groups = list(pool.map(lambda rank: torch.distributed.ProcessGroupGloo(store, rank, 2), range(2)))
            >>> here, there = TensorDict({"x": torch.ones(2)}, [2]), TensorDict({"x": torch.zeros(2)}, [2])
            >>> works = here.isend(group=groups[0], group_dst=1, return_early=True)
            >>> works += there.irecv(group=groups[1], group_src=0, return_premature=True)
            >>> [work.wait() for work in works], there["x"]
            ([True, True], tensor([1., 1.]))
        """
        from tensordict_lite.distributed import values

        works, tag = values.transfer(self, True, dst, group, group_dst, init_tag, pseudo_rand, check)
        if return_early:
            return works
        values.wait_all(works)
        return tag

    def irecv(
        self,
        src: int | None = None,
        *,
        group: ProcessGroup | None = None,
        group_src: int | None = None,
        return_premature: bool = False,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        check: bool = False,
    ) -> Any:
        """:meth:`recv`; with ``return_premature`` it returns before the messages have arrived.

        Args:
            src, group, group_src, init_tag, pseudo_rand, check: as for :meth:`recv`.
            return_premature: do not wait. Call ``wait()`` of each result before the values are read.

        Returns:
            None; with ``return_premature`` a list of objects with ``wait()``.

        The example of :meth:`isend` shows both sides.
        """
        from tensordict_lite.distributed import values

        works, _ = values.transfer(self, False, src, group, group_src, init_tag, pseudo_rand, check)
        if return_premature:
            return works
        values.wait_all(works)
        return None

    async def asend(self, dst: Any, **options: Any) -> None:
        """:meth:`send` for ``async`` programs: other tasks run during the transfer.

        Args:
            dst: global rank of the receiver, or any object with a method ``asend``.
            **options: as for :meth:`send`.

        Example:
            A queue instead of a rank; between ranks, ``await td.asend(1)`` pairs with ``await td.arecv(0)``.

            >>> import asyncio, torch
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

    async def arecv(self, src: Any, *, device: DeviceLike | None = None, **options: Any) -> Self:
        """:meth:`recv` for ``async`` programs: other tasks run during the transfer.

        Args:
            src: global rank of the sender, or any object with a method ``arecv``.
            device: move the result there; None leaves it.
            **options: as for :meth:`recv`.

        Returns:
            self, or with ``device`` a copy there.

        The example of :meth:`asend` shows both sides.
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
        group: ProcessGroup | None = None,
        *,
        bucket_bytes: int | None = None,
        check: bool = False,
    ) -> Any:
        """Reduce every tensor over all ranks, in place on rank ``dst``; values of other ranks are undefined.

        Args:
            dst: global rank that gets the result.
            op: a ``torch.distributed.ReduceOp``. Default: the sum.
            async_op: with ``return_premature``, return before the messages have arrived.
            return_premature: see ``async_op``.
            group: the process group; the default group if not given.
            bucket_bytes: tensors of at most this size share messages of at most this size. Default: tensors of up to
                64 KB share messages of up to 4 MB.
            check: compare the structures of all ranks first.

        Returns:
            None, or a list of objects with ``wait()``.

        Raises:
            ValueError: with ``check``, the structures differ; raised on every rank.

        Example:
            >>> dist = torch.distributed
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun: ("gloo")
            >>> td = TensorDict({"x": torch.ones(2)}, [2])
            >>> td.reduce(dst=0)
            >>> td["x"]  # the sum over one rank
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
        group: ProcessGroup | None = None,
        async_op: bool = False,
        bucket_bytes: int | None = None,
        check: bool = False,
    ) -> Any:
        """Reduce every tensor over all ranks, in place on all of them.

        Args:
            op: a ``torch.distributed.ReduceOp``. Default: the sum.
            group: the process group; the default group if not given.
            async_op: return before the messages have arrived: call ``wait()`` of each result.
            bucket_bytes, check: as for :meth:`reduce`.

        Returns:
            None, or a list of objects with ``wait()``.

        Example:
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
        self,
        dst: int | None = None,
        group: ProcessGroup | None = None,
        *,
        use_broadcast: bool = False,
    ) -> None:
        """Send structure and values to a rank that calls :meth:`from_remote_init`.

        Memory-mapped tensors are sent as the path of their file if the receiver can open the same file.

        Args:
            dst: global rank of the receiver.
            group: the process group; the default group if not given.
            use_broadcast: send to all ranks of the group, see :meth:`broadcast`.

        Raises:
            ValueError: neither ``dst`` nor ``use_broadcast``.
            UnsendableError: an entry cannot be pickled or is on the meta device; the receiver raises as well.

        Example:
            >>> import multiprocessing, tempfile, torch
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
    def from_remote_init(
        cls, src: int, group: ProcessGroup | None = None, device: DeviceLike | None = None, use_broadcast: bool = False
    ) -> Self:
        """Receive what :meth:`init_remote` sends: a new collection of the class that was sent.

        Args:
            src: global rank of the sender.
            group: the process group; the default group if not given.
            device: device of the result. Default: the device type of each sent tensor.
            use_broadcast: as the sender passed it.

        The example of :meth:`init_remote` shows both sides.
        """
        from tensordict_lite.distributed import trees

        if use_broadcast:
            return trees.broadcast(None, src, group, device)
        return trees.from_remote_init(src, group, device)

    def broadcast(self, src: int, *, group: ProcessGroup | None = None, device: DeviceLike | None = None) -> Self:
        """The collection of rank ``src``, on every rank of the group. All ranks must call it.

        The other ranks may call it on an empty TensorDict: the structure is sent as well. Memory-mapped tensors are
        sent as the path of their file if every rank can open the same file.

        Args:
            src: global rank of the sender.
            group: the process group; the default group if not given.
            device: device of the result. Default: the device type of each sent tensor.

        Returns:
            self on rank ``src``, a new collection elsewhere.

        Raises:
            CommunicationError: a rank has ended or timed out, or ``src`` could not send.

        Example:
            >>> dist = torch.distributed
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun: ("gloo")
            >>> td = TensorDict({"x": torch.ones(2)}, [2]).broadcast(src=0)  # elsewhere: TensorDict().broadcast(src=0)
            >>> td["x"]
            tensor([1., 1.])
            >>> dist.destroy_process_group()
        """
        from tensordict_lite.distributed import trees

        return trees.broadcast(self, src, group, device)

    def all_gather(self, *, group: ProcessGroup | None = None) -> list[Any]:
        """The collections of all ranks of the group, on every rank; their structures may differ.

        Args:
            group: the process group; the default group if not given.

        Returns:
            A list of new collections, in the order of the ranks.

        Example:
            >>> dist = torch.distributed
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun: ("gloo")
            >>> [td["x"] for td in TensorDict({"x": torch.ones(2)}, [2]).all_gather()]
            [tensor([1., 1.])]
            >>> dist.destroy_process_group()
        """
        from tensordict_lite.distributed import trees

        return trees.all_gather(self, group)

    def gather_and_stack(self, dst: int, group: ProcessGroup | None = None, *, check: bool = False) -> Self | None:
        """Stack the collections of all other ranks into the collection of rank ``dst``, in place.

        Args:
            dst: global rank that gets them. Its first batch dimension is the number of other ranks.
            group: the process group; the default group if not given.
            check: compare the structures first (of the rows, on ``dst``).

        Returns:
            self on rank ``dst``, None elsewhere.

        Raises:
            RuntimeError: on ``dst``, the first dimension has another size.

        Example:
            >>> import multiprocessing, tempfile, torch
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

    def scatter(
        self,
        src: int,
        tensordicts: list[Any] | None = None,
        *,
        group: ProcessGroup | None = None,
        device: DeviceLike | None = None,
    ) -> Self:
        """Give each rank one collection of a list on rank ``src``. The content of ``self`` is not used.

        Args:
            src: global rank that holds the list.
            tensordicts: on ``src``, one collection for each rank.
            group: the process group; the default group if not given.
            device: device of the result. Default: the device type of each sent tensor.

        Raises:
            ValueError: on ``src``, the list does not have one collection for each rank; the others raise as well.

        Example:
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
    """Wait in a thread, in the order of the messages: each result is stored after its message arrives."""
    import asyncio

    for work in works:
        await asyncio.to_thread(work.wait)
