"""Where results go: one file a sink."""

from __future__ import annotations

from tdmap.sinks.base import Allocate, PlainSink, Sink
from tdmap.sinks.collect import Collect
from tdmap.sinks.fold import Fold
from tdmap.sinks.folder import Folder
from tdmap.sinks.gather import Gather
from tdmap.sinks.preallocated import InPlace, Preallocated
from tdmap.sinks.stream import Stream

__all__ = ["Allocate", "Collect", "Fold", "Folder", "Gather", "InPlace", "PlainSink", "Preallocated", "Sink", "Stream"]
