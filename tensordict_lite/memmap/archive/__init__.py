"""Datasets in one file: a zip archive whose entries are the files of the folder format.

============  ==========================================================================================
``read.py``   an open archive, mapped: its checked directory, and bounded decompression
``write.py``  writing entries to a file with several threads
``load.py``   the loader of folders for the entries of an archive
``api.py``    the public functions
============  ==========================================================================================
"""

from __future__ import annotations

from tensordict_lite.memmap.archive.api import (
    is_memmap_archive,
    pack_memmap,
    refresh_archive_checksums,
    unpack_memmap,
)

__all__ = ["is_memmap_archive", "pack_memmap", "refresh_archive_checksums", "unpack_memmap"]
