"""Settings: one typed model. Flags override the environment, which overrides TOML, which overrides defaults.

The environment variable of a setting is ``FLIGHT_SERVER_`` and its name in capitals, the TOML key its name, the flag
its name with dashes. No other module reads the environment.

A size is bytes, or a number and a unit: ``64MiB``, ``1.5 GB``. What pydantic also takes (text after the unit, bits,
true and false) is refused, because a misunderstood limit is noticed too late. Times are seconds.
"""

from __future__ import annotations

import re
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ByteSize, Field, InstanceOf, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from flight_server.access import FlightLocation
from flight_server.host import default_bases, machine
from flight_server.memory import MIN_MEMORY_LIMIT_BYTES
from flight_server.protocol import DEFAULT_HTTP_PORT, DEFAULT_PORT

DEFAULT_MEMORY_SHARE = 0.5

_SIZE = re.compile(
    r"\s*(?P<number>[0-9]{1,18}(\.[0-9]{1,9})?)\s*((?P<prefix>[kmgtp]?)(?P<binary>i?)b)?\s*", re.IGNORECASE
)

_HOST_NAME = re.compile(r"\.?[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?\.?", re.ASCII)


def _size(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is None or (found["binary"] and not found["prefix"]):
        shown = repr(value if len(str(value)) < 40 else f"{str(value)[:40]}…")
        raise ValueError(f"{shown} is no size: give bytes, or a number and a unit, such as 64MiB or 1.5GB")
    power = " kmgtp".index((found["prefix"] or " ").lower())
    return int(Decimal(found["number"]) * (1024 if found["binary"] else 1000) ** power)


def _named(value: object) -> object:
    if value == "":
        raise ValueError("an empty text is no path")  # Path would take it as the working directory
    return value


def _host_name(value: object) -> object:
    if isinstance(value, str) and not _HOST_NAME.fullmatch(value):
        raise ValueError(f"{value[:80]!r} is no host name: give it without scheme, port and path")
    return value


def _token(value: object) -> object:
    if value == "":
        raise ValueError("a token has at least 1 character")
    if isinstance(value, str) and not (value.isascii() and value.isprintable() and value == value.strip()):
        raise ValueError("a token is printable ASCII, without spaces around it: it travels in a header")
    return value


def _location(value: object) -> object:
    return FlightLocation.parse(value) if isinstance(value, str) else value


Size = Annotated[ByteSize, BeforeValidator(_size)]
NamedPath = Annotated[Path, BeforeValidator(_named)]
Token = Annotated[str, BeforeValidator(_token)]
HostName = Annotated[str, BeforeValidator(_host_name)]
AllowedLocation = Annotated[InstanceOf[FlightLocation], BeforeValidator(_location)]


class Settings(BaseSettings):
    """The settings of one server."""

    model_config = SettingsConfigDict(
        env_prefix="FLIGHT_SERVER_", extra="forbid", frozen=True, allow_inf_nan=False
    )

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: int = Field(DEFAULT_PORT, ge=0, le=65535, description="gRPC port; 0 takes any free one")
    http_port: int = Field(
        DEFAULT_HTTP_PORT,
        ge=-1,
        le=65535,
        description="HTTP port of the bulk lane, the metrics and the dashboard; 0 takes any free one, -1 turns "
        "HTTP off",
    )
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="servers on this machine, each a process with ports of its own (the next free pairs after "
        "--port and --http-port) and an equal share of the memory and disk limits: one for about four cores",
    )
    advertise_host: str | None = Field(
        None,
        description="the host name by which clients reach this server, where it is not the one that they ask "
        "for, as behind a load balancer; default: as asked",
    )

    allowed_hosts: list[HostName] = Field(
        default_factory=list,
        description="name by which HTTP clients may ask for a server that has no token, beside its addresses, "
        "localhost and its host name; .example.org for all names below it; may be given several times",
    )

    memory_limit: Size = Field(
        default_factory=lambda: ByteSize(int(machine.memory_bytes() * DEFAULT_MEMORY_SHARE)),
        ge=MIN_MEMORY_LIMIT_BYTES,
        description="bytes of data in memory, such as 8GiB; what is beyond them goes to disk. Leave a "
        "container 512 MiB more, for the process itself; default: half of the container's or machine's memory",
    )
    disk_limit: Size | None = Field(
        None,
        ge=1,
        description="bytes of data on disk; when they are used up, producers wait, and then fail. Set it below "
        "the size of the volume; default: 4/5 of what is free in the data directory's file system at the "
        "start, and the recovered datasets",
    )
    data_dir: NamedPath | None = Field(
        None,
        description="a new or empty directory on a fast disk for data that memory has no room for, durable "
        "datasets and changelogs; default: a temporary directory, and nothing outlives the server",
    )
    segment_size: Size = Field(
        ByteSize(32 << 20),
        ge=1 << 16,
        description="size of the files with spilled data; the disk gets its space back one file at a time",
    )
    max_message: Size | None = Field(
        None,
        ge=1,
        description="largest message, and so largest batch, that a producer may send: raise it, and the memory "
        "limit, where puts are refused for it; default: 256MiB, or 1/8 of the memory limit if that is less",
    )
    max_schema: Size | None = Field(
        None,
        ge=1,
        description="largest schema with its metadata: raise it where puts are refused for it; default: 16MiB, "
        "or 1/16 of the memory limit if that is less",
    )
    full_validation: bool = Field(
        True,
        description="check every offset and text of a batch that arrives, not its shape alone; turn it off to "
        "save CPU time where all producers are trusted",
    )

    max_datasets: int = Field(100_000, ge=1, description="how many datasets there may be; more are refused")

    lease_seconds: float = Field(
        86_400.0,
        gt=0,
        description="a dataset that was created without a lease of its own is dropped when no client has read, "
        "written or renewed it for so long",
    )
    budget_deadline_seconds: float = Field(
        60.0,
        gt=0,
        description="how long a producer waits while memory and disk are full before its put fails with "
        "UNAVAILABLE",
    )
    stall_seconds: float = Field(
        30.0,
        gt=0,
        description="a client that stops in the middle of a request or message for so long is disconnected: "
        "raise it where clients or the network pause longer. A reader that takes nothing is disconnected after "
        "5 s, or after this if it is less, while other readers get nothing because of it",
    )
    resume_seconds: float = Field(
        60.0,
        ge=0,
        description="for datasets that are released when so many readers have read them (retention 'readers'): "
        "how long a reader with a name whose connection broke keeps its turn before another reader may take it",
    )
    put_idle_seconds: float = Field(
        900.0,
        ge=0,
        description="a put whose client sends no message for so long fails: raise it for producers that pause "
        "longer; 0: never. Inside a message on the bulk lane --stall-seconds counts",
    )
    hold_lag_seconds: float = Field(
        604_800.0,
        gt=0,
        description="how long a hold or a stalled follower may keep old versions of a changelog from "
        "compaction: lower it to bound the disk space that a forgotten hold takes",
    )
    schema_seconds: float = Field(
        60.0,
        gt=0,
        description="how long a reader waits for the first producer of a dataset that was created without a "
        "schema",
    )
    keepalive_seconds: float = Field(
        20.0,
        ge=1,
        description="how often silent connections are probed; a client whose host is gone is noticed within "
        "twice this",
    )
    drain_grace_seconds: float = Field(
        20.0,
        ge=0,
        description="how long running streams may go on after SIGTERM; allow the process longer to stop than "
        "this",
    )

    source_roots: list[NamedPath] = Field(
        default_factory=list,
        description="directory that datasets of kind 'source' may read; may be given several times",
    )
    host_file_dirs: list[NamedPath] = Field(
        default_factory=lambda: list(default_bases()),
        description="directory under which clients on this host keep copies of broadcasts; what dead ones of "
        "the same user left there is removed every minute; may be given several times; default: /dev/shm and "
        "the directory for temporary files",
    )
    source_s3: bool = Field(False, description="sources may read s3:// URLs")
    source_flight: list[AllowedLocation] = Field(
        default_factory=list,
        description="Flight server that sources may pull from, such as grpc://host:8815; without scheme or "
        "port: any; may be given several times",
    )
    source_failure_seconds: float = Field(
        5.0,
        ge=0,
        description="after a source could not be read, its readers get that error for so long before one tries "
        "again",
    )

    token: Token | None = Field(
        None,
        description="bearer token that every call must carry; better in FLIGHT_SERVER_TOKEN",
    )
    tls_cert: NamedPath | None = Field(None, description="PEM certificate chain; with --tls-key")
    tls_key: NamedPath | None = Field(None, description="PEM private key; with --tls-cert")

    log_format: Literal["text", "json"] = Field("text", description="text or json")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error"
    )
    exit_with_parent: bool = Field(
        False, description="end when standard input ends, for a server that another program starts"
    )

    exit_with_process: int | None = Field(
        None,
        gt=0,
        description="drain when the process of this number ends, for a server that runs beside it",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key go together")
        memory_limit = self.memory_limit // self.workers
        if memory_limit < MIN_MEMORY_LIMIT_BYTES:
            raise ValueError(
                f"--memory-limit {self.memory_limit} is too small for {self.workers} --workers: each needs "
                f"{MIN_MEMORY_LIMIT_BYTES}"
            )
        if self.max_message is not None and self.max_message > memory_limit // 8:
            raise ValueError(
                f"--max-message {self.max_message} is more than 1/8 of --memory-limit {memory_limit}: "
                "such a message could not be sent within the limit"
            )
        if self.max_schema is not None and self.max_schema > memory_limit // 16:
            raise ValueError(
                f"--max-schema {self.max_schema} is more than 1/16 of --memory-limit {memory_limit}: "
                "such a schema could not be held within the limit"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load(flags: dict[str, Any], toml: Path | None = None) -> Settings:
    """The settings from flags, environment, file and defaults.

    Raises:
        pydantic.ValidationError: a value is wrong or a key unknown; see :func:`explained`.
        OSError: ``toml`` is no file, or cannot be read.
        ValueError: it is not TOML, or the environment's text for a list is not JSON.
    """
    if toml is not None and toml.is_dir():
        raise IsADirectoryError(f"the configuration file {toml} is a directory")
    if toml is not None and not toml.is_file():
        raise FileNotFoundError(f"there is no configuration file {toml}")

    class FromFile(Settings):
        model_config = SettingsConfigDict(toml_file=toml)

    try:
        return FromFile(**flags)
    except OSError as error:
        raise OSError(f"the configuration file {toml} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the configuration file {toml} is not TOML: {error}") from None
    except SettingsError as error:
        # pydantic-settings itself parses only the text of lists.
        named = re.search(r'field "(\w+)"', str(error))
        name = "A list" if named is None else f"FLIGHT_SERVER_{named[1].upper()}"
        raise ValueError(f'{name} is no JSON list, such as \'["a", "b"]\'') from None


def explained(error: ValidationError) -> list[str]:
    """One sentence for each problem. It names the option and never repeats a secret."""
    sentences = []
    for problem in error.errors(include_url=False, include_input=False):
        name = str(problem["loc"][0]) if problem["loc"] else None
        message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        if problem["type"] == "extra_forbidden":
            sentences.append(f"there is no setting {name!r}: see --help, and write underscores for dashes")
        elif name is None:
            sentences.append(message)
        else:
            sentences.append(f"--{name.replace('_', '-')}: {message}")
    return sentences
