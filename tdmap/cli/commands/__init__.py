"""The commands: one file each, or a few that are alike. Importing one adds it to the application."""

from __future__ import annotations

from tdmap.cli.commands import (
    convert,
    datasets,
    head,
    info,
    machine,
    map,
    profile,
    stats,
    status,
)

__all__ = [
    "convert",
    "datasets",
    "head",
    "info",
    "machine",
    "map",
    "profile",
    "stats",
    "status",
]
