"""What torch calls on a collection: ``torch.stack(tds)``, pytrees, ``vmap``."""
