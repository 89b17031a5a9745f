"""Executors run the chunks of a job: one kind a file."""
