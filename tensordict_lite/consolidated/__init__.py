"""Trees whose tensors are all views of one storage, in memory or in a file.

===============  ======================================================================================
``layout.py``    positions of tensors in the storage: computed for a tree, and turned back into tensors
``build.py``     :func:`consolidate`: allocation in memory or in a file, and the copies
``record.py``    the record of a consolidated tree: validity, pickling, moving
``metadata.py``  a tree as the JSON at the end of a file, and back, checked
``files.py``     :func:`from_consolidated`: maps and reads a file
===============  ======================================================================================
"""

from __future__ import annotations

from tensordict_lite.consolidated.build import consolidate
from tensordict_lite.consolidated.files import from_consolidated

__all__ = ["consolidate", "from_consolidated"]
