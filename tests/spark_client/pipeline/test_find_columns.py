"""Names of columns."""

from __future__ import annotations

from spark_client.pipeline.base import find_columns


class Name(str):
    """Counts how often a name is folded."""

    __slots__ = ()
    folded = 0

    def casefold(self) -> str:
        Name.folded += 1
        return super().casefold()


def test_each_of_many_names_is_looked_at_once() -> None:
    names = [Name(f"C{number}") for number in range(500)]
    found = find_columns([name.lower() for name in names], "here", names, "in a test", exact=False)
    assert found == tuple(names)
    assert Name.folded == len(names)
