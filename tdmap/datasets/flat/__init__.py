"""Bytes and rows of flat values on their way to a place: gathered from anywhere, or copied out of files."""
