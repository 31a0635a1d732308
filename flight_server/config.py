"""Settings: one typed model. Flags override the environment, which overrides TOML, which overrides defaults.

The environment variable of a setting is ``FLIGHT_SERVER_`` and its name in capitals, the TOML key its name, the flag
its name with dashes. No other module reads the environment. Sizes are as ``protocol.parse_size`` takes them, and not in
the other forms of pydantic's. Times are seconds.

A variable with the prefix that is no setting's is refused, as a key of the TOML is; but the environment of a server
that ends with another process is that process's, and may have variables of its own. Kubernetes sets some in each pod
for a service named ``flight-server``, or ``flight-server-`` and more, among them ``FLIGHT_SERVER_PORT``: these do not
count.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ByteSize, Field, InstanceOf, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from flight_server.access import FlightLocation
from flight_server.host import default_bases, machine
from flight_server.memory import MIN_MEMORY_LIMIT_BYTES
from flight_server.protocol import (
    DEFAULT_HTTP_PORT,
    DEFAULT_PORT,
    InvalidRequest,
    check_prefix,
    is_loopback,
    nearest,
    parse_size,
)

_HOST_NAME = re.compile(r"\.?[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?\.?", re.ASCII)
DEFAULT_MEMORY_SHARE = 0.5
MOST_WORKERS = 64
CORES_FOR_WORKER = 4
"""A worker has one event loop; the cores are also those of its threads and of the programs that it serves."""
WORKER_MEMORY_BYTES = 256 << 20


def _not_empty(value: object) -> object:
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


def _prefix(value: object) -> object:
    try:
        return check_prefix(value, "it")
    except InvalidRequest as error:
        raise ValueError(error.message) from None


def _location(value: object) -> object:
    return FlightLocation.parse(value) if isinstance(value, str) else value


Size = Annotated[ByteSize, BeforeValidator(parse_size)]
NamedPath = Annotated[Path, BeforeValidator(_not_empty)]
Token = Annotated[str, BeforeValidator(_token)]
HostName = Annotated[str, BeforeValidator(_host_name)]
Prefix = Annotated[str, BeforeValidator(_prefix)]
AllowedLocation = Annotated[InstanceOf[FlightLocation], BeforeValidator(_location)]


class Settings(BaseSettings):
    """The settings of one server."""

    model_config = SettingsConfigDict(
        env_prefix="FLIGHT_SERVER_",
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    host: str = Field(
        "127.0.0.1",
        description="address to listen on: 0.0.0.0 for all. By default no other machine reaches the server; with "
        "another address it wants a token, or --tls-client-ca",
    )
    port: int = Field(
        DEFAULT_PORT,
        ge=0,
        le=65535,
        description="gRPC port; 0 takes any free one. A port that is taken ends the start",
    )
    http_port: int = Field(
        DEFAULT_HTTP_PORT,
        ge=-1,
        le=65535,
        description="HTTP port of the bulk lane, the metrics and the dashboard; 0 takes any free one. -1 turns "
        "HTTP off: then all data takes gRPC, which costs more CPU time",
    )
    workers: int = Field(
        1,
        ge=0,
        le=MOST_WORKERS,
        description="servers on this machine, each a process with ports of its own (the next free pairs after "
        "--port and --http-port) and an equal share of the memory and disk limits. 0 for one for each four cores, but "
        "not more than have 256 MiB of the memory limit each",
    )
    cores: int = Field(
        default_factory=machine.cores,
        ge=1,
        description="cores that --workers 0 counts; default: those that the container or machine gives this process",
    )
    advertise_host: str | None = Field(
        None,
        description="the host name by which clients reach this server, where it is not the one that they ask "
        "for, as behind a load balancer. With a wrong name clients cannot connect to the addresses of a "
        "FlightInfo; default: as asked",
    )

    allowed_hosts: list[HostName] = Field(
        default_factory=list,
        description="name by which HTTP clients may ask for a server that has no token, beside its addresses, "
        "localhost and its host name; .example.org for all names below it. Other names are refused with 403, "
        "because a web page may have sent the request; may be given several times",
    )

    memory_limit: Size = Field(
        default_factory=lambda: ByteSize(int(machine.memory_bytes() * DEFAULT_MEMORY_SHARE)),
        ge=MIN_MEMORY_LIMIT_BYTES,
        description="bytes of data in memory, such as 8GiB; data beyond them goes to disk. Too low: producers "
        "wait for the disk, and large messages are refused, below 32MiB also some of this project's client. Too "
        "high: the kernel ends the process. Leave a container 512 MiB more, for the process itself; default: half "
        "of the container's or machine's memory, because the process and the page cache need the rest",
    )
    disk_limit: Size | None = Field(
        None,
        ge=1,
        description="bytes of data on disk; when they are used up, producers wait for --budget-deadline-seconds, "
        "and then fail. Above the size of the volume the disk itself refuses writes, and other programs on it, "
        "too; default: 4/5 of the free bytes in the data directory's file system at the start, and the recovered "
        "datasets",
    )
    data_dir: NamedPath | None = Field(
        None,
        description="a new or empty directory on a fast disk for data that memory has no room for, durable "
        "datasets and changelogs; default: a temporary directory, and nothing outlives the server",
    )
    segment_size: Size = Field(
        ByteSize(32 << 20),
        ge=1 << 16,
        description="size of the files with spilled data. The disk gets its space back one file at a time: "
        "larger files keep released data for longer, smaller ones are more open files and syncs",
    )
    max_message: Size | None = Field(
        None,
        ge=1,
        description="largest message, and so largest batch, that a producer may send: raise it, and the memory "
        "limit, where puts are refused for it. The server may hold one such message for each producer beyond its "
        "limit; default: 256MiB, or 1/8 of the memory limit if that is less, because a message must fit the room "
        "for readers twice",
    )
    max_schema: Size | None = Field(
        None,
        ge=1,
        description="largest schema with its metadata: raise it where puts are refused for it; default: 16MiB, "
        "or 1/16 of the memory limit if that is less, so that a schema has room while it is put and kept",
    )
    full_validation: bool = Field(
        True,
        description="check every offset and text of a batch that arrives, not its shape alone, because a "
        "malformed batch can crash readers; turn it off to save CPU time where all producers are trusted",
    )

    max_datasets: int = Field(
        100_000,
        ge=1,
        description="how many datasets there may be; creates and puts of more are refused. Lower it to notice a "
        "program that forgets to drop its datasets",
    )

    lease_seconds: float = Field(
        86_400.0,
        gt=0,
        description="a dataset that was created without a lease of its own is dropped when no client has read, "
        "written or renewed it for so long. Too low: readers that come later get NOT_FOUND. Too high: forgotten "
        "datasets fill memory and disk",
    )
    budget_deadline_seconds: float = Field(
        60.0,
        gt=0,
        description="how long a producer waits while memory and disk are full before its put fails with "
        "UNAVAILABLE. Too low: puts fail, and are sent again, in a peak that would have passed. Too high: a full "
        "server shows as slow jobs for longer",
    )
    stall_seconds: float = Field(
        30.0,
        gt=0,
        description="a client that stops for so long in the middle of a request, of connecting, or (bulk lane) "
        "of a message is disconnected. Too low: clients that pause, as in a long garbage collection, and slow "
        "networks fail with UNAVAILABLE. Too high: a client that hangs keeps its memory, and one of few places "
        "to send a request, for longer. A reader that takes nothing while "
        "other readers wait for its room is disconnected after 5 s, or after this if it is less",
    )
    resume_seconds: float = Field(
        60.0,
        ge=0,
        description="for datasets that are released when so many readers have read them (retention 'readers'): "
        "how long a reader with a name whose connection broke keeps its turn. Too low: another reader takes the "
        "turn of one that would have returned, which then gets an error. Too high: the frames of a reader that "
        "died stay for longer",
    )
    put_idle_seconds: float = Field(
        900.0,
        ge=0,
        description="a put whose client sends no message for so long fails, and so does the pull of a source that "
        "gives none. Too low: programs that compute between two batches fail; so the default is 15 minutes. Too "
        "high: a put whose client hangs keeps its memory and its partition; 0: never. A put to a shuffle goes on "
        "while a client renews the lease, as Spark's driver does for its tasks. Inside a message on the bulk lane "
        "--stall-seconds counts",
    )
    hold_lag_seconds: float = Field(
        604_800.0,
        gt=0,
        description="how long a hold or a stalled follower may keep old versions of a changelog from compaction. "
        "Too low: a query that was stopped for longer gets Compacted, and must begin again. Too high: a "
        "forgotten hold takes disk space",
    )
    schema_seconds: float = Field(
        60.0,
        gt=0,
        description="how long a reader waits for the first producer of a dataset that was created without a "
        "schema, before it gets UNAVAILABLE. Raise it where producers start later than readers",
    )
    keepalive_seconds: float = Field(
        20.0,
        ge=1,
        description="how often silent connections are probed; a client whose host is gone is noticed within "
        "twice this. Too low: more packets on idle connections, and a short loss of the network ends them. Too "
        "high: a dead client's put and reads keep their memory",
    )
    drain_grace_seconds: float = Field(
        20.0,
        ge=0,
        description="how long running streams may go on after SIGTERM; then they get UNAVAILABLE. Allow the "
        "process longer to stop than this: Kubernetes kills it after 30 s by default",
    )

    source_roots: list[NamedPath] = Field(
        default_factory=list,
        description="directory that datasets of kind 'source' may read; clients read nothing outside. May be "
        "given several times",
    )
    host_file_dirs: list[NamedPath] = Field(
        default_factory=lambda: list(default_bases()),
        description="directory under which clients on this host keep copies of broadcasts; copies of the same "
        "user's dead clients are removed there every minute. Give those that clients use, or dead copies stay; "
        "may be given several times; default: /dev/shm and the directory for temporary files",
    )
    source_s3: bool = Field(
        False,
        description="sources may read s3:// URLs, with the credentials of this process: every client then reads "
        "what these allow",
    )
    source_flight: list[AllowedLocation] = Field(
        default_factory=list,
        description="Flight server that sources may pull from, such as grpc://host:8815; without scheme or port: "
        "any, and * for any host. Others are refused: clients reach no further than this; may be given several times",
    )
    source_failure_seconds: float = Field(
        5.0,
        ge=0,
        description="after a source could not be read, its readers get that error for so long before one tries "
        "again. Too low: many readers ask a dead store again and again. Too high: readers get the error after "
        "the store is back",
    )

    offload_to: list[Prefix] = Field(
        default_factory=list,
        description="directory, or address such as s3://bucket/path, below which drivers may let this server keep "
        "sealed exchanges, from where they are read when it is gone; it writes nowhere else. A directory must be "
        "there, and be the same one on all hosts. Credentials are the process's own; may be given several times",
    )

    token: Token | None = Field(
        None,
        repr=False,
        description="bearer token that every call must carry, or get UNAUTHENTICATED; better in "
        "FLIGHT_SERVER_TOKEN, because other users of the machine see a command line",
    )
    token_file: NamedPath | None = Field(
        None,
        description="TOML file with principals: the SHA-256 of their tokens, what each may read and write, and quotas "
        "(deploy/README.md, access). A file that is empty or wrong ends the start; a change is in force within "
        "seconds, and one that is wrong leaves the tokens as they were",
    )
    insecure: bool = Field(
        False,
        description="listen beyond this machine without a token and without --tls-client-ca: every program that "
        "reaches the server may then read and drop all data",
    )
    tls_cert: NamedPath | None = Field(
        None, description="PEM certificate chain, for encrypted connections on both lanes; with --tls-key"
    )
    tls_key: NamedPath | None = Field(
        None, description="PEM private key, without a password; with --tls-cert"
    )
    tls_client_ca: NamedPath | None = Field(
        None,
        description="PEM certificates: a client must present one that these have signed, on both lanes, or is "
        "refused; health checks over HTTP present none. With --tls-cert",
    )

    log_format: Literal["text", "json"] = Field(
        "text", description="text for people, json for collectors of logs"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error: events below are not logged"
    )
    exit_with_parent: bool = Field(
        False, description="end when standard input ends, for a server that another program starts"
    )

    exit_with_process: int | None = Field(
        None,
        gt=0,
        description="drain when the process of this number ends, for a server that runs beside it",
    )
    copies_of: str | None = Field(
        None,
        pattern="^[0-9a-z]{1,64}$",
        description="an application that this server ends with: its copies of broadcasts on this host are then removed",
    )

    @property
    def worker_count(self) -> int:
        """``workers``; for 0 the number that it stands for, at least one."""
        by_cores, by_memory = self.cores // CORES_FOR_WORKER, self.memory_limit // WORKER_MEMORY_BYTES
        return self.workers or max(1, min(by_cores, by_memory, MOST_WORKERS))

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.port == self.http_port > 0:
            raise ValueError(f"--port and --http-port are both {self.port}: give each its own, or 0 for any")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key go together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("--tls-client-ca goes with --tls-cert and --tls-key")
        controlled = self.token or self.token_file or self.tls_client_ca
        if not (controlled or is_loopback(self.host) or self.insecure):
            raise ValueError(
                f"--host {self.host} lets other machines reach this server, and every program there could read and "
                "drop all data: set FLIGHT_SERVER_TOKEN, or --token-file, or --tls-client-ca, or --insecure if "
                "the network is trusted"
            )
        memory_limit = self.memory_limit // self.worker_count
        if memory_limit < MIN_MEMORY_LIMIT_BYTES:
            raise ValueError(
                f"--memory-limit {self.memory_limit} is too small for {self.worker_count} --workers: each needs "
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
        return init_settings, _Environment(settings_cls), TomlConfigSettingsSource(settings_cls)


_ADDRESS = re.compile("(tcp|udp|sctp)://")


class _Environment(EnvSettingsSource):
    """The variables of settings. Raises ValueError: there is one of no setting, of a server that stands alone."""

    def __call__(self) -> dict[str, Any]:
        flags = self.current_state
        stands_alone = not (flags.get("exit_with_parent") or flags.get("exit_with_process"))
        services = [
            name.removesuffix("_service_host") for name in self.env_vars if name.endswith("_service_host")
        ]
        prefix, settings = self.env_prefix.lower(), self.settings_cls.model_fields
        texts: dict[str, str | None] = {}
        for name, text in self.env_vars.items():
            if not name.startswith(prefix) or any(
                _is_of_service(name.removeprefix(service), text or "") for service in services
            ):
                continue
            # Without the prefix, by which each variable would be near to all.
            if (setting := name.removeprefix(prefix)) not in settings:
                if not stands_alone:
                    continue
                near = nearest(setting, settings)
                meant = "" if near is None else f"; did you mean {f'{self.env_prefix}{near}'.upper()!r}?"
                raise ValueError(
                    f"there is no setting for {name.upper()} in the environment, see --help{meant}"
                )
            texts[name] = text
        self.env_vars = texts
        return super().__call__()


def _is_of_service(rest: str, text: str) -> bool:
    """Whether Kubernetes has set the variable that goes on so after the name of a service."""
    return rest.startswith(("_service_", "_port_")) or (rest == "_port" and bool(_ADDRESS.match(text)))


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

    settings: type[Settings] = Settings
    if toml is not None:  # to make a class takes as long as all else of a start

        class FromFile(Settings):
            model_config = SettingsConfigDict(toml_file=toml)

        settings = FromFile
    try:
        return settings(**flags)
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
