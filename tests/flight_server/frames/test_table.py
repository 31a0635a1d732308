"""The table of frames whose bytes several writers have put on disk."""

from __future__ import annotations

from pathlib import Path

from flight_server.frames import FrameTable
from flight_server.frames.message import Frame
from flight_server.memory import Metadata
from flight_server.storage.segments import SegmentWriter
from tests.support.frames import frame
from tests.support.segment_files import segment_writer


def written(writer: SegmentWriter, *frames: Frame) -> None:
    """Move the frames to the writer's disk."""
    payloads = [one.payload for one in frames if one.payload is not None]
    for one, slice_ in zip(frames, writer.append([each.data for each in payloads]), strict=True):
        one.move_to(slice_)


def test_a_table_that_adopts_frames_finds_each_in_the_segment_of_its_own_writer(tmp_path: Path) -> None:
    staged, target = (segment_writer(tmp_path / name) for name in ("staged", "target"))
    attempt, partition = (FrameTable(Metadata(), "d", 0) for _ in range(2))
    frames = [frame(b"frame %d" % number) for number in range(30)]
    for one in frames:
        attempt.append(one, one.size_bytes)
    written(staged, *frames[:10])
    # The spiller has taken these for the staged dataset, and writes them while it is appended.
    payloads = [one.payload for one in frames[10:20] if one.payload is not None]
    slices = staged.append([each.data for each in payloads])
    for index in range(30):
        partition.adopt(attempt, index)
    attempt.release(30)
    for one, slice_ in zip(frames[10:20], slices, strict=True):
        one.move_to(slice_)
    written(target, *frames[20:])
    del frames, one, slices, slice_, payloads, attempt
    assert [partition.item(index).read_back() for index in range(30)] == [
        b"frame %d" % number for number in range(30)
    ]
    assert len({segment.path for segment in partition.segments()}) == 2
    partition.release(20)
    assert [segment.path.parent.name for segment in partition.segments()] == ["target"]
    assert not list((tmp_path / "staged").glob("*.frames")), (
        "the last frame of a segment takes its file with it"
    )
