"""The runs of writes over several servers that were dropped, so that no late put begins one again.

A put creates such a dataset (``PutCreate``). The task of a job that has failed may put, for as long as Spark has not
ended it, after the driver has dropped the dataset: also on a server that had nothing of it.
"""

from __future__ import annotations

from .generations import from_this_process, is_earlier_run

_LENGTH = 16
_MOST = 10_000
"""The last ones are known: as long ones as names may be take some MiB."""


class DroppedRuns:
    """The last generation that was dropped of each of the last writes."""

    def __init__(self) -> None:
        self._generations: dict[str, str] = {}

    def add(self, name: str, generation: str) -> None:
        """The generation was dropped, or would have been. One that this server has drawn no put creates."""
        if len(generation) != _LENGTH or from_this_process(generation):
            return
        before = self._generations.pop(name, generation)
        self._generations[name] = before if is_earlier_run(generation, before) else generation
        if len(self._generations) > _MOST:
            del self._generations[next(iter(self._generations))]

    def has(self, name: str, generation: str) -> bool:
        """Whether this run, or a later one of the same write, was dropped."""
        dropped = self._generations.get(name)
        return dropped is not None and (dropped == generation or is_earlier_run(generation, dropped))
