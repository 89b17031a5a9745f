"""Trees whose tensors are all views of one piece of memory, or of one file.

===============  ======================================================================================
``layout.py``    which tensor is where in the storage: made for a tree, and turned back into tensors
``build.py``     :func:`consolidate`: room in memory or in a file, and the copies
``record.py``    what a consolidated tree knows about itself: is it so still, pickling, moving
``metadata.py``  a tree as the JSON at the end of a file, and back, checked
``files.py``     :func:`from_consolidated`: a file mapped and read
===============  ======================================================================================
"""

from __future__ import annotations

from tensordict_lite.consolidated.build import consolidate
from tensordict_lite.consolidated.files import from_consolidated

__all__ = ["consolidate", "from_consolidated"]
