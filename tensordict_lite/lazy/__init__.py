"""Lazy stacks: members that are not joined. Each file overrides one family of operations, member by member."""
