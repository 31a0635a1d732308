"""Frames: decoded, encoded, built from a producer's messages, and kept in tables."""

from .builder import Checked, FrameBuilder
from .decoder import COSTLY_HEADER_BYTES, Accepted, FrameDecoder, Inspected
from .dictionary_rooms import DictionaryRooms
from .encoder import TARGET_BYTES, Encoder, cut_to_messages
from .joining import FrameJoiner
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
from .number_ranges import NumberRanges
from .records import Packed, Records, pack, unpacked
from .schema_size import check_footer, measure
from .schemas import SchemaMessage, Schemas, check_text, has_dictionaries
from .table import FrameTable
