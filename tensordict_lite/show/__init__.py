"""Printed forms of collections: ``repr`` and notebooks."""
