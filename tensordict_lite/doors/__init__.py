"""Methods whose work is done in rooms above: each imports that room when it is called, and these files alone may."""
