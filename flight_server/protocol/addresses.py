"""Hosts in addresses."""

from __future__ import annotations

import ipaddress


def bracketed(host: str) -> str:
    """The host as it stands before ``:port``."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def is_loopback(host: str) -> bool:
    """Whether it is known that a host, in brackets or without, is this one by its loopback."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
