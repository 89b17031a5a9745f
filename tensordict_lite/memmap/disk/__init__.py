"""Files of a dataset, with no collection in them: mappings, names, folders that appear whole, the format as data."""
