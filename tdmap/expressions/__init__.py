"""Columns in formulas: `tdmap.col("v") > 0` is a predicate that knows what it reads."""

from __future__ import annotations

from tdmap.expressions.column import Expression, col

__all__ = ["Expression", "col"]
