"""Puts and reads, the same on both lanes. It knows neither gRPC nor HTTP."""

from .answer_room import AnswerRoom, MadeAnswer
from .arriving import Arriving, too_much
from .delivery import Delivery
from .eviction import NEWCOMERS_SECONDS, Eviction
from .frame_ranges import FrameRange, Trailers
from .listed_reads import send_partitions, send_versions
from .offloading import Offloads
from .reading import FrameBurst, Gathering, Outgoing, Reads, head_of_read
from .reading_plans import plan_bytes, plan_json
from .receiving import Producer, PutReceiver, parse_descriptor
from .request_limits import MAX_CONTROL_BYTES, action_limit_bytes, check_size, counted, message_limit_bytes
