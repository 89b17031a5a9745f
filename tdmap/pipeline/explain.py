"""The plan of a pipeline for people: boxes, as text or as a picture."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tdmap.data.combine import Concat, Zip
from tdmap.data.kinds import Rows, is_data
from tdmap.data.reader import InMemory
from tdmap.data.sizes import row_bytes_of
from tdmap.memory.resources import usable_cores
from tdmap.pipeline import terminals
from tdmap.pipeline.caching import is_written
from tdmap.pipeline.epochs import chunk_rows, default_ahead
from tdmap.pipeline.planning import Head, Local, Plan
from tdmap.pipeline.rows import UnwrittenCache, View
from tdmap.pipeline.shares import Share
from tdmap.pipeline.stages import ENDLESS, Batch, Cache, Call, ConcatWith, Repeat, Shuffle, Stage
from tdmap.seeding import own_streams
from tensordict_lite.show.options import bytes_text

if TYPE_CHECKING:
    from tdmap.pipeline.chain import Chain
    from tdmap.pipeline.pipeline import Pipeline

COLORS = {"rows": "#e8f0fe", "workers": "#e6f4ea", "here": "#fef7e0", "result": "#f1f3f4", "cache": "#fce8e6"}


@dataclass
class Box:
    """One place where something happens."""

    kind: str
    """`rows`, `workers`, `here`, `result` or `cache`."""
    title: str
    stages: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    above: list[Box] = field(default_factory=list)
    """Where its input comes from."""


def explain(pipeline: Pipeline, num_workers: int, prefetch: int | None, probe: bool) -> Box:
    """The boxes of a pipeline, the last one first.

    Args:
        pipeline: what to explain.
        num_workers: processes that will run it.
        prefetch: batches ahead; None: the default.
        probe: call the functions on one row, to know what they return.
    """
    caches: list[Box] = []

    def cached(before: Chain, cache: Cache, plan: Plan) -> Rows:
        facts = (
            ["written already, and read from there"] if is_written(cache) else ["not written yet: a pass of its own"]
        )
        caches.append(Box("cache", f"cache {cache.path}", [], facts, [_boxes(plan, num_workers, caches, None)]))
        return before._pending(cache, plan)

    chain, share = pipeline._without_share()
    plan = pipeline._plan(cached)
    if share.world_size > 1:
        caches.clear()
        whole = chain._plan(cached)
        top = _share_box(str(pipeline._stages[-1]), share, whole, _boxes(whole, num_workers, caches, None))
    else:
        top = _boxes(plan, num_workers, caches, None)
    row = _probe(plan) if probe else None
    return Box("result", "result", [], _result_facts(plan, row, num_workers, prefetch), [top])


def _share_box(stage: str, share: Share, whole: Plan, above: Box) -> Box:
    """The share of batches that a chain ends with: workers compute only those."""
    total = whole.elements
    own = None if total is None else share.count(total)
    counted = "its own batches" if own is None else f"{own:,} of the {total:,} batches"
    fact = f"the workers of this rank read and compute {counted}, those of other ranks the rest"
    return Box("here", f"rank {share.rank} of {share.world_size}", [stage], [fact], [above])


def _boxes(plan: Plan, workers: int, caches: list[Box], batch: int | None) -> Box:
    if isinstance(plan, Head):
        return _head_boxes(plan, workers, caches, batch)
    if isinstance(plan.stage, Repeat):
        epochs = "without end" if plan.stage.count is None else f"{plan.stage.count} times"
        return Box("here", f"again, {epochs}", [], [], [_boxes(plan.source, workers, caches, batch)])
    if len(plan.sources) > 1:
        above = [_boxes(source, workers, caches, batch) for source in plan.sources]
        title = "one after the other" if isinstance(plan.stage, ConcatWith) else "side by side"
        return Box("here", f"in this process, {title}", [plan.stage.name], [], above)
    stages, source = [plan.stage], plan.source
    while isinstance(source, Local) and len(source.sources) == 1 and not isinstance(source.stage, Repeat):
        stages.insert(0, source.stage)
        source = source.source
    size = next((stage.size for stage in stages if isinstance(stage, Batch)), batch)
    late = plan.source.batched and any(isinstance(stage, Call) for stage in stages)
    facts = ["functions here run in one process: those of rows belong before .batch()"] if late else []
    above = [_boxes(source, workers, caches, size)]
    return Box("here", "in this process, in order", [str(stage) for stage in stages], facts, above)


def _head_boxes(head: Head, workers: int, caches: list[Box], batch: int | None) -> Box:
    rows = _rows_box(head.view, caches)
    count, size = head.view.length, chunk_rows(head, None, batch)
    row_bytes = head.view.row_bytes
    facts = []
    if head.epochs != 1:
        facts.append("epochs without end" if head.epochs == ENDLESS else f"{head.epochs} epochs")
    if (head.first, head.stop) != (0, None):
        facts.append(f"batches {head.first} to {'the last' if head.stop is None else head.stop}")
    if count is None:
        facts.append("chunks: when the cache is written")
    else:
        facts.append(
            f"{_plural(-(-count // size), 'chunk')} of {_plural(size, 'row')}, {bytes_text(size * row_bytes)} each"
        )
        facts.append(f"reads {bytes_text(count * row_bytes)}" + (" an epoch" if head.epochs != 1 else ""))
    who = "1 worker" if workers == 1 else f"{workers} workers" if workers else "this process, without workers"
    return Box("workers", f"one pass, {who}", [str(stage) for stage in head.stages] or ["read"], facts, [rows])


def _rows_box(view: View, caches: list[Box]) -> Box:
    over = view.over
    picks = [str(pick) for pick in view.picks]
    facts = ["row numbers only: nothing is moved"] if picks else []
    above = []
    if isinstance(over, (Concat, Zip)):
        for part in over.parts:
            assert isinstance(part, View)
            box = _rows_box(part, caches)
            box.stages += [f"{stage} (in the workers)" for stage in part.stages]
            above.append(box)
        title = f"{_count(over.length)}, {'one after the other' if isinstance(over, Concat) else 'side by side'}"
    elif isinstance(over, UnwrittenCache):
        above = [box for box in caches if box.title == f"cache {over.path}"][-1:]
        title = f"{_count(over.length)} of the cache"
    else:
        name = type(over.data if isinstance(over, InMemory) else over).__name__
        title = f"{name}, {_count(over.length)} of {bytes_text(over.row_bytes)}"
    return Box("rows", title, picks, facts, above)


def _result_facts(plan: Plan, row: Any, workers: int, prefetch: int | None) -> list[str]:
    count, unit = plan.elements, "batch" if plan.batched else "row"
    if count is None:
        facts = [f"{unit}es: known when it has run" if plan.batched else "rows: known when it has run"]
    else:
        facts = [f"{unit}es without end" if count >= ENDLESS else _plural(count, unit)]
    if row is None:
        return [*facts, *_memory(plan, None, workers, prefetch)]
    row_bytes = row_bytes_of(row, 1)
    facts.append(f"{bytes_text(row_bytes)} a row")
    if count is not None and count < ENDLESS and not plan.batched:
        facts.append(f"{bytes_text(count * row_bytes)} in all")
    return [*facts, *_memory(plan, row_bytes, workers, prefetch)]


def _memory(plan: Plan, out_bytes: int | None, workers: int, prefetch: int | None) -> list[str]:
    """What an iteration holds at a time, apart from what the functions themselves need."""
    if out_bytes is None:
        return []
    total, parts = 0, []
    for head, batch in _heads(plan, None):
        size = chunk_rows(head, None, batch)
        busy = max(workers, 1) * size * (head.view.row_bytes + out_bytes)
        ahead = (prefetch or default_ahead(head, size, max(workers, 1))) * size * out_bytes
        order = 8 * (head.view.length or 0) * any(isinstance(pick, Shuffle) for pick in head.view.picks)
        total += busy + ahead + order
        parts.append(
            f"{bytes_text(busy)} in workers, {bytes_text(ahead)} ahead"
            + (f", {bytes_text(order)} of order" * bool(order))
        )
    for stage in _locals(plan):
        if isinstance(stage, Shuffle) and stage.buffer is not None:
            total += stage.buffer * out_bytes
            parts.append(f"{bytes_text(stage.buffer * out_bytes)} of shuffle buffer")
    return [f"memory about {bytes_text(total)}: {'; '.join(parts)}"]


def _heads(plan: Plan, batch: int | None) -> Iterator[tuple[Head, int | None]]:
    if isinstance(plan, Head):
        yield plan, batch
        return
    size = plan.stage.size if isinstance(plan.stage, Batch) else batch
    for source in plan.sources:
        yield from _heads(source, size)


def _locals(plan: Plan) -> Iterator[Stage]:
    if not isinstance(plan, Head):
        yield plan.stage
        for source in plan.sources:
            yield from _locals(source)


def _probe(plan: Plan) -> Any:
    """One row of the result; None when it cannot be known."""
    try:
        with own_streams():
            row = terminals.dry_run(plan, 1)
    except Exception:  # a function that does not like the row, or a cache that is not there yet
        return None
    return row if is_data(row) and row.shape and row.shape[0] == 1 else None


def _plural(count: int, unit: str) -> str:
    return f"{count:,} {unit}" + ("" if count == 1 else "es" if unit.endswith("ch") else "s")


def _count(rows: int | None) -> str:
    return "rows" if rows is None else _plural(rows, "row")


class Explanation:
    """The plan of a pipeline. `str()` of it is text, `svg` a picture, which notebooks show."""

    def __init__(self, pipeline: Pipeline, num_workers: int | None, prefetch: int | None, probe: bool) -> None:
        workers = usable_cores() if num_workers is None else num_workers
        self.pipeline = pipeline.describe()
        self.box = explain(pipeline, workers, prefetch, probe)

    def __str__(self) -> str:
        return f"{self.pipeline}\n{as_text(self.box)}"

    __repr__ = __str__

    @property
    def svg(self) -> str:
        """The picture, as text of an SVG file."""
        return as_svg(self.box)

    def _repr_svg_(self) -> str:
        return self.svg


# -- text ----------------------------------------------------------------------------------------------


def as_text(box: Box, depth: int = 0) -> str:
    """The boxes as lines, input first.

    Example:
        >>> print(as_text(Box("result", "result", [], ["3 rows"], [Box("rows", "a dataset")])))
        rows     a dataset
        result   3 rows
    """
    lines: list[str] = []
    many = len(box.above) > 1
    for number, above in enumerate(box.above, 1):
        if many:
            lines.append("  " * depth + f"input {number}")
        lines.append(as_text(above, depth + many))
    pad = "  " * depth
    title = [] if box.kind == "result" else [box.title]
    body = [*title, *(f"  {stage}" for stage in box.stages), *(f"  - {fact}" if title else fact for fact in box.facts)]
    label = f"{box.kind:<9}"
    for number, line in enumerate(body):
        lines.append(f"{pad}{label if number == 0 else ' ' * 9}{line}".rstrip())
    return "\n".join(lines)


# -- picture -------------------------------------------------------------------------------------------

CHAR, LINE, PAD, GAP = 7.3, 17, 10, 26


def as_svg(box: Box) -> str:
    """The boxes as a picture, input on top."""
    width, height, shapes = _layout(box)
    style = (
        "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#202124}.t{font-weight:600}"
        ".f{fill:#5f6368}rect{stroke:#9aa0a6}.a{stroke:#5f6368;fill:none;marker-end:url(#tdmap-arrow)}"
    )
    marker = (
        '<defs><marker id="tdmap-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#5f6368;stroke:none"/></marker></defs>'
    )
    body = "".join(_draw(shape, 8, 8) for shape in shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 16:.0f}" height="{height + 16:.0f}" '
        f'viewBox="0 0 {width + 16:.0f} {height + 16:.0f}"><style>{style}</style>{marker}{body}</svg>'
    )


def _lines(box: Box) -> list[tuple[str, str]]:
    return [("t", box.title), *(("s", stage) for stage in box.stages), *(("f", fact) for fact in box.facts)]


def _layout(box: Box) -> tuple[float, float, list[tuple[str, Any]]]:
    own_width = max(len(text) for _, text in _lines(box)) * CHAR + 2 * PAD
    own_height = len(_lines(box)) * LINE + 2 * PAD - 4
    parts = [_layout(above) for above in box.above]
    above_width = sum(width for width, _, _ in parts) + GAP * max(len(parts) - 1, 0)
    above_height = max((height for _, height, _ in parts), default=0.0)
    width = max(own_width, above_width)
    top = above_height + GAP if parts else 0.0
    shapes: list[tuple[str, Any]] = []
    left = (width - above_width) / 2
    for part_width, part_height, part_shapes in parts:
        dy = above_height - part_height
        shapes += [(kind, _moved(kind, value, left, dy)) for kind, value in part_shapes]
        shapes.append(("arrow", (left + part_width / 2, above_height, width / 2, top)))
        left += part_width + GAP
    shapes.append(("box", ((width - own_width) / 2, top, own_width, own_height, box)))
    return width, top + own_height, shapes


def _moved(kind: str, value: Any, dx: float, dy: float) -> Any:
    if kind == "arrow":
        x0, y0, x1, y1 = value
        return x0 + dx, y0 + dy, x1 + dx, y1 + dy
    x, y, *rest = value
    return (x + dx, y + dy, *rest)


def _draw(shape: tuple[str, Any], dx: float, dy: float) -> str:
    kind, value = shape[0], _moved(*shape, dx, dy)
    if kind == "arrow":
        x0, y0, x1, y1 = value
        middle = (y0 + y1) / 2
        return f'<path class="a" d="M{x0:.1f} {y0:.1f}C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"/>'
    x, y, width, height, box = value
    out = [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6" fill="{COLORS[box.kind]}"/>'
    ]
    for number, (style, text) in enumerate(_lines(box)):
        down = y + PAD + 10 + number * LINE
        out.append(f'<text class="{style}" x="{x + PAD:.1f}" y="{down:.1f}">{html.escape(text)}</text>')
    return "".join(out)
