"""Rows one after the other: `map_iter` and its iterator, copies ahead to a device, samplers for loaders."""
