"""The documented place of `permute`; see `tdmap.operations.permute`."""

from __future__ import annotations

from tdmap.operations.permute import permute as permute
