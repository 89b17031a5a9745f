"""The commands ``tdmap ingest images FOLDER OUT`` and others that make datasets out of what people have."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap.cli.answers import FAILED, Commands, answer, asked, say
from tdmap.cli.app import app
from tdmap.cli.requests import guard, refuse

SHOWN = 10
"""Files left out that are printed."""

RESUMES = "completed rows are kept, and the same command resumes from there"

ingest_app = typer.Typer(
    cls=Commands, rich_markup_mode=None, no_args_is_help=True, help="Make a dataset of a folder of files."
)
app.add_typer(ingest_app, name="ingest")


@ingest_app.callback()
def _ingest() -> None:
    pass


@ingest_app.command("images")
def ingest_images(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of images; its subfolders are the classes.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the dataset.")],
    size: Annotated[
        str | None, typer.Option(help="Pixels, or HEIGHTxWIDTH. Default: keep the size of each image.")
    ] = None,
    resize: Annotated[str, typer.Option(help="crop, pad, exact or shorter.")] = "crop",
    mode: Annotated[str, typer.Option(help="RGB, L or RGBA.")] = "RGB",
    keep: Annotated[
        str, typer.Option(help="decoded: store pixels; encoded: store the bytes of the files.")
    ] = "decoded",
    labels: Annotated[Path | None, typer.Option(help="CSV or JSONL with a file and a label in each line.")] = None,
    num_workers: Annotated[
        int | None, typer.Option(min=0, help="Number of processes. Default: the usable cores.")
    ] = None,
    max_pixels: Annotated[int, typer.Option(min=1, help="Reject larger images.")] = 89_478_485,
    on_error: Annotated[
        str, typer.Option(help="raise; or skip: leave out files that cannot be read, and list them.")
    ] = "raise",
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Start again, and replace the dataset in OUT when the new one is complete."),
    ] = False,
    preview: Annotated[
        Path | None, typer.Option(help="Draw a contact sheet into this file, such as sheet.png.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar, no summary.")] = False,
) -> None:
    """Decode and scale the images of a folder into a memory-mapped dataset, on several processes.

    The same command resumes an interrupted run.
    """
    from tdmap.datasets import images
    from tdmap.errors import FolderInUse, ResumeMismatch, UntrustedFile

    refusals = (ImportError, ValueError, FileNotFoundError, FileExistsError, FolderInUse, ResumeMismatch, UntrustedFile)
    options: dict[str, Any] = {
        "size": _parse_size(size),
        "resize": resize,
        "mode": mode,
        "keep": keep,
        "labels": labels,
        "max_pixels": max_pixels,
        "on_error": on_error,
        "overwrite": overwrite,
        "num_workers": num_workers,
        "pbar": not quiet and not asked().json,
    }
    state = f"what was in {out} is as it was" if overwrite else RESUMES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", images.SkippedPictures)
        pictures = guard(lambda: _ingested(images, folder, out, options, state), state, refusals)
    if preview is not None:
        guard(lambda: pictures.preview(preview), "the dataset is complete", (ValueError, OSError))
    if pictures.skipped:
        _print_skipped(pictures.skipped, out / "skipped.jsonl")
    classes = f" in {len(pictures.classes)} classes" if pictures.classes else ""
    ignored = pictures.about["ignored"]
    others = f" ({ignored:,} other files were not looked at)" if ignored else ""
    line = f"{len(pictures):,} pictures{classes} written to {out}{others}"
    facts = {"rows": len(pictures), "classes": list(pictures.classes or ()), "ignored": ignored, "out": out}
    left_out = [{"file": name, "reason": reason} for name, reason in pictures.skipped or ()]
    answer({**facts, "skipped": left_out}, *([] if quiet else [line]))


def _ingested(images: Any, folder: Path, out: Path, options: dict[str, Any], state: str) -> Any:
    """The dataset; a file that cannot be read is one line instead of a traceback."""
    try:
        return images.ingest(folder, out, **options)
    except images.PictureError as error:
        say(f"{error} (--on-error skip leaves such files out)")
        say(f"the run failed; {state}")
        raise typer.Exit(FAILED) from None


def _parse_size(text: str | None) -> int | tuple[int, int] | None:
    if text is None:
        return None
    parts = text.lower().split("x")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() and int(part) for part in parts):
        refuse(f"--size {text!r}: give pixels, such as 224, or HEIGHTxWIDTH, such as 224x320")
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


def _print_skipped(skipped: list[tuple[str, str]], place: Path) -> None:
    from tdmap.memory.hidden import printable

    say(f"{len(skipped):,} files were left out:")
    for name, reason in skipped[:SHOWN]:
        typer.echo(f"  {printable(name)}: {printable(reason)}", err=True)
    more = f"  and {len(skipped) - SHOWN:,} more; " if len(skipped) > SHOWN else "  "
    typer.echo(f"{more}all of them: {place}", err=True)
