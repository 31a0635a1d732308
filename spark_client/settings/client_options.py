"""The options of a ShuffleClient: the name and type of each stand here or in ``connection.ServerOptions``, and what it
means at ``ShuffleClient``. None stands for the default, which is that of the option's class, or here.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, cast, get_args, get_type_hints

from flight_server.protocol import SIZE_SETTINGS, InvalidRequest, check_size, did_you_mean
from spark_client.connection import Credentials, Reading, ServerOptions, Timeouts, Writing
from spark_client.hosts import Copies

from .server_settings import SERVER_SETTINGS

LEASE_SECONDS = 300.0
CREDENTIALS = Credentials.__optional_keys__


class ClientOptions(ServerOptions, total=False):
    """Those of a client, some of which are those of its calls to servers."""

    copies: Copies | None
    lease_seconds: float | None


_TYPES: dict[str, types.UnionType] = get_type_hints(ClientOptions)
_PARTS: dict[str, type[Any]] = {"timeouts": Timeouts, "reading": Reading, "writing": Writing}


def check_options(call: str, options: Mapping[str, Any]) -> None:
    """Check the names and types of a call's keyword arguments.

    Raises:
        TypeError: no option has that name, in Python's words.
        InvalidRequest: an option has another type.
    """
    for name, value in options.items():
        if name not in _TYPES:
            raise TypeError(f"{call} got an unexpected keyword argument {name!r}")
        classes = get_args(_TYPES[name])
        if not isinstance(value, (*classes, int) if float in classes else classes):
            expected = " or ".join("None" if each is types.NoneType else each.__name__ for each in classes)
            # Without the value, which may be a token.
            raise InvalidRequest(f"{call}: the option {name} is {expected}, not {type(value).__name__}")


def of_calls(options: ClientOptions) -> ServerOptions:
    """Those of the client's calls to servers."""
    names = ServerOptions.__optional_keys__
    return cast("ServerOptions", {name: value for name, value in options.items() if name in names})


def apart(call: str, options: Mapping[str, Any]) -> tuple[ClientOptions, dict[str, Any]]:
    """The options of a client that starts its servers, checked, and the others, which are settings of these servers; so
    is a token, which the servers demand.
    """
    own = {name: value for name, value in options.items() if name in _TYPES.keys() - CREDENTIALS}
    check_options(call, own)
    settings = {name: value for name, value in options.items() if name not in own}
    check_settings(call, settings)
    return cast("ClientOptions", own), settings


def check_settings(call: str, settings: Mapping[str, Any]) -> None:
    """Check the names of a server's settings, and those that are sizes, before it is started. Raises InvalidRequest."""
    for name in settings:
        if name not in SERVER_SETTINGS:
            raise InvalidRequest(
                f"{call}: there is no option {name!r} of the client or its servers; flight-server --help lists theirs, "
                f"which have underscores here{did_you_mean(name, (*SERVER_SETTINGS, *_TYPES))}"
            )
    for name in SIZE_SETTINGS:
        if settings.get(name) is not None:
            check_size(f"{call}: the option {name}", settings[name])


def of_values(values: Mapping[str, Any], base: ServerOptions) -> ServerOptions:
    """The options that texts have given (``option_table``), by their names there, over those of ``base``."""
    texts = {name: values[name] for name in CREDENTIALS if name in values}
    if "token_file" in values:
        texts["token"] = values["token_file"]
    for name, kind in _PARTS.items():
        if changed := fields_of(kind, values):
            texts[name] = replace(cast("Any", base.get(name)) or kind(), **changed)
    return cast("ServerOptions", base | texts)


def fields_of(kind: type[Any], values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Of the values by their options' names those that are fields of the dataclass ``kind``, by the fields' names."""
    return {each.name: values[prefix + each.name] for each in fields(kind) if prefix + each.name in values}
