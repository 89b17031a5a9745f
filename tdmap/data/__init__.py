"""Rows: reading and writing them, and the kinds of datasets. Only this package knows how collections store rows."""
