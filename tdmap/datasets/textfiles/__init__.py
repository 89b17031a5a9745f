"""CSV and JSON Lines: blocks of whole rows, whose types are found out or given."""
