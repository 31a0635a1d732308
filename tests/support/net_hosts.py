"""Hosts on one machine: network namespaces with an address each, joined by a switch; nothing else has a way to them.

Guarantee: after ``net_hosts`` is left none of its namespaces and interfaces is there. Files and processes are
the machine's: what two hosts must not share has to have a name of its own. Needs root, and iproute2.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.support.spark_cluster import Host


@dataclass(frozen=True)
class NetHost(Host):
    """A host by its namespace's ``name``."""

    name: str = ""

    def ip(self, *arguments: str) -> str:
        """What ``ip`` does, or says, in this host."""
        return _ip("-n", self.name, *arguments)

    @property
    def sent_bytes(self) -> int:
        """All that has left this host, with the headers."""
        (link,) = json.loads(self.ip("-s", "-j", "link", "show", "eth0"))
        return int(link["stats64"]["tx"]["bytes"])

    def link(self, state: str) -> None:
        """``down``: no packet comes or goes, and connections do not end; ``up`` again."""
        self.ip("link", "set", "eth0", state)


@contextmanager
def net_hosts(count: int) -> Iterator[list[NetHost]]:
    """So many hosts; where they cannot be made the test is skipped, with the reason."""
    prefix = f"flight-{os.getpid()}-{secrets.token_hex(3)}"
    switch = f"{prefix}-switch"
    hosts = [
        NetHost(f"10.66.0.{number}", ("ip", "netns", "exec", f"{prefix}-{number}"), f"{prefix}-{number}")
        for number in range(1, count + 1)
    ]
    names = [switch, *(host.name for host in hosts)]
    try:
        try:
            for name in names:
                _ip("netns", "add", name)
            _ip("-n", switch, "link", "add", "switch", "type", "bridge")
            _ip("-n", switch, "link", "set", "switch", "up")
            for host in hosts:
                port = f"to{host.address.rpartition('.')[2]}"
                pair = ("type", "veth", "peer", "name", "eth0", "netns", host.name)
                _ip("-n", switch, "link", "add", port, *pair)
                _ip("-n", switch, "link", "set", port, "master", "switch", "up")
                host.ip("addr", "add", f"{host.address}/24", "dev", "eth0")
                host.ip("link", "set", "eth0", "up")
                host.ip("link", "set", "lo", "up")
        except (OSError, RuntimeError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield hosts
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
