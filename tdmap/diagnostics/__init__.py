"""Callbacks that watch jobs."""

from tdmap.diagnostics.jobfiles import StatusFile as StatusFile
