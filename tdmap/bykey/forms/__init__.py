"""What `GroupBy.agg` understands: names of statistics, and those that need the values of a group in their order."""
