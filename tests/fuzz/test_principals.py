"""Principals that see nothing of each other cannot tell that the other one is there; ``make fuzz-principals``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess

from .principals import GRANTS, Apart, token_file

STEPS = 60


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    token_file(file := tmp_path / "tokens.toml", GRANTS)
    with ExitStack() as stack:
        noisy, quiet = (
            stack.enter_context(
                ServerProcess.start(token_file=file, memory_limit="128MiB", data_dir=tmp_path / name)
            )
            for name in ("noisy", "quiet")
        )
        yield noisy, quiet
        assert noisy.events("internal_error") == quiet.events("internal_error") == []


@pytest.mark.timeout(0)
def test_a_principal_cannot_tell_whether_another_one_is_there(
    servers: tuple[ServerProcess, ServerProcess], request: pytest.FixtureRequest
) -> None:
    seconds = request.config.getoption("--fuzz-seconds")
    seed = int(request.config.getoption("--fuzz-seed"))
    end = time.monotonic() + float(seconds or 0)
    with closing(Apart(*servers, seed)) as apart:
        done = 0
        while done < STEPS or time.monotonic() < end:
            apart.step()
            done += 1
            if seconds is not None and done % 50 == 0:
                apart.at_once(20)
        print(f"seed {seed}: {done} steps, {dict(apart.counts)}")
        found = "\n\n".join(f"FOUND {what}\n{text}" for what, text in apart.findings.items())
        assert not apart.findings, found
