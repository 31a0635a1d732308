"""The expiry of certificates, beside the field that Python's TLS decodes."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from flight_server.host import expiry_seconds
from tests.support.certificates import Authority, expired, self_signed


@pytest.mark.parametrize("days", ["1", "11000", "30000"])  # UTCTime, and GeneralizedTime from 2050 on
def test_the_expiry_is_the_one_that_openssl_says(tmp_path: Path, days: str) -> None:
    cert, key = self_signed(tmp_path)
    renewed = ["-key", str(key), "-subj", "/CN=a", "-days", days, "-out", str(cert)]
    subprocess.run(["openssl", "req", "-x509", *renewed], check=True, capture_output=True)
    shown = ["openssl", "x509", "-noout", "-enddate", "-in", str(cert)]
    _, _, text = subprocess.run(shown, check=True, capture_output=True, text=True).stdout.partition("=")
    assert expiry_seconds(cert.read_bytes()) == ssl.cert_time_to_seconds(text.strip())


def test_of_a_chain_the_first_expiry_counts_and_other_texts_have_none(tmp_path: Path) -> None:
    (mine := tmp_path / "mine").mkdir()
    leaf = Authority.new(tmp_path, "ours").sign("server")[0].read_bytes()
    past = expired(mine)[0].read_bytes()
    early, late = expiry_seconds(past), expiry_seconds(leaf)
    assert early is not None
    assert late is not None
    assert early < late
    assert expiry_seconds(b"a comment\n" + leaf + past) == early
    block = b"-----BEGIN CERTIFICATE-----\n%b\n-----END CERTIFICATE-----\n"
    for other in (b"", block % b"", block % b"AAAA", block % leaf.splitlines()[1], block % b"!"):
        assert expiry_seconds(other) is None
        assert expiry_seconds(other + leaf) == late
