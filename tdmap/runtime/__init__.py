"""Scheduling, processes and shared memory: everything between a job and its result."""
