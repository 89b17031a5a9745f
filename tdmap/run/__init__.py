"""One call of an operation: its options and context, what tells it from others, and the log that it resumes from."""
