"""What crosses the pipe between a driver and its workers, and how objects are packed for it."""
