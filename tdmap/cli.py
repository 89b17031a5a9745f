"""The command line; each file beside this one has some of its commands."""

from __future__ import annotations

from tdmap import (
    _entry,
    cli_bench,
    cli_completion,
    cli_convert,
    cli_datasets,
    cli_folds,
    cli_head,
    cli_info,
    cli_map,
    cli_orders,
    cli_profile,
    cli_resume,
    cli_stats,
    cli_top,
)
from tdmap.cli_app import app, become_program

COMMANDS = (
    cli_info,
    cli_head,
    cli_stats,
    cli_map,
    cli_orders,
    cli_folds,
    cli_convert,
    cli_datasets,
    cli_resume,
    cli_top,
    cli_profile,
    cli_bench,
    cli_completion,
)
"""Imported, they add their commands to `app`."""

__all__ = ["app", "main"]


def main() -> None:
    """Entry point of the ``tdmap`` command."""
    become_program()
    _entry.ready()
    app()
