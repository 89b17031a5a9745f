"""One call of an operation: its options and context, what tells it from other calls, and the log that it resumes from."""
