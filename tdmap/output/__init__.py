"""Where the rows of an operation go: memory, a folder, a dataset that exists, shards, a store."""
