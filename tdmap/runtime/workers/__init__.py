"""Processes that run jobs: how they are started, kept, controlled and ended."""
