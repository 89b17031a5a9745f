"""Rows: reading them, writing them, and what kinds there are. The only room that knows how collections store them."""
