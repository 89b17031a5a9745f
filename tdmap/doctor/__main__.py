"""`python -m tdmap.doctor`: the command `tdmap doctor`."""

from __future__ import annotations

import sys

from tdmap.cli.app import main


def run() -> None:
    """The command, with the arguments of this program."""
    sys.argv = ["tdmap", "doctor", *sys.argv[1:]]
    main()


run()
