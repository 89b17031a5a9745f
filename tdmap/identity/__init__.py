"""What tells one function from another, in every process: its own code, and that of the user's that it reaches."""
