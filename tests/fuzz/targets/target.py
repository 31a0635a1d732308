"""Target: a parser that takes bytes from elsewhere, and the errors that it documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from flight_server.protocol import FlightShuffleError

CORPUS = Path(__file__).parents[1] / "corpus"
Call = Callable[[bytes], object]
WORDS = (
    *(
        b"Infinity",
        b"-Infinity",
        b"NaN",
        b"1e999",
        b"-1",
        b"1.5",
        b"true",
        b"null",
        b"[]",
        b"{}",
        b'""',
        b"0" * 20,
    ),
    *(
        b"9" * 20,
        b"9" * 5000,
        b"[" * 2000,
        b'{"a":' * 2000,
        b'"self"',
        b'"\\ud800"',
        b"\xed\xa0\x80",
        b"..",
        b"%2F",
    ),
    *(
        b"\xff\xff\xff\xff",
        b"\xff\xff\xff\x7f",
        b"\0\0\0\x80",
        b"\xff" * 8,
        b"\xff" * 7 + b"\x7f",
        b"\r\n",
        b"\0",
    ),
)
"""Put into inputs: numbers at the ends of their types, and texts on which parsers differ."""


@dataclass(frozen=True)
class Target:
    """A parser under test.

    Args:
        opened: what the calls need; gives the call, which takes bytes. It also compares results where it can, with
            assertions.
        samples: real inputs, which are changed.
        documented: the errors that the call may raise. Any other one is a finding.
        most_bytes: of an input.
    """

    name: str
    opened: Callable[[], AbstractContextManager[Call]]
    samples: Callable[[], Sequence[bytes]]
    documented: tuple[type[BaseException], ...] = (FlightShuffleError,)
    most_bytes: int = 4096

    def seeds(self) -> list[bytes]:
        """The samples, and the inputs that were findings once (``corpus``)."""
        return [*self.samples(), *(path.read_bytes() for path in sorted((CORPUS / self.name).glob("*")))]

    @contextmanager
    def running(self) -> Iterator[Call]:
        """The call, which returns for each input that is taken, or refused as documented."""
        with self.opened() as call:

            def guarded(data: bytes) -> None:
                with suppress(*self.documented):
                    call(data)

            yield guarded


def plain(call: Call) -> Callable[[], AbstractContextManager[Call]]:
    """A call that needs nothing opened."""

    @contextmanager
    def opened() -> Iterator[Call]:
        yield call

    return opened
