"""Tensordicts between processes, over ``torch.distributed``.

The methods are on every collection: :meth:`~tensordict_lite.TensorDict.send`, ``recv``, ``isend``, ``irecv``,
``asend``, ``arecv``, ``init_remote``, ``from_remote_init``, ``broadcast``, ``all_gather``, ``gather_and_stack``,
``reduce``, ``all_reduce`` and ``scatter``.

==================  ==========================================================================================
``values.py``       values between ranks that hold the same structure, written in place
``trees.py``        collections with their structure
``bundles.py``      small tensors in one message, in an order known to both sides
``parcels.py``      a collection as one message and its large tensors
``link.py``         a process group
==================  ==========================================================================================
"""

from __future__ import annotations

from tensordict_lite.distributed.link import CommunicationError, Pending, UnsendableError

__all__ = ["CommunicationError", "Pending", "UnsendableError"]
