"""Files of a dataset, without collections: mappings, names, atomic replacement of folders, the format as data."""
