"""Non-tensor entries, and entries without the batch dimensions: strings, objects, columns of them, metadata."""
