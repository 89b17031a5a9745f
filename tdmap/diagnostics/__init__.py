"""Callbacks that watch jobs."""

import tensordict_lite  # noqa: F401  # first: it says which systems it needs
from tdmap.diagnostics.jobfiles import StatusFile as StatusFile
