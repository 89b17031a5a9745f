"""Tests that implementations of the public protocols must pass, for tdmap's own and for others."""
