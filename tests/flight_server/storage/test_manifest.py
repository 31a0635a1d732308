"""The content of a manifest; any other content is refused."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.records import OtherFormat
from flight_server.storage.manifest import FrameRecord, Manifest, PackedFrames, PartitionRecord, Torn
from tests.fuzz.targets.files import MANIFEST


def test_a_manifest_says_what_was_written() -> None:
    decoded = Manifest.decode(MANIFEST.encode())
    assert decoded == MANIFEST
    assert [(each.partition, at) for each, at in decoded.frames_by_partition()] == [(1, 0), (3, 2)]
    assert [each.rows for each in decoded.frames.part(2, 1)] == [7]


@pytest.mark.parametrize(
    ("magic", "transactions", "refusal", "sentence"),
    [
        (
            b"FLSHMAN3",
            b'"transactions":{"job":[1,3,3,1]},',
            OtherFormat,
            "has format FLSHMAN3, and this version",
        ),
        (b"FLSHMAN4", b'"transactions":{"job":3},', Torn, "3 is no transaction"),
        (b"FLSHMAN4", b"", Torn, "the header has other keys"),
    ],
)
def test_a_manifest_of_another_format_is_refused(
    magic: bytes, transactions: bytes, refusal: type[Exception], sentence: str
) -> None:
    now = b'"transactions":{"job":[1,3,3,1]},'
    data = MANIFEST.encode().replace(now, transactions).replace(b"FLSHMAN4", magic)
    (length,) = struct.unpack_from("<I", data, 8)
    body = data[:8] + struct.pack("<I", length - len(now) + len(transactions)) + data[12:-20]
    footer = struct.pack("<QI8s", len(body), google_crc32c.value(body), magic)
    with pytest.raises(refusal, match=sentence):
        Manifest.decode(body + footer)


@given(st.integers(0, len(MANIFEST.encode()) - 1), st.integers(1, 255))
def test_a_manifest_with_any_byte_changed_is_torn(place: int, change: int) -> None:
    data = bytearray(MANIFEST.encode())
    data[place] ^= change
    with pytest.raises(Torn):
        Manifest.decode(bytes(data))


@given(st.integers(0, len(MANIFEST.encode()) - 1), st.binary(max_size=40))
def test_a_manifest_that_is_cut_or_goes_on_is_torn(length: int, more: bytes) -> None:
    data = MANIFEST.encode()
    for wrong in (data[:length], data[:length] + more, data + more + b"x"):
        if wrong != data:
            with pytest.raises(Torn):
                Manifest.decode(wrong)


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": "../d"},
        {"kind": "other"},
        {"generation": "../../x"},
        {"segments": [("../segment-000001", 100), ("segment-000002", 10)]},
        {"segments": [("segment-000001", 99), ("segment-000002", 10)]},
        {"segments": [("segment-000001", 100)]},
        {"states": []},
        {"states": [[(0, [0])]]},
        {"partition_count": 3},
        {"partitions": [PartitionRecord(1, 0, 2, 2, 30, 60, 5)]},
        {"partitions": [PartitionRecord(1, 0, 3, 2, 30, 60, 5)]},
        {"retention": {"hours": 1}},
        {"transactions": {"a job": (1, 0, 3, 1)}},
        {"transactions": {"job": (1, 0, 3)}},
        {"transactions": {"job": (1, 0, 4, 1, 3, 1)}},
        {"forgotten": "AAAA"},
    ],
    ids=str,
)
def test_a_manifest_that_refers_to_what_is_not_there_is_neither_written_nor_read(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(MANIFEST, **change)
    with pytest.raises(Torn):
        wrong.encode()
    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "_check", lambda _: None)
        data = wrong.encode()
    with pytest.raises(Torn):
        Manifest.decode(data)


@pytest.mark.parametrize(
    ("offset", "size_bytes", "fits"),
    [
        (0, 100, True),
        (100, 0, True),
        (1, 100, False),
        (0, 101, False),
        (101, 0, False),
        (2**64 - 1, 2, False),
    ],
)
def test_a_frame_lies_within_its_segment(offset: int, size_bytes: int, *, fits: bool) -> None:
    frames = PackedFrames.of([FrameRecord(0, offset, size_bytes, 1, 0, 0, 0)])
    assert frames.within([100], 1) is fits
