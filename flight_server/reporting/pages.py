"""Pages: the part of a long report that a request asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Self

from flight_server.protocol import Body, Fields, InJson, check_dataset_name, integer, one_of, parse_json

MAX_PAGE = 1000
_MAX_FIRST = 1 << 31
_NUMBER = re.compile("[0-9]{1,15}")


@dataclass(frozen=True)
class Page(Body):
    """The part of a long answer that is asked for; ``dataset`` None for all datasets."""

    dataset: Annotated[str | None, InJson(Fields.any)] = None
    first: Annotated[int, integer(0, _MAX_FIRST)] = 0
    limit: Annotated[int, integer(1, MAX_PAGE)] = MAX_PAGE

    @classmethod
    def parse(cls, data: bytes, what: str) -> Self:
        """The page that an action's body asks for. Raises InvalidRequest."""
        return cls.of(parse_json(data, what), what)

    @classmethod
    def of_query(cls, query: dict[str, str], what: str) -> Self:
        """The page that a URL's query asks for. Raises InvalidRequest."""
        numbers = {
            key: int(text)
            for key, text in query.items()
            if key in ("first", "limit") and _NUMBER.fullmatch(text)
        }
        return cls.of({**query, **numbers}, what)

    def check(self, what: str) -> None:
        super().check(what)
        if self.dataset is not None:
            check_dataset_name(self.dataset)

    def head(self, count: int) -> dict[str, int]:
        return {"first": self.first, "limit": self.limit, "count": count}

    @property
    def part(self) -> slice:
        return slice(self.first, self.first + self.limit)


class DatasetOrder(StrEnum):
    """Of the datasets in ``statistics``. ``ATTENTION``: failed ones, then those that a stream waits for, then by the
    bytes in RAM and on disk.
    """

    NAME = "name"
    ATTENTION = "attention"


@dataclass(frozen=True)
class ListedPage(Page):
    """The part of ``statistics`` that is asked for."""

    contains: Annotated[str, InJson(Fields.text)] = ""
    order: Annotated[DatasetOrder, one_of(DatasetOrder, None)] = DatasetOrder.NAME
