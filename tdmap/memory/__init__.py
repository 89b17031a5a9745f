"""Memory and files that processes share, as bytes: nothing here knows what a row is."""
