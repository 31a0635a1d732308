"""Target: the token file, which its operator writes by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from flight_server.access import Authenticator, TokenFileRefused
from flight_server.protocol import Unauthenticated
from tests.support.token_hashes import hash_of_token

from .target import Call, Target

SECRET = b"S3CR3T-of-etl"
_SAMPLE = f"""
[principals.etl]   # a comment
tokens = ["{hash_of_token(SECRET.decode())}", "{hash_of_token("t2")}"]
read = ["sales/", "exchange/"]
write = ['exchange/etl/']
admin = []
quotas = {{ bytes = "20GiB", datasets = 1000, streams = 200 }}
[principals."log@host"]
tokens = ["{hash_of_token("t3")}"]
read = [""]
"""
_AS_IT_IS = f'[principals.a]\ntokens = ["{SECRET.decode()}"]\nread = [""]'


@contextmanager
def _opened() -> Iterator[Call]:
    with TemporaryDirectory() as directory:
        file = Path(directory) / "tokens.toml"

        def read(data: bytes) -> None:
            """A file is refused in a sentence, or gives principals that may do something."""
            file.write_bytes(data)
            try:
                found = Authenticator(file=file).principal(f"Bearer {SECRET.decode()}")
            except Unauthenticated:
                return
            except TokenFileRefused as error:
                text = str(error)
            else:
                assert any((found.read, found.write, found.admin))
                return
            assert len(text) < 1000
            raise TokenFileRefused(text)

        yield read


TARGETS = (
    Target("token_files", _opened, lambda: [_SAMPLE.encode(), _AS_IT_IS.encode()], (TokenFileRefused,)),
)
