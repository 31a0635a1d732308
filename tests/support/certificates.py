"""Certificates for a test."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_ADDRESS = ("-addext", "subjectAltName=IP:127.0.0.1")
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")


def self_signed(directory: Path) -> tuple[Path, Path]:
    """Certificate and key for 127.0.0.1; a client that trusts the certificate trusts a server with both."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    _make(cert, key, "localhost", *_ADDRESS)
    return cert, key


@dataclass(frozen=True)
class Authority:
    """Signs certificates for 127.0.0.1, of servers and clients; ``cert`` is its own."""

    cert: Path
    _key: Path

    @classmethod
    def new(cls, directory: Path, name: str) -> Authority:
        cert, key = directory / f"{name}.pem", directory / f"{name}-key.pem"
        _make(cert, key, name)
        return cls(cert, key)

    def sign(self, name: str) -> tuple[Path, Path]:
        """A new certificate and its key."""
        cert, key = (self.cert.with_name(f"{name}-of-{self.cert.stem}{end}.pem") for end in ("", "-key"))
        leaf = "-addext", "basicConstraints=critical,CA:FALSE"
        _make(cert, key, name, "-CA", str(self.cert), "-CAkey", str(self._key), *leaf, *_ADDRESS)
        return cert, key


def _make(cert: Path, key: Path, name: str, *options: str) -> None:
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            *_CURVE,
            "-nodes",
            "-days",
            "1",
            "-subj",
            f"/CN={name}",
            *options,
            *files,
        ],
        check=True,
        capture_output=True,
    )


def expired(directory: Path) -> tuple[Path, Path]:
    """As :func:`self_signed`, and expired since yesterday."""
    cert, key = self_signed(directory)
    names, request = directory / "names.cnf", directory / "request.pem"
    names.write_text("subjectAltName=IP:127.0.0.1\n")
    ask = ["req", "-new", "-key", str(key), "-subj", "/CN=localhost", "-out", str(request)]
    sign = ["x509", "-req", "-in", str(request), "-signkey", str(key), "-days", "-1", "-out", str(cert)]
    for arguments in (ask, [*sign, "-extfile", str(names)]):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
    return cert, key
