"""``tdmap cache list`` and ``tdmap cache prune``: the results that ``map(..., cache=True)`` keeps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from tdmap.cli.answers import Commands, answer
from tdmap.cli.app import app, end_with_reader
from tdmap.cli.describe import human_bytes
from tdmap.cli.requests import refuse

cache = typer.Typer(
    cls=Commands, rich_markup_mode=None, no_args_is_help=True, help="The results that map(..., cache=True) keeps."
)
app.add_typer(cache, name="cache")

FolderOption = Annotated[Path | None, typer.Option(help="The cache. Default: $TDMAP_CACHE or ~/.cache/tdmap/maps.")]

DAY = 86_400


@cache.command("list")
def list_command(folder: FolderOption = None) -> None:
    """List what is kept, what was used last at the end."""
    from tdmap.resume.cached import cache_folder, kept_results

    end_with_reader()
    root = cache_folder(folder or True)
    results = kept_results(root)
    lines = []
    for kept in results:
        state = "" if kept.is_whole else "  (unfinished)"
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(kept.used))
        lines.append(f"{used}  {human_bytes(kept.nbytes):>10}  {kept.path.name}{state}")
    total = sum(kept.nbytes for kept in results)
    facts = [{"path": k.path, "bytes": k.nbytes, "used": k.used, "is_whole": k.is_whole} for k in results]
    last = f"{len(results)} results, {human_bytes(total)}, in {root}"
    answer({"folder": root, "results": facts, "bytes": total}, *lines, last)


@cache.command("prune")
def prune_command(
    folder: FolderOption = None,
    older_than: Annotated[float | None, typer.Option(help="Days since a result was used.")] = None,
    max_size: Annotated[float | None, typer.Option(help="GB that may stay; what was used last stays.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all results.")] = False,
) -> None:
    """Remove results, those first that have not been used for longest."""
    from tdmap.resume.cached import cache_folder, prune

    if everything is (older_than is not None or max_size is not None):
        refuse("give --older-than, --max-size or both; or --all")
    limit = 0 if everything else None if max_size is None else int(max_size * 1e9)
    removed = prune(cache_folder(folder or True), limit, None if older_than is None else older_than * DAY)
    total = sum(kept.nbytes for kept in removed)
    facts = {"removed": [kept.path for kept in removed], "bytes": total}
    answer(facts, f"{len(removed)} results removed, {human_bytes(total)}")
