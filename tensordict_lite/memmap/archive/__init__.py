"""Datasets in one file: a zip archive whose entries are the files of the folder format.

================  ===================================================================================
``zipformat.py``  the zip format as bytes: headers written, a directory from outside checked
``codec.py``      compression, and decompression within bounds
``write.py``      entries into a file, with several threads
``read.py``       an open archive, mapped
``load.py``       the loader of folders, over the entries of an archive
``api.py``        what users call
================  ===================================================================================
"""

from __future__ import annotations

from tensordict_lite.memmap.archive.api import (
    is_memmap_archive,
    pack_memmap,
    refresh_archive_checksums,
    unpack_memmap,
)

__all__ = ["is_memmap_archive", "pack_memmap", "refresh_archive_checksums", "unpack_memmap"]
