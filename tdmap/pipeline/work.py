"""What a worker does with a chunk: every fused stage, one after the other, while the rows are in its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from tdmap.data.join import join
from tdmap.data.kinds import Data, is_data, leaves_hold_rows, tensors_of
from tdmap.data.objects import forms_of, with_ragged_rows
from tdmap.data.schema import check_alike, join_pieces
from tdmap.data.trees import FreshResults, rebuild, tensors_in
from tdmap.errors import add_note
from tdmap.functions import plain_rows
from tdmap.job import function_name
from tdmap.ops.filter import as_mask
from tdmap.output.append import each_result
from tdmap.pipeline.stages import Batch, Call, Filter, FlatMap, Map, MapRows, Select, Stage, Unbatch
from tdmap.plan import ChunkPlan
from tdmap.run.fingerprint import function_parts
from tdmap.runtime.undo import Comparisons, have_changed
from tensordict_lite import is_tensor_collection, lazy_stack


class Nothing:
    """Stands for a chunk of which no row is left, and for a batch that was filtered out."""

    def __reduce__(self) -> str:
        return "NOTHING"

    __repr__ = __reduce__


NOTHING = Nothing()


class Work:
    """The fused stages as one function of a chunk, which is what workers are sent.

    Args:
        stages: what is done to each chunk.
        views: chunks are views of the dataset, which the functions must leave as it is.
        then: called with (rows, number of the first source row) at the end, if there are any rows.
        empty: makes the result of a chunk of which nothing is left. Default: None.
        given: the results are given to the user in this process, who may write into them: they do not lie in the
            memory of the dataset.
    """

    takes_start = True

    def __init__(
        self,
        stages: Sequence[Stage],
        views: bool,
        then: Callable[[Any, int], Any] | None = None,
        empty: Callable[[], Any] | None = None,
        given: bool = False,
    ) -> None:
        self.stages = tuple(stages)
        self.given = given
        self.views = views
        self.then = then
        self.empty = empty
        self._compared = Comparisons()
        names = [function_name(stage.fn) for stage in self.stages if isinstance(stage, Call)]
        self.__qualname__ = " + ".join(names) or "pipeline"

    @property
    def merge_states(self) -> Callable[[Any, Any], Any] | None:
        """How workers merge the results of neighbouring chunks, where these are states of a reduction."""
        merge: Callable[[Any, Any], Any] | None = getattr(self.then, "merge_states", None)
        return merge

    @property
    def takes_whole(self) -> bool:
        """Whether a function gets a batch, whose rows belong together."""
        return any(batched and isinstance(stage, Call) for stage, batched in with_batches(self.stages))

    def join_states(self, states: list[Any]) -> Any:
        """The result of a chunk of which some rows are left out, from those of its parts."""
        if len(states) > 1:
            join = getattr(self.then, "join_states", None)
            if join is not None:
                return join(states)
            rows = [state for state in states if state is not NOTHING and state is not None]
            states = [join_pieces(rows)] if rows else []
        if states:
            return states[0]
        return NOTHING if self.empty is None else self.empty()

    def __call__(self, chunk: Data, start: int = 0) -> Any:
        # Tensors of torch's inference mode count no versions.
        leaves = [leaf for leaf in tensors_of(chunk) if not leaf.is_inference()] if self.views else []
        before = sum(leaf._version for leaf in leaves)
        copies = self._compared.copies(chunk) if self.views else []
        value = run_stages(self.stages, chunk)
        if sum(leaf._version for leaf in leaves) != before or have_changed(copies):
            for leaf, copy in copies:
                leaf.copy_(copy)
            raise RuntimeError(
                f"{self.__qualname__} changed rows of the dataset in place. A function of a pipeline returns new "
                "values: use x * 2 instead of x.mul_(2), or clone first."
            )
        if value is NOTHING:
            return value if self.empty is None else self.empty()
        if self.views and self.given:
            value = _apart_from(chunk, value)
        return value if self.then is None else self.then(value, start)


def _apart_from(chunk: Data, value: object) -> Any:
    """A value, with copies of those of its tensors that lie in the memory of a chunk."""
    memory = set(map(_memory_of, tensors_of(chunk)))
    tensors = tensors_in(value)
    copied = [_memory_of(tensor) in memory for tensor in tensors]
    if not any(copied):
        return value
    return rebuild(value, (tensor.clone() if copy else tensor for tensor, copy in zip(tensors, copied)))


def _memory_of(tensor: torch.Tensor) -> int | None:
    is_plain = tensor.layout is torch.strided and not tensor.is_nested
    return tensor.untyped_storage().data_ptr() if is_plain else None


def stage_parts(stages: Sequence[Stage], prefix: str = "") -> dict[str, str]:
    """What stages consist of, part by part: the same in every process."""
    parts = {}
    for number, stage in enumerate(stages, 1):
        name = f"{prefix}stage {number}"
        parts[name] = str(stage)
        if isinstance(stage, Call):
            parts |= {f"{name}, {stage}: {part}": digest for part, digest in function_parts(stage.fn).items()}
    return parts


def with_batches(stages: Iterable[Stage]) -> Iterator[tuple[Stage, bool]]:
    """Each stage, and whether there are batches then."""
    batched = False
    for stage in stages:
        if isinstance(stage, (Batch, Unbatch)):
            batched = isinstance(stage, Batch)
        yield stage, batched


def run_stages(stages: Sequence[Stage], value: Data) -> Data:
    """Apply stages to a chunk, or to a batch; NOTHING when no row is left.

    Raises:
        Exception: what a function raised, with a note that names the stage.
    """
    if is_tensor_collection(value) and value.is_locked:
        value = value.copy()
    batched = False
    for number, stage in enumerate(stages):
        try:
            if isinstance(stage, (Batch, Unbatch)):
                batched = isinstance(stage, Batch)
                if not batched and not _count(stage, value):
                    return NOTHING
            else:
                value = apply_stage(stage, value, batched)
        except Exception as error:
            if len(stages) > 1:
                add_note(error, f"in stage {number + 1} of {len(stages)}: {stage}")
            raise
        if value is NOTHING:
            return value
    return value


def apply_stage(stage: Stage, value: Data, batched: bool) -> Data:
    """Apply one stage to the rows of a chunk, or to a batch."""
    if isinstance(stage, Map):
        return stage.fn(value) if batched else _mapped(stage, value)
    if isinstance(stage, MapRows):
        return _map_rows(stage, value)
    if isinstance(stage, Filter):
        return _kept(stage, value, batched)
    if isinstance(stage, FlatMap):
        return _flat_mapped(stage, value)
    assert isinstance(stage, Select)
    if not is_tensor_collection(value):
        raise TypeError(f".select() takes entries of a collection, and the rows are a {type(value).__name__}.")
    return value.select(*stage.keys)


def _count(stage: Stage, value: Data) -> int:
    """Rows of a chunk.

    Raises:
        TypeError: it has none.
    """
    if not is_data(value) or not value.shape:
        shape = f" of shape {tuple(value.shape)}" if is_data(value) else ""
        found = "None" if value is None else f"a {type(value).__name__}{shape}"
        raise TypeError(
            f".{stage} must give rows, dimension 0 of a tensor or of a collection's batch size, and the function "
            f"returned {found}. Return a tensor, or TensorDict(..., batch_size=chunk.batch_size)."
        )
    return int(value.shape[0])


def _mapped(stage: Map, value: Data) -> Data:
    rows = _count(stage, value)
    result = plain_rows(stage.fn(value), value)
    got = _count(stage, result)
    if got != rows:
        raise ValueError(
            f".{stage} must return as many rows as it takes, {rows}: got {got}. Use .filter() or .flat_map() "
            "to change the number of rows, or .batch(n) first for a function of whole batches."
        )
    return result


def _map_rows(stage: MapRows, value: Data) -> Data:
    _count(stage, value)
    fresh, forms = FreshResults(), forms_of(value)
    results = [fresh(with_ragged_rows(plain_rows(stage.fn(row), row, "one"), forms)) for row in value.unbind(0)]
    for result in results:
        if not is_data(result):
            raise TypeError(
                f".{stage} must return a tensor or a collection for each row: got a {type(result).__name__}."
            )
    try:
        return join(results, ChunkPlan(len(results), 1, unbind=True))
    except Exception:
        if not leaves_hold_rows(value):  # but lazy stacks do, whose rows may differ in shape
            return lazy_stack(results)
        for result in results[1:]:  # a better message, where a difference explains it
            check_alike(results[0].unsqueeze(0), result.unsqueeze(0))
        raise


def _kept(stage: Filter, value: Data, batched: bool) -> Data:
    answer = stage.fn(value)
    if batched:
        size = answer.numel() if isinstance(answer, torch.Tensor) else np.size(answer)
        if size != 1:
            raise ValueError(
                f".{stage} after .batch() must return one bool per batch: got shape {np.shape(answer)}. To "
                "filter rows, put it before .batch(), or after .unbatch()."
            )
        return value if bool(answer) else NOTHING
    mask = as_mask(answer, (_count(stage, value),)).cpu()
    if bool(mask.all()):
        return value
    return value[mask] if bool(mask.any()) else NOTHING


def _flat_mapped(stage: FlatMap, value: Data) -> Any:
    fresh = FreshResults()
    parts = [fresh(part) for part in each_result(stage.fn(value), value) if _count(stage, part)]
    return join_pieces(parts) if parts else NOTHING
