"""Entries in a dict: the storage of TensorDict and tensorclasses, conversion of values, stack and cat."""

from __future__ import annotations

from tensordict_lite.dense.storage import DenseCollection

__all__ = ["DenseCollection"]
