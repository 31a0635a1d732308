"""Options of the command line, one for each setting."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic import ByteSize
from pydantic.fields import FieldInfo

from flight_server.config import Settings

_METAVARS = (
    ("FlightLocation", "LOCATION"),
    ("Path", "PATH"),
    ("ByteSize", "SIZE"),
    ("float", "SECONDS"),
    ("_host_name", "NAME"),
    ("_prefix", "PREFIX"),
)
_PARSED = (bool, int, float)  # by typer; the model parses all other types from text


def options_of_settings(function: Callable[..., None]) -> Callable[..., None]:
    """Give typer a signature with an option for each setting, and ``--config`` for ``config_file``."""
    options = [_parameter(name, field) for name, field in Settings.model_fields.items()]
    config_file = Annotated[
        Path | None, typer.Option("--config", help="TOML file with settings", metavar="PATH")
    ]
    options.append(_keyword("config_file", config_file))
    function.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined] # what inspect reads first
    function.__annotations__ = {option.name: option.annotation for option in options}
    return function


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """None unless the option was given, so that environment and file count."""
    metavars = (word for kind, word in _METAVARS if kind in str(field.annotation))
    option = typer.Option(help=_help(field), metavar=next(metavars, None))
    return _keyword(name, Annotated[_type(field) | None, option])


def _type(field: FieldInfo) -> Any:
    kinds = get_args(field.annotation) if _is_union(field.annotation) else (field.annotation,)
    if get_origin(kinds[0]) is list:
        return list[str]
    return kinds[0] if kinds[0] in _PARSED else str


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _help(field: FieldInfo) -> str:
    text, default = field.description or "", field.default
    if isinstance(default, bool):
        text += f"; default: {'on' if default else 'off'}"
    elif isinstance(default, ByteSize):
        text += f"; default: {default.human_readable()}"
    elif isinstance(default, int | float | str):
        text += f"; default: {default:g}" if isinstance(default, float) else f"; default: {default}"
    return text
