"""Collections as text, for people: ``print``, notebooks, and text read back."""
