"""Notes in shared memory: whole or none, with their age, also of processes that stop in the middle."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

from flight_server.host import Board, board


def test_each_process_reads_what_the_others_wrote_last(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Board(3)
    assert notes.read() == []
    child = multiprocessing.get_context("fork").Process(target=notes.write, args=(2, b"of a child"))
    child.start()
    child.join()
    monkeypatch.setattr(board.time, "monotonic", lambda: 100.0)
    notes.write(0, b"first")
    notes.write(0, b"second")
    monkeypatch.setattr(board.time, "monotonic", lambda: 107.5)
    assert notes.read()[0] == (b"second", 7.5)
    assert notes.read()[1][0] == b"of a child"
    notes.write(2, b"")
    assert notes.read() == [(b"second", 7.5)]


def test_a_note_may_fill_its_slot_and_not_more() -> None:
    notes = Board(2)
    notes.write(0, b"x" * board.MAX_NOTE_BYTES)
    assert len(notes.read()[0][0]) == board.MAX_NOTE_BYTES
    with pytest.raises(ValueError, match="bytes"):
        notes.write(0, b"x" * (board.MAX_NOTE_BYTES + 1))
    assert [len(note) for note, _ in notes.read()] == [board.MAX_NOTE_BYTES]


def test_a_writer_that_is_killed_at_any_time_leaves_a_whole_note_or_none() -> None:
    notes = Board(1)

    def write_for_ever() -> None:
        while True:
            for letter in (b"a", b"b"):
                notes.write(0, letter * board.MAX_NOTE_BYTES)

    for _ in range(3):
        child = multiprocessing.get_context("fork").Process(target=write_for_ever)
        child.start()
        for _ in range(2000):
            assert all(len({*note}) == 1 for note, _ in notes.read())
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        assert all(len({*note}) == 1 for note, _ in notes.read())
