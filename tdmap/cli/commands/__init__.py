"""The commands: one file each, or a few that are alike. Importing one adds it to the application."""

from __future__ import annotations

from tdmap.cli.commands import (
    bench,
    cache,
    completion,
    convert,
    datasets,
    doctor,
    folds,
    head,
    info,
    map,
    orders,
    profile,
    resume,
    stats,
    top,
)

__all__ = [
    "bench",
    "cache",
    "completion",
    "convert",
    "datasets",
    "doctor",
    "folds",
    "head",
    "info",
    "map",
    "orders",
    "profile",
    "resume",
    "stats",
    "top",
]
