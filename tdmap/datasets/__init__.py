"""Datasets out of what people have, and back: jagged rows, pictures, text, tables and other formats.

Packages that a format needs are imported when it is asked for.
"""

from __future__ import annotations

from tdmap.datasets.jagged import Jagged

__all__ = ["Jagged"]
