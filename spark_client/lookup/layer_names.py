"""The names of a content's layers among a host's files, and which of them make an image.

A name has the versions that its layer connects, so the names alone say which images a host has; no file says which
one is current, and none can disagree with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_KEY = re.compile(r"(?P<prefix>[0-9a-z]+-[0-9a-f]{20})(w|x(?P<after>[0-9a-f]{14}))(?P<version>[0-9a-f]{14})")


@dataclass(frozen=True)
class LayerName:
    """``after`` is None for a whole layer."""

    after: int | None
    version: int

    def key(self, prefix: str) -> str:
        """The key of the host's file; ``prefix`` is the content's."""
        kind = "w" if self.after is None else f"x{self.after:014x}"
        return f"{prefix}{kind}{self.version:014x}"

    @classmethod
    def parse(cls, key: str) -> LayerName | None:
        found = _KEY.fullmatch(key)
        if found is None:
            return None
        after = None if found["after"] is None else int(found["after"], 16)
        return cls(after, int(found["version"], 16))


def stack(names: Iterable[LayerName], version: int) -> list[LayerName] | None:
    """The layers that make the image of ``version``, or of the last version before it that they make; the lowest first.
    Of several stacks the one over the newest whole layer counts, and then the one with the fewest layers. None if there
    is none.
    """
    best: dict[int, list[LayerName]] = {}
    for name in sorted(names, key=lambda each: (each.version, -1 if each.after is None else each.after)):
        below = [] if name.after is None else best.get(name.after)
        if below is not None and name.version <= version:
            known, found = best.get(name.version), [*below, name]
            if known is None or (-found[0].version, len(found)) < (-known[0].version, len(known)):
                best[name.version] = found
    return best[max(best)] if best else None
