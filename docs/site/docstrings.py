"""Docstrings as they are written here: ``Example:`` is a section, roles of Sphinx are plain names."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)
_ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc|obj):`~?([^`]+)`")


class Docstrings(griffe.Extension):
    """Rewrites the docstring of every object."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each object, when it has been read."""
        if obj.docstring is not None:
            text = _EXAMPLE.sub(r"\1Examples:", obj.docstring.value)
            obj.docstring.value = _ROLE.sub(lambda match: f"`{match.group(1).rsplit('.', 1)[-1]}`", text)
