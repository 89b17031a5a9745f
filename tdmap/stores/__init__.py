"""Rows in object stores, HDF5 files and Zarr stores, and shards written to object stores."""
