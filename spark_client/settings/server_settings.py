"""The settings of servers that a client starts, by their names and types; ``flight-server --help`` explains each.

The server itself checks their values, except that of a size, which the client checks before it starts a process, and so
it does the names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

from spark_client.connection import Reading, Timeouts, Writing
from spark_client.hosts import Copies

Size = int | str
"""Bytes, or a text such as ``"2g"``, ``"512MiB"``, ``"1.5GB"``."""


class ServerSettings(TypedDict, total=False):
    """All but ``lease_seconds``, which is an option of the client."""

    config: str | Path | None
    host: str
    port: int
    http_port: int
    workers: int
    cores: int
    advertise_host: str | None
    allowed_hosts: Sequence[str]
    memory_limit: Size | None
    disk_limit: Size | None
    data_dir: str | Path | None
    segment_size: Size
    max_message: Size | None
    max_schema: Size | None
    full_validation: bool
    max_datasets: int
    budget_deadline_seconds: float
    stall_seconds: float
    resume_seconds: float
    put_idle_seconds: float
    hold_lag_seconds: float
    schema_seconds: float
    keepalive_seconds: float
    drain_grace_seconds: float
    source_roots: Sequence[str | Path]
    host_file_dirs: Sequence[str | Path]
    source_s3: bool
    source_flight: Sequence[str]
    source_failure_seconds: float
    offload_to: str | Path | Sequence[str | Path]
    token: str | None
    token_file: str | Path | None
    insecure: bool
    tls_cert: str | Path | None
    tls_key: str | Path | None
    tls_client_ca: str | Path | None
    log_format: Literal["text", "json"]
    log_level: Literal["debug", "info", "warning", "error"]
    exit_with_parent: bool
    exit_with_process: int | None
    copies_of: str | None


class StartingOptions(ServerSettings, total=False):
    """Of a client that starts its servers: its own options without credentials, and those of the servers."""

    timeouts: Timeouts | None
    reading: Reading | None
    writing: Writing | None
    copies: Copies | None
    lease_seconds: float | None


SERVER_SETTINGS = ServerSettings.__optional_keys__
