"""What a put and a read do, the same on both lanes. The lanes use it; it knows neither gRPC nor HTTP."""

from .answer_room import AnswerRoom
from .delivery import Delivery
from .descriptors import parse_descriptor
from .eviction import NEWCOMERS_SECONDS, Eviction
from .frame_ranges import FrameRange, check_no_range
from .producers import Producer
from .reading import Outgoing, Reads, Run, check_no_versions, head_of_read
from .reading_plans import plan
from .receiving import PutReceiver
from .request_limits import MAX_CONTROL_BYTES, action_limit_bytes, check_size, counted, message_limit_bytes
from .seals import seal
from .version_appends import VersionAppends

__all__ = [
    "MAX_CONTROL_BYTES",
    "NEWCOMERS_SECONDS",
    "AnswerRoom",
    "Delivery",
    "Eviction",
    "FrameRange",
    "Outgoing",
    "Producer",
    "PutReceiver",
    "Reads",
    "Run",
    "VersionAppends",
    "action_limit_bytes",
    "check_no_range",
    "check_no_versions",
    "check_size",
    "counted",
    "head_of_read",
    "message_limit_bytes",
    "parse_descriptor",
    "plan",
    "seal",
]
