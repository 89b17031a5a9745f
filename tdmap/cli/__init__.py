"""The command line: `tdmap` and `python -m tdmap`."""

from __future__ import annotations

from tdmap.cli import commands as commands  # each adds itself to `app`
from tdmap.cli.app import app as app
from tdmap.cli.app import main as main
