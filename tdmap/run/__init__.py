"""Runs that can be interrupted at any instant: what is remembered of them, and how they go on."""
