"""What `tdmap.join` is made of.

lookup    where the rows with a key are in the second dataset
placing   pairs of rows ──► their place in the output, where both sides are plain columns
chunks    pairs of rows as collections, for entries that are more than that
"""
