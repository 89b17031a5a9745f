"""Recreating a TensorDict from its printed form, for example from a log."""

from __future__ import annotations

import re
from typing import Any

import torch

from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.show.options import SHORT_DTYPES

_DTYPES = {short: dtype for dtype, short in SHORT_DTYPES.items()}
_LEAF = re.compile(r"([a-z]+\d*(?:_\w+)?)\[([-\d,]*)\](?:@([\w:]+))?")
_SIZE = re.compile(r"\[([\d, ]*)\]")
_TENSOR = re.compile(r"(?:\w*Tensor|Parameter|Buffer)\(([^()]*(?:\([^()]*\)[^()]*)*)\)")


def parse_tensor_dict_string(s: str) -> TensorDict:
    """A zero-filled TensorDict with the keys, shapes, dtypes, devices and batch sizes of a printed one.

    Args:
        s: ``repr`` of a TensorDict, compact or (``set_printoptions(compact=False)``) detailed.

    Raises:
        ValueError: a field is neither a tensor nor a TensorDict, or the text is not such a ``repr``.

    Example:
        >>> td = parse_tensor_dict_string("TensorDict(batch_size=[3], fields={a: f32[4], b: {c: i64[]}})")
        >>> td["b", "c"]
        tensor([0, 0, 0])
    """
    text = s.strip()
    parser = _Detailed(text) if re.match(r"\w+\(\s*\n\s*fields=", text) else _Compact(text)
    return parser.parse()


def _ints(text: str) -> list[int]:
    return [int(n) for n in text.replace(" ", "").split(",") if n]


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self) -> ValueError:
        rest = self.text[self.at : self.at + 60].split("\n")[0]
        return ValueError(
            f"cannot parse the text at {rest!r}: parse_tensor_dict_string reads Tensor and TensorDict fields as they "
            "are printed by default or with compact=False"
        )

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \n\t,":
            self.at += 1

    def take(self, pattern: str | re.Pattern[str]) -> re.Match[str]:
        self.skip()
        match = re.compile(pattern).match(self.text, self.at)
        if match is None:
            raise self.fail()
        self.at = match.end()
        return match

    def sees(self, pattern: str | re.Pattern[str]) -> bool:
        self.skip()
        return re.compile(pattern).match(self.text, self.at) is not None


class _Compact(_Reader):
    def parse(self) -> TensorDict:
        self.take(r"TensorDict\(")
        size: list[int] = []
        device = None
        while not self.sees(r"fields="):
            name = self.take(r"(batch_size|device)=")[1]
            if name == "batch_size":
                size = _ints(self.take(_SIZE)[1])
            else:
                device = self.take(r"[\w:]+")[0]
        self.take(r"fields=")
        td = self.fields(size, device)
        self.take(r"\)")
        return td

    def fields(self, size: list[int], device: str | None) -> TensorDict:
        td = TensorDict({}, batch_size=size, device=device)
        self.take(r"\{")
        while not self.sees(r"\}"):
            key = self.take(r"([^:{}]*): ")[1]
            if self.sees(r"(?:\[[\d,]*\])?\{"):
                extra = _ints(self.take(_SIZE)[1]) if self.sees(r"\[") else []
                td.set(key, self.fields([*size, *extra], device))
            else:
                leaf = self.take(_LEAF)
                if leaf[1] not in _DTYPES:
                    raise self.fail()
                shape = [*size, *_ints(leaf[2])]
                td.set(key, torch.zeros(shape, dtype=_DTYPES[leaf[1]], device=leaf[3] or device))
        self.take(r"\}")
        return td


class _Detailed(_Reader):
    def parse(self) -> TensorDict:
        self.take(r"TensorDict\(")
        self.take(r"fields=\{")
        entries: dict[str, Any] = {}
        while not self.sees(r"\}"):
            key = self.take(r"([^:{}]*): ")[1]
            entries[key] = self.parse() if self.sees(r"TensorDict\(") else self.tensor()
        self.take(r"\}")
        size: list[int] = []
        device = None
        while not self.sees(r"\)"):
            name = self.take(r"(\w+)=")[1]
            if name == "batch_size":
                size = _ints(self.take(r"torch\.Size\(\[([\d, ]*)\]\)")[1])
            else:
                value = self.take(r"[\w:]+")[0]
                device = value if name == "device" and value != "None" else device
        self.take(r"\)")
        return TensorDict(entries, batch_size=size, device=device)

    def tensor(self) -> torch.Tensor:
        inside = self.take(_TENSOR)[1]
        shape = re.search(r"shape=torch\.Size\(\[([\d, ]*)\]\)", inside)
        if shape is None:
            raise self.fail()
        dtype = re.search(r"dtype=torch\.(\w+)", inside)
        device = re.search(r"device=([\w:]+)", inside)
        return torch.zeros(
            _ints(shape[1]), dtype=getattr(torch, dtype[1]) if dtype else None, device=device[1] if device else None
        )
