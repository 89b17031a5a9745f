"""Entries that are no tensors, or that do not have the rows: strings, objects, columns of them, metadata."""
