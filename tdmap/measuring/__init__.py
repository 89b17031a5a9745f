"""Measurements of a machine, and of which settings suit a function: what `tdmap bench` runs."""
