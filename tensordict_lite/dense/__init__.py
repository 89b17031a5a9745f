"""Entries in a dict: the storage that TensorDict and tensorclasses share, values made to fit, stack and cat."""

from __future__ import annotations

from tensordict_lite.dense.storage import DenseCollection, _blank

__all__ = ["DenseCollection", "_blank"]
