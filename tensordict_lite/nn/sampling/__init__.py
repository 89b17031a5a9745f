"""How modules with random outputs draw: the type of interaction, modes, generators."""
