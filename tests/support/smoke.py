"""Whether an installation works: run by the interpreter that has it, with ``-I``, outside the source tree."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path


def main() -> None:
    """Start a server by its command, put and get a table, and end it; ask `flight-shuffle` for its help."""
    import pyarrow as pa

    from spark_client import ShuffleClient

    server_program, command = (
        str(Path(sys.executable).with_name(f"flight-{each}")) for each in ("server", "shuffle")
    )
    subprocess.run([command, "--help"], check=True, stdout=subprocess.DEVNULL)
    table = pa.table({"n": list(range(1000)), "word": ["one", None] * 500})
    options = ("--port", "0", "--http-port", "0", "--log-format", "json")
    with subprocess.Popen(
        [server_program, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        assert server.stdout is not None
        try:
            location = next(json.loads(line)["location"] for line in server.stdout if '"location"' in line)
            with ShuffleClient(location) as client:
                client.put("countries", table)
                assert client.get("countries").read_all().equals(table)
        finally:
            server.terminate()
    assert server.returncode == 0, server.returncode
    python = sys.version.split()[0]
    print(f"flight-shuffle {version('flight-shuffle')} serves on Python {python}, pyarrow {pa.__version__}")


if __name__ == "__main__":
    main()
