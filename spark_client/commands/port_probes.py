"""What answers at a TCP port, from a few bytes: it tells apart what a client's error cannot.

A gRPC port is sent an HTTP/2 preface, an HTTP port a request: a gRPC server answers either with its settings, an HTTP/1
server with an answer or an error, a TLS server with an alert. A stopped process, or a proxy without its server, says
nothing.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_SETTINGS_FRAME = 4
_TLS_ALERT = b"\x15\x03"
_EXPIRED, _NOT_YET_VALID, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64


class Speaks(StrEnum):
    """What was found; ``GRPC`` and ``HTTP`` over TLS where that was asked for."""

    GRPC = "gRPC"
    HTTP = "HTTP/1"
    OTHER = "another protocol"
    NOTHING = "nothing"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TLS = "TLS"
    NO_TLS = "no TLS"
    BAD_CERTIFICATE = "a certificate that is not trusted"
    WANTS_CERTIFICATE = "TLS for clients with certificates"


@dataclass(frozen=True)
class Answer:
    """What answers; ``detail`` is the reason in words, ``certificate`` a trusted one as ``ssl`` decodes it."""

    speaks: Speaks
    detail: str = ""
    certificate: dict[str, Any] | None = None


def probe(host: str, port: int, wanted: Speaks, tls: ssl.SSLContext | None, seconds: float) -> Answer:
    """Ask the port what it speaks.

    Args:
        wanted: ``GRPC`` or ``HTTP``.
        tls: None to ask without TLS.
        seconds: how long each wait may last.
    """
    said = _PREFACE if wanted is Speaks.GRPC else _REQUEST
    try:
        sock = socket.create_connection((host, port), seconds)
    except ConnectionRefusedError:
        return Answer(Speaks.REFUSED)
    except TimeoutError:
        return Answer(Speaks.UNREACHABLE, f"no connection within {seconds:g} s")
    except (OSError, UnicodeError) as error:
        return Answer(Speaks.UNREACHABLE, str(error))
    with sock:
        return _asked(sock, said) if tls is None else _asked_over_tls(sock, host, tls, said)


def _asked(sock: socket.socket, question: bytes) -> Answer:
    peer = sock.getpeername()[:2]
    try:
        sock.sendall(question)
        said = sock.recv(64)
    except TimeoutError:
        return Answer(Speaks.NOTHING)
    except OSError:
        said = b""
    if said.startswith(_TLS_ALERT) or (not said and _has_tls(peer, sock.gettimeout())):
        return Answer(Speaks.TLS)
    return _read(said)


def _asked_over_tls(sock: socket.socket, host: str, tls: ssl.SSLContext, question: bytes) -> Answer:
    tls.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with tls.wrap_socket(sock, server_hostname=host) as wrapped:
            certificate = wrapped.getpeercert()
            said = _said_over_tls(wrapped, question)
        return replace(_read(said) if said else Answer(Speaks.WANTS_CERTIFICATE), certificate=certificate)
    except ssl.SSLCertVerificationError as error:
        return Answer(Speaks.BAD_CERTIFICATE, _reason(error))
    except TimeoutError:
        return Answer(Speaks.NOTHING)
    except ssl.SSLError as error:
        if "CERTIFICATE_REQUIRED" in (error.reason or "") or "HANDSHAKE_FAILURE" in (error.reason or ""):
            return Answer(Speaks.WANTS_CERTIFICATE)
        return Answer(Speaks.NO_TLS, error.reason or "")
    except OSError as error:
        return Answer(Speaks.NO_TLS, str(error))


def _said_over_tls(sock: ssl.SSLSocket, question: bytes) -> bytes:
    """Its answer; empty if it ends the connection: with TLS 1.3 a server looks at the client's certificate after the
    client has completed the handshake. Raises TimeoutError.
    """
    try:
        sock.sendall(question)
        return sock.recv(64)
    except TimeoutError:
        raise
    except OSError:
        return b""


def _read(said: bytes) -> Answer:
    if len(said) >= 9 and said[3] == _SETTINGS_FRAME:
        return Answer(Speaks.GRPC)
    if said.startswith(b"HTTP/1."):
        return Answer(Speaks.HTTP)
    return Answer(Speaks.OTHER, f"it answered {said[:20]!r}" if said else "it closed the connection")


def _has_tls(peer: tuple[str, int], seconds: float | None) -> bool:
    """Whether the port of a connection that was closed takes a TLS connection. Its certificate is not checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection(peer, seconds) as again,
            context.wrap_socket(again),
        ):
            return True
    except OSError:
        return False


def _reason(error: ssl.SSLCertVerificationError) -> str:
    match error.verify_code:
        case code if code == _EXPIRED:
            return "it has expired"
        case code if code == _NOT_YET_VALID:
            return "it is not valid yet: compare the clocks"
        case code if code in (_OTHER_NAME, _OTHER_ADDRESS):
            return f"it is for another host: {error.verify_message}"
    return str(error.verify_message)
