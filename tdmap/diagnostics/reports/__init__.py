"""Profiles for people: tables, pictures, traces, and flame graphs."""
