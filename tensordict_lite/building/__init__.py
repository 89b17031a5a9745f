"""Collections from other values: dicts, arrays, tuples, batches of samples, pytrees of modules."""
