"""``python -m tests.fuzz.fuzz_bytes NAME SECONDS``: atheris on one target, or on ``all`` in turn for so long each.

Inputs that reach new code are kept in ``build/fuzz/NAME``. An input that raises another error than the documented ones,
or takes longer than ``INPUT_SECONDS`` or more memory than ``MEMORY_MB``, is a finding: it is kept in
``build/fuzz/findings``, and the run ends with 1. With its mend it goes to ``tests/fuzz/corpus/NAME``, which the suite
runs each time.
"""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

INPUT_SECONDS = 10
MEMORY_MB = 2048
BUILD = Path("build/fuzz")


def main() -> int:
    """Run atheris in a process for each target: it ends its process."""
    name, seconds = sys.argv[1], int(sys.argv[2])
    if name == "all":
        from tests.fuzz.targets import TARGETS

        command = [sys.executable, "-m", "tests.fuzz.fuzz_bytes"]
        ended = {
            each: subprocess.run([*command, each, str(seconds)], check=False).returncode for each in TARGETS
        }
        found = [each for each, code in ended.items() if code]
        print(f"findings in: {', '.join(found) or 'none'}; see {BUILD / 'findings'}")
        return 1 if found else 0
    _run(name, seconds)
    return 0


def _run(name: str, seconds: int) -> None:
    atheris: Any = importlib.import_module("atheris")
    logging.disable()
    with atheris.instrument_imports(include=["flight_server", "spark_client"]):
        from tests.fuzz.targets import TARGETS
        from tests.fuzz.targets.target import WORDS
    target = TARGETS[name]
    kept, findings = BUILD / name, BUILD / "findings"
    kept.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (kept / f"seed-{number:03}").write_bytes(seed)
    words = BUILD / "words"
    words.write_text("\n".join('"' + "".join(f"\\x{byte:02x}" for byte in word[:64]) + '"' for word in WORDS))
    options = [
        f"-dict={words}",
        f"-max_total_time={seconds}",
        f"-max_len={target.most_bytes}",
        f"-timeout={INPUT_SECONDS}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-artifact_prefix={findings}/{name}-",
        "-print_final_stats=1",
        str(kept),
    ]
    with target.running() as call:
        atheris.Setup([sys.argv[0], *options], call)
        atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
