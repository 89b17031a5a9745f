"""``python -m tdmap`` is the command ``tdmap``."""

from __future__ import annotations

from tdmap.cli import main

if __name__ == "__main__":
    main()
