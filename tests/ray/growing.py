"""A function that two programs know by the same name."""

from tensordict_lite import TensorDict


def fn(chunk: TensorDict) -> None:
    """One more, in place."""
    chunk["x"].add_(1)
