"""What the core asks of edges, by name: a module that is imported when it is first asked for, and may be absent.

This list is complete. A contract in pyproject.toml checks that the core imports no edge, and `tests/project/edges.py`
deletes each in turn.
"""

from __future__ import annotations

import importlib
from typing import Any

PLACES = {
    "dataset at a URL": "tdmap.stores.remote:members_at",
    "shards in an object store": "tdmap.stores.target:StoreTarget",
    "arrays as rows": "tdmap.stores.arrays:ArraySource",
    "executor of ray": "tdmap.runtime.executors.raycluster:RayCluster",
    "profile as a table": "tdmap.diagnostics.reports.tables:summary",
    "profiles compared": "tdmap.diagnostics.reports.tables:comparison",
    "profile as a picture": "tdmap.diagnostics.reports.pictures:draw_profile",
    "profile as HTML": "tdmap.diagnostics.reports.notebook:render_html",
    "profile as a trace": "tdmap.diagnostics.reports.trace:write_trace",
}
"""Module and name of each."""


def edge(name: str) -> Any:
    """The function or class of an edge.

    Raises:
        ModuleNotFoundError: the edge was left out of this installation.

    Example:
        >>> edge("profile as a trace").__name__
        'write_trace'
    """
    module, _, attribute = PLACES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
