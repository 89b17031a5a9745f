"""What a process knows of itself: who made something, who interrupts, which threads torch has."""
