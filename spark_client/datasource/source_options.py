"""The options of the data source, checked: a wrong one is named, with the options that there are.

Spark gives all of them as text, and their names in lower case. Underscores in names do not count: ``maxRowsPerTrigger``
is ``max_rows_per_trigger``.

Defaults
    Those of the session's ShuffleClient, if it has registered the source: its server, token, certificates and
    settings. With the location of another server none of them are used: the token is not for that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flight_server.protocol import InvalidRequest, Transaction, nearest
from spark_client.connection import RemoteServer, ServerOptions
from spark_client.servers import owner_of
from spark_client.settings import (
    ANY_READ,
    BATCH_READ,
    BATCH_WRITE,
    OF_SPARK,
    SESSION,
    STREAM_READ,
    STREAM_WRITE,
    Option,
    of_values,
    options_of,
)

_OPTIONS = options_of(BATCH_READ, BATCH_WRITE, STREAM_READ, STREAM_WRITE)
_SPELLED = {name.replace("_", ""): name for name in _OPTIONS}


class SourceOptions:
    """The options of one use of the source, by :meth:`get`. Raises InvalidRequest: an option that this use does not
    have, or a value that it cannot have; also of the methods.
    """

    def __init__(
        self, texts: Mapping[str, str], use: str, defaults: RemoteServer | None = None, location: str = ""
    ) -> None:
        self._defaults = defaults
        self._location = location or ("" if defaults is None else defaults.location)
        self._values: dict[str, Any] = {}
        self._use = use
        options = options_of(BATCH_READ, STREAM_READ) if use == ANY_READ else options_of(use)
        for name, text in texts.items():
            known = _option_name(name)
            option = options.get(known)
            if option is None:
                raise _unknown(name, use, options)
            if known in self._values:
                raise InvalidRequest(f"{use}: option {known!r} is given in two spellings")
            try:
                self._values[known] = option.parse(text)
            except InvalidRequest:
                raise
            except ValueError as error:
                raise InvalidRequest(f"option {name!r} of {use} is {error}, not {text!r}") from error
        if "location" not in self._values and defaults is None:
            raise InvalidRequest(
                f'{use}: name the server by .option("location", "grpc://host:8815"), or call '
                "ShuffleClient.getOrCreate(spark) before, with spark.flight.shuffle.location set"
            )
        if "token" in self._values and "token_file" in self._values:
            raise InvalidRequest(f"{use}: give one of the options 'token' and 'token_file'")
        if ("transaction_app" in self._values) != ("transaction_version" in self._values):
            raise InvalidRequest(f"{use}: options 'transaction_app' and 'transaction_version' go together")
        if "path" not in self._values:
            how = {BATCH_WRITE: "save", STREAM_WRITE: "start"}.get(use, "load")
            raise InvalidRequest(f'{use}: name the dataset, as in .{how}("countries")')

    @property
    def dataset(self) -> str:
        return str(self._values["path"])

    def get(self, name: str) -> Any:
        return self._values.get(name, _OPTIONS[name].default)

    @property
    def transaction(self) -> Transaction | None:
        """The transaction, which makes a write happen once, if it is given."""
        app, version = self.get("transaction_app"), self.get("transaction_version")
        return None if app is None or version is None else Transaction(app, version)

    def refuse(self, options: Iterable[Option], why: str) -> None:
        """Raise InvalidRequest if one of these options is given."""
        names = [option.name for option in options if option.name in self._values]
        if names:
            raise InvalidRequest(
                f"{self._use}: dataset {self.dataset!r} {why}, so it takes no option {names[0]!r}",
                dataset=self.dataset,
                option=names[0],
            )

    def server(self) -> RemoteServer:
        """The server of the dataset, not connected yet. Patient from the first call on, if the session's client, or
        the ``load`` of a stream, has reached it: a running stream plans each batch in a new process, also while its
        server restarts. So it plans the writes of its ``foreachBatch``, which name a transaction. A server that is
        embedded in a client does not restart.
        """
        text = self._values.get("location", self._location)
        base, is_embedded, is_direct = ServerOptions(), False, False
        is_reached = self._use in (STREAM_READ, STREAM_WRITE) or self.transaction is not None
        if (own := self._defaults) is not None and text == self._location:
            base, is_embedded, is_direct, is_reached = own.options, own.embedded, own.direct, True
        location, options = owner_of(self.dataset, text.split(",")), of_values(self._values, base)
        server = RemoteServer(location, embedded=is_embedded, direct=is_direct, **options)
        server.patient = is_reached
        return server


def _option_name(name: str) -> str:
    return _SPELLED.get(name.lower().replace("_", ""), name.lower())


def _unknown(name: str, use: str, options: Mapping[str, Option]) -> InvalidRequest:
    if name.lower() == "paths":
        return InvalidRequest(
            f'{use} takes one dataset, as in .load("countries"); read several and union them'
        )
    known = sorted(options.keys() - {option.name for option in OF_SPARK})
    elsewhere = _OPTIONS.get(_option_name(name))
    near = nearest(name, known)
    if elsewhere is not None:
        hint = f", which is one of {' and '.join(sorted(elsewhere.uses - {SESSION}))}"
    else:
        hint = "" if near is None else f" (did you mean {near!r}?)"
    return InvalidRequest(
        f"{use} of format 'flight' has no option {name!r}{hint}; it has {', '.join(known)}", option=name
    )
