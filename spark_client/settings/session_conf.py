"""The arguments of a ShuffleClient, read from a session's ``spark.flight.shuffle.*``.

Guarantee: the caller's arguments win over the session, a wrong name or value is named, and no value of a token is in an
error.

Names are those of the client's arguments in Spark's spelling: ``spark.flight.shuffle.leaseSeconds``.

Secrets
    Spark hides the values of names with ``token`` in its pages, its event log and SQL, and Spark Connect's server also
    from its client: there a token is an argument. Spark sends the session's settings, and the functions of the tasks
    with the token in them, to executors over its own connections. With ``tokenFile`` they have only the file's name, as
    they have of the client's certificate and key, which Spark would show.

    A token or certificate of the session belongs to the session's location: with another location they are not used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flight_server.protocol import InvalidRequest, nearest
from spark_client.hosts import Copies

from .client_options import CREDENTIALS, fields_of, of_values
from .option_table import SESSION, options_of
from .texts import EMBEDDED, EXECUTORS, location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = f"{SESSION}."
_SETTINGS = {
    re.sub("_(.)", lambda match: match[1].upper(), name): option
    for name, option in options_of(SESSION).items()
}
_OF_SERVERS = {"offload_to": ("offloadTo", "--offload-to"), "workers": ("workers", "--workers")}
"""Arguments for servers that a client starts: the setting of each, and the server's own flag."""


def session_arguments(spark: SparkSession, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The client's location and options: the ``arguments`` that are not None, and the session's for the others. Without
    a location it is ``embedded`` where Spark's master is local, and ``executors`` elsewhere.

    Raises:
        InvalidRequest: an unknown setting, or a wrong value; a token that Spark Connect hides; the location
            ``embedded`` where Spark's master is not local; or ``offloadTo`` or ``workers`` with servers that run
            already.
    """
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if "location" in arguments:
        arguments["location"] = location(str(arguments["location"]))
    session = _parse(_texts(spark))
    where = session.get("location")
    if "location" in arguments and where is not None and arguments["location"] != where:
        session = {name: value for name, value in session.items() if name not in CREDENTIALS}
    elif "token" not in arguments and "connect" in type(spark).__module__:
        _check_hidden(spark)
    arguments = session | arguments
    is_local = str(spark.conf.get("spark.master", "")).startswith("local")
    arguments.setdefault("location", EMBEDDED if is_local else EXECUTORS)
    if arguments["location"] == EMBEDDED and not is_local:
        raise InvalidRequest(
            f"{PREFIX}location is {EMBEDDED!r}, a server on this host's loopback, but the tasks of "
            f"{spark.conf.get('spark.master', 'this master')} run elsewhere: start a flight-server that all of them "
            "reach, and set its grpc://host:port, or leave it out for servers in the executors"
        )
    for name, (setting, flag) in _OF_SERVERS.items():
        if name in arguments and arguments["location"] not in (EMBEDDED, EXECUTORS):
            raise InvalidRequest(
                f"{PREFIX}{setting} is for servers that a client starts: start those at {arguments['location']} with "
                f"{flag}"
            )
    return arguments


def _texts(spark: SparkSession) -> dict[str, str]:
    """The session's settings, by their names without the prefix; those that Spark shows."""
    texts = {
        name.removeprefix(PREFIX): str(value)
        for name, value in spark.conf.getAll.items()
        if name.startswith(PREFIX)
    }
    for name in texts:
        if name not in _SETTINGS:
            raise _unknown(name)
    return texts


def _check_hidden(spark: SparkSession) -> None:
    for row in spark.sql("SET").collect():
        if row["key"] in (f"{PREFIX}token", f"{PREFIX}tokenFile"):
            raise InvalidRequest(
                f"{row['key']} is set, but Spark Connect does not show it to its client: give "
                "ShuffleClient.getOrCreate(spark, token=...) the token, or a Path to the file that has it"
            )


def _parse(texts: Mapping[str, str]) -> dict[str, Any]:
    if "token" in texts and "tokenFile" in texts:
        raise InvalidRequest(f"set {PREFIX}token or {PREFIX}tokenFile, not both")
    values = {}
    for name, text in texts.items():
        try:
            values[_SETTINGS[name].name] = _SETTINGS[name].parse(text)
        except InvalidRequest as error:
            raise InvalidRequest(f"{PREFIX}{name}: {error.message}") from error
        except ValueError as error:
            raise InvalidRequest(f"{PREFIX}{name} is {error}, not {text!r}") from error
    options = {
        name: values[name] for name in ("location", "lease_seconds", *_OF_SERVERS) if name in values
    } | of_values(values, {})
    if copies := fields_of(Copies, values, "copies."):
        options["copies"] = Copies(**copies)
    return options


def _unknown(name: str) -> InvalidRequest:
    plain = {re.sub(r"[^a-z]", "", each.lower()): each for each in _SETTINGS}
    near = nearest(re.sub(r"[^a-z]", "", name.lower()), plain, 0.5)
    hint = "" if near is None else f" (did you mean {PREFIX}{plain[near]}?)"
    return InvalidRequest(
        f"there is no setting {PREFIX}{name}{hint}; there are {', '.join(sorted(_SETTINGS))}", setting=name
    )
