"""Which credentials the server accepts."""

from __future__ import annotations

import base64

import pytest

from flight_server.access import Authenticator
from flight_server.protocol.errors import Unauthenticated


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "header", ["Bearer s3cret", "bearer s3cret", "BEARER  s3cret ", basic("anyone:s3cret"), basic(":s3cret")]
)
def test_the_token_lets_in(header: str) -> None:
    assert Authenticator("s3cret").principal(header).sees_all


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "s3cret",
        "Bearer",
        "Bearer s3cre",
        "Bearer s3crett",
        "Bearer S3CRET",
        "Token s3cret",
        "Bearer \udcff",
        "Basic s3cret",
        "Basic é",
        basic("s3cret"),
        basic("s3cret:"),
        "Basic " + base64.b64encode(b"\xff:s3cret").decode(),
    ],
)
def test_nothing_else_does(header: str | None) -> None:
    with pytest.raises(Unauthenticated) as refused:
        assert Authenticator("s3cret").principal(header).sees_all
    assert "s3cret" not in refused.value.message


@pytest.mark.parametrize("header", [None, "Bearer anything", "nonsense"])
def test_a_server_without_a_token_lets_everybody_in(header: str | None) -> None:
    assert Authenticator().principal(header).sees_all
