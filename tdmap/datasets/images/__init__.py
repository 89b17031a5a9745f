"""Folders of pictures as memory-mapped datasets, and back."""

from __future__ import annotations

from tdmap.datasets.images.ingesting import SkippedPictures, ingest
from tdmap.datasets.images.pictures import Pictures
from tdmap.datasets.images.pixels import PictureError

__all__ = ["PictureError", "Pictures", "SkippedPictures", "ingest"]
