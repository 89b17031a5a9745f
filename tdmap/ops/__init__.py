"""What users call: each maps rows to rows, over a `Job` or several."""
