"""Frames: decoded, encoded, built from a producer's messages, and kept in tables.

``datasets`` keeps them, ``transfer`` and ``sources`` make them, ``tiering`` moves them between RAM and disk.
"""

from .builder import Checked, FrameBuilder
from .decoder import COSTLY_HEADER_BYTES, Accepted, FrameDecoder, Inspected
from .encoder import TARGET_BYTES, Encoder
from .message import (
    NO_DICTIONARIES,
    DictionaryMessage,
    DictionaryState,
    Frame,
    Links,
    Message,
    Payload,
    messages_of,
    missing_messages,
    stored_checksums,
)
from .records import Record, Records
from .schema_message import SchemaMessage
from .schema_size import check_footer, measure
from .schema_text import check_text
from .schemas import Schemas
from .table import FrameTable

__all__ = [
    "COSTLY_HEADER_BYTES",
    "NO_DICTIONARIES",
    "TARGET_BYTES",
    "Accepted",
    "Checked",
    "DictionaryMessage",
    "DictionaryState",
    "Encoder",
    "Frame",
    "FrameBuilder",
    "FrameDecoder",
    "FrameTable",
    "Inspected",
    "Links",
    "Message",
    "Payload",
    "Record",
    "Records",
    "SchemaMessage",
    "Schemas",
    "check_footer",
    "check_text",
    "measure",
    "messages_of",
    "missing_messages",
    "stored_checksums",
]
