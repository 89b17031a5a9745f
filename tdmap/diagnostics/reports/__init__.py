"""Profiles for people: tables, pictures and traces."""
