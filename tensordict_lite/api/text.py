"""Methods that write a collection as text."""

from __future__ import annotations

from tensordict_lite.kernel import Kernel


class TextOps(Kernel):
    """Adds the forms that ``print`` and notebooks show."""

    __slots__ = ()

    def __repr__(self) -> str:
        from tensordict_lite.show.printing import render

        return render(self)

    def _repr_html_(self) -> str | None:
        """What notebooks show: see :mod:`tensordict_lite.show.html`."""
        from tensordict_lite.show.printing import render_html

        return render_html(self)
