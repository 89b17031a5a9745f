"""Callbacks that watch jobs."""
