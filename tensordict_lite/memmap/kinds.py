"""How each class of collections is laid out on disk: one planner to save it, one reader to load it.

The dense layout is in ``plan.py`` and ``load.py``. The others are here, and are hooked up when their classes
are first needed, so that the format itself imports none of them.
"""

from __future__ import annotations

import os
import pickle
import stat
from typing import Any

import torch

from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.format import META, NodeMeta
from tensordict_lite.memmap.load import Loader, register_reader
from tensordict_lite.memmap.plan import Folder, Plan, holds_json, pickled, plan_dense, register_planner

__all__ = ["ensure_registered"]

_done = False


def ensure_registered() -> None:
    """Makes the layouts of the classes of this package known, once."""
    global _done
    if _done:
        return
    from tensordict_lite.nontensor import NonTensorData
    from tensordict_lite.tensordict import TensorDict

    register_planner(TensorDict, plan_dense)
    register_planner(NonTensorData, plan_nontensor)
    register_reader("nontensor", read_nontensor)
    _done = True


def plan_nontensor(plan: Plan, node: Any, path: str, where: tuple[str, ...]) -> str:
    """One object: in the metadata where JSON can hold it, in ``other.pickle`` otherwise."""
    meta: dict[str, Any] = {"_type": "<class 'tensordict.tensorclass.NonTensorData'>"}
    folder = Folder(node, path, meta)
    value = node._payload
    if holds_json(value):
        meta["data"] = value
    else:
        folder.blobs["other.pickle"] = pickled(plan, {"data": value}, where)
    meta["_metadata"] = None
    meta["_is_non_tensor"] = True
    if path:
        plan.claim(path, where)
    plan.folders.append(folder)
    return "NonTensorData"


def read_nontensor(loader: Loader, meta: NodeMeta, lead: torch.Size | None) -> Any:
    """The object of :func:`plan_nontensor`, for the whole batch of its parent."""
    from tensordict_lite.nontensor import NonTensorData

    if "data" in meta.raw:
        value = meta.raw["data"]
    else:
        value = _unpickle(loader, meta.path, "other.pickle")
        if type(value) is not dict or "data" not in value:
            raise DatasetError(meta.path + "/other.pickle", "does not hold the object of a non-tensor entry")
        value = value["data"]
    return NonTensorData(
        value, batch_size=torch.Size(()) if lead is None else lead, device=loader.device or "cpu"
    )


def _unpickle(loader: Loader, folder: str, name: str) -> Any:
    """Opens a pickle, if the caller has said that this dataset is trusted."""
    path = f"{folder}/{name}"
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        raise DatasetError(folder + "/" + META, "describes non-tensor data that is nowhere") from None
    if not stat.S_ISREG(mode):
        raise DatasetError(path, "is not a regular file")
    if not loader.allow_pickle:
        raise DatasetError(
            path,
            "holds pickled data, which can run any code when it is opened. Pass allow_pickle=True only if you trust "
            "whoever wrote this dataset",
        )
    with open(path, "rb") as file:
        try:
            return pickle.load(file)
        except Exception as err:
            raise DatasetError(path, f"cannot be unpickled ({type(err).__name__}: {err})") from err
