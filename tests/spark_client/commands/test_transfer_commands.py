"""``get`` and ``put``: every format there and back, standard output, errors that leave files as they were."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from spark_client import ShuffleClient
from spark_client.commands import transfer_commands
from spark_client.commands.transfer_commands import READ_BYTES, rows_into, rows_of
from tests.support.arrow_peak import arrow_peak
from tests.support.commands import Command
from tests.support.polling import eventually

TABLE = pa.table({"id": range(1000), "name": ["a", None] * 500})
COMMAND = (sys.executable, "-m", "spark_client.cli")


@pytest.mark.parametrize("suffix", ["arrow", "arrows", "parquet", "csv"])
def test_rows_go_into_a_file_and_come_back(
    command: Command, client: ShuffleClient, tmp_path: Path, suffix: str
) -> None:
    client.put("t", TABLE.to_reader(max_chunksize=300))
    file = tmp_path / f"t.{suffix}"
    said = command("get", "t", "-o", file, "--json")
    assert (said.code, said.lines[0]["rows"], said.lines[0]["file"]) == (0, 1000, str(file))
    assert [*tmp_path.iterdir()] == [file]
    assert command("put", file, "again").code == 0
    read = client.get("again").read_all()
    if suffix == "csv":  # which has no null texts
        assert read["id"].to_pylist() == TABLE["id"].to_pylist()
    else:
        assert read.equals(TABLE.combine_chunks())


def test_a_pipe_gets_an_arrow_stream(client: ShuffleClient, command: Command) -> None:
    client.put("t", TABLE)
    got = command("get", "t", "--limit", "7")
    assert pa.ipc.open_stream(got.raw).read_all().equals(TABLE.slice(0, 7))


def test_a_named_pipe_is_written_and_not_replaced(
    client: ShuffleClient, command: Command, tmp_path: Path
) -> None:
    client.put("t", TABLE)
    os.mkfifo(pipe := tmp_path / "t.arrows")
    with ThreadPoolExecutor(1) as threads:
        read = threads.submit(pipe.read_bytes)
        assert command("get", "t", "-o", pipe).code == 0
        assert pipe.is_fifo()
        assert pa.ipc.open_stream(read.result()).read_all().num_rows == TABLE.num_rows


def test_ctrl_c_is_exit_code_130_and_leaves_no_short_dataset(
    client: ShuffleClient, command: Command, tmp_path: Path
) -> None:
    table = pa.table({"id": np.arange(1_000_000)})
    with rows_into(file := tmp_path / "t.arrows", "arrows", table.schema) as write:
        for batch in 20 * table.to_batches(max_chunksize=10_000):
            write(batch)
    given = [*COMMAND, "put", str(file), "t", "-s", command.location]
    with subprocess.Popen(given, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        eventually(lambda: [each.name for each in client.datasets()], ["t"])
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b""
    assert not any(each.rows > 0 for each in client.datasets())


def test_rows_are_json_lines_where_that_is_asked_for(client: ShuffleClient, command: Command) -> None:
    client.put("t", TABLE)
    assert command("get", "t", "-n", "2", "--json").lines == TABLE.slice(0, 2).to_pylist()


def test_a_terminal_gets_a_table_of_the_first_rows(client: ShuffleClient, command: Command) -> None:
    client.put("t", TABLE)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "120"}
    given = [*COMMAND, "get", "t", "-s", command.location]
    with subprocess.Popen(given, env=environment, stdout=theirs) as shown:
        os.close(theirs)
        seen = b""
        while True:
            try:
                seen += os.read(ours, 4096)
            except OSError:  # the command has ended
                break
        os.close(ours)
        assert shown.wait(60) == 0
    lines = seen.decode().splitlines()
    assert [each.split() for each in lines[:3]] == [["id", "name"], ["0", "a"], ["1", "-"]]
    assert len(lines) == 21


def test_a_get_that_fails_leaves_the_file_that_was_there(
    client: ShuffleClient, command: Command, tmp_path: Path
) -> None:
    (file := tmp_path / "t.csv").write_text("before")
    client.put("lists", pa.table({"l": [[1]]}))
    said = command("get", "lists", "-o", file)
    assert (said.code, said.out) == (1, "")
    assert all(text in said.err for text in ("CSV takes no such column", "list", "parquet"))
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("t.csv", "before")]


def test_a_put_under_a_name_that_exists_is_refused_or_overwrites(
    client: ShuffleClient, command: Command, tmp_path: Path
) -> None:
    pq.write_table(TABLE, file := tmp_path / "t.parquet")
    client.put("t", TABLE.slice(0, 1))
    said = command("put", file, "t")
    assert said.code == 1
    assert said.err == (
        "flight-shuffle: dataset 't' exists: choose another name, drop it, or say --overwrite\n"
    )
    assert command("put", file, "t", "--overwrite").code == 0
    assert client.get("t").read_all().equals(TABLE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("get", "t", "-o", "t.xlsx"), "its name says no format"),
        (("ls", "grpc://127.0.0.1:8815"), "a server is named by -s"),
        (("put", "-", "t"), "its name says no format"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(
    client: ShuffleClient, command: Command, arguments: tuple[str, ...], message: str
) -> None:
    client.put("t", TABLE)
    said = command(*arguments)
    assert (said.code, len(said.err.splitlines())) == (2, 1)
    assert message in said.err


def test_files_are_read_batch_by_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_commands, "READ_BYTES", 64 << 10)
    table = pa.table({"n": np.arange(600_000), "m": np.arange(600_000)})
    pq.write_table(table, tmp_path / "t.parquet", use_dictionary=False)
    csv.write_csv(table, tmp_path / "t.csv")
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=30_000)
    for form in ("parquet", "csv", "arrow"):
        with arrow_peak() as pool, rows_of(tmp_path / f"t.{form}", form) as rows:
            assert sum(each.num_rows for each in rows) == table.num_rows
            assert pool.max_memory() < table.nbytes // 2, form


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b""),
        ("a.csv", b"a\n" + b"1\n" * READ_BYTES + b"x\n"),
        ("a.parquet", b"id\n1\n"),
        ("a.arrow", b"id\n1\n"),
        ("a.arrow", b"ARROW1\0\0"),
        ("a.arrows", b"id\n1\n"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    command: Command, tmp_path: Path, name: str, content: bytes
) -> None:
    (file := tmp_path / name).write_bytes(content)
    said = command("put", file, "unread")
    assert (said.code, len(said.err.splitlines())) == (1, 1)
    assert f"{file} cannot be read as {file.suffix[1:]}" in said.err
    assert command("ls", "unread").out.splitlines()[1:] == []


def test_dates_that_python_does_not_have_are_shown(command: Command, client: ShuffleClient) -> None:
    late = pa.array([5_000_000, None], pa.int32()).view(pa.date32())
    client.put(
        "late", pa.table({"id": [1, 2], "day": late, "in": pa.StructArray.from_arrays([late], ["day"])})
    )
    assert [each["day"] for each in command("get", "late", "--json").lines] == [
        "<date32[day]: 15659-07-15>",
        None,
    ]
