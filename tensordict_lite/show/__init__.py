"""Printed forms of collections: ``repr``, notebooks, and parsing of printed text."""
