"""Tables of frames as bytes and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flight_server.frames import NO_DICTIONARIES, DictionaryState, Packed, Records, pack, unpacked
from flight_server.memory import Metadata
from flight_server.storage import Segment
from tests.support.examples import examples
from tests.support.segment_files import segment_writer

MANY_ROWS = 1 << 33


def segments(directory: Path, count: int) -> list[Segment]:
    """Files of one byte after the header."""
    return [segment_writer(directory).append([b"x"])[0].segment for _ in range(count)]


def table(frames: list[tuple[int, int, int]], states: list[DictionaryState], files: list[Segment]) -> Records:
    """A table of frames, each with its size, the number of its state and of its file."""
    made = Records(Metadata(), "d")
    offsets = dict.fromkeys(files, 0)
    for number, (size_bytes, state, file) in enumerate(frames):
        segment = files[file]
        rows = MANY_ROWS + number if size_bytes % 7 == 0 else number
        index = made.add(size_bytes, rows, number * 3, number * 5, states[state])
        made.place(index, segment, offsets[segment])
        offsets[segment] += size_bytes
    return made


def loaded(packed: Packed, place: int, like: Records, total_bytes: int) -> Records:
    return unpacked(
        packed.tables[place],
        len(like),
        total_bytes,
        room=Metadata().pool.empty(),
        files=list(packed.files.items()),
        states=packed.states,
    )


frames = st.lists(
    st.tuples(st.integers(0, 1 << 28), st.integers(0, 2), st.integers(0, 2)), max_size=8
).flatmap(lambda few: st.integers(0, 300).map(lambda times: (few * times)[:1500]))


@settings(max_examples=examples(1), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), tables=st.lists(frames, min_size=1, max_size=3))
def test_unpacked_tables_are_what_was_packed(
    tmp_path: Path, data: st.DataObject, tables: list[list[tuple[int, int, int]]]
) -> None:
    files = segments(tmp_path / "segments", 3)
    states = [NO_DICTIONARIES, DictionaryState({}), DictionaryState({})]
    made = [table(each, states, files) for each in tables]
    for each in made:
        each.release(data.draw(st.integers(0, len(each))))
    packed = pack([each.copied() for each in made])
    for place, each in enumerate(made):
        left = list(each.records())
        assert packed.frame_bytes[place] == sum(record.size_bytes for record in left)
        total_bytes = sum(size_bytes for size_bytes, _, _ in tables[place])
        again = loaded(packed, place, each, total_bytes)
        assert (len(again), again.first, list(again.records())) == (len(each), each.first, left)
        assert again.sizes() == [record.size_bytes for record in left]
        assert set(again.segments()) == {record.segment for record in left}
        for index in range(again.first, len(again), 100):
            after_bytes = sum(record.size_bytes for record in left[index - again.first :])
            assert again.bytes_before(index) == total_bytes - after_bytes
        again.release(len(again))
        assert again.segments() == []


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("offset", 1 << 63, "within its file"),
        ("size_bytes", 5000, "within its file"),
        ("file", 1, "in no file"),
    ],
)
def test_a_number_that_does_not_fit_is_damage(tmp_path: Path, field: str, value: int, why: str) -> None:
    files = segments(tmp_path / "segments", 1)
    made = table([(10, 0, 0), (10, 0, 0)], [NO_DICTIONARIES], files)
    packed = pack([made])
    record = np.dtype(
        {"names": ["offset", "size_bytes", "file"], "formats": ["<u8", "<u4", "<u4"], "offsets": [0, 8, 24]}
    )
    changed = bytearray(packed.tables[0])
    view = np.frombuffer(changed, np.uint8)[24 : 24 + 2 * 28]
    view.view(record)[field][1] = value
    for data, reason in ((bytes(changed), why), (packed.tables[0][:-1], "length"), (b"", "length")):
        with pytest.raises(ValueError, match=reason):
            loaded(packed._replace(tables=[data]), 0, made, 20)


def test_an_unknown_state_is_damage(tmp_path: Path) -> None:
    made = table([(10, 0, 0)], [NO_DICTIONARIES], segments(tmp_path / "segments", 1))
    packed = pack([made])
    with pytest.raises(ValueError, match="state"):
        loaded(packed._replace(states=[]), 0, made, 10)
