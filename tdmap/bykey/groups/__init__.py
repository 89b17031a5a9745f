"""What `tdmap.group_by` is made of: the jobs behind its methods."""
