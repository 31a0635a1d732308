"""The knowledge that server and clients share: errors, requests, tickets, headers, framing, and tables of states.

It needs the standard library only, but for ``checksums``, which is imported apart.
"""

from .addresses import bracketed, is_loopback
from .bodies import Body, Faults, Fields, InJson, Name, Request, Text, integer, one_of, parse_as, with_numbers
from .cutting import cut
from .dataset_names import check_dataset_name
from .errors import (
    ERROR_TRAILER,
    AlreadyExists,
    BadFrame,
    Compacted,
    Conflict,
    CorruptFrame,
    DamagedMessage,
    DataQuarantined,
    DatasetDropped,
    Draining,
    FlightShuffleError,
    Forbidden,
    InternalError,
    InvalidRequest,
    NotFound,
    OutOfBudget,
    PartitionFailed,
    ProducerFailed,
    ProducerStalled,
    QuotaExceeded,
    QuotaInUse,
    ReaderTooSlow,
    ReadTrouble,
    Released,
    ServerLost,
    SourceUnavailable,
    StaleTicket,
    Unauthenticated,
    Unavailable,
    Unsupported,
    error_classes,
    from_json,
)
from .headers import (
    AS_STORED,
    BATCHES_HEADER,
    CHECKSUMS,
    CHECKSUMS_HEADER,
    CRC_TRAILER,
    FRAMES_TRAILER,
    FROM_TRAILER,
    GENERATION_HEADER,
    PARTITION_ENDED,
    PARTITION_HEADER,
    ROWS_TRAILER,
    UNTIL_TRAILER,
    PartitionEnd,
)
from .ipc_framing import END_OF_STREAM, IpcHeader, MessageKind, Table, encapsulate
from .keep_rules import DIFF_COLUMN, HASH_COLUMN, RESERVED_COLUMNS, VERSION_COLUMN, KeepRule, Order, RuleName
from .put_framing import (
    ACCEPTED,
    ANSWER_HEAD,
    CHECKED_LENGTH,
    LENGTH,
    PUT_PATH,
    REFUSED,
    RESULT,
    UPGRADE,
    answer,
)
from .requests import (
    ACKNOWLEDGE,
    ACKNOWLEDGE_HEADER,
    ACTIONS,
    COPIES,
    DEFAULT_HTTP_PORT,
    DEFAULT_PORT,
    HOLD,
    MAX_OWNER_CHARACTERS,
    PLAN,
    REUSE_CONNECTION,
    VERSIONED,
    WRITE_LEASE_SECONDS,
    AcknowledgeRequest,
    CopiesRequest,
    CopyVerb,
    CreateRequest,
    DatasetRequest,
    HoldRequest,
    Kind,
    PlanRequest,
    Retention,
    SealRequest,
    ServerPortion,
    WriteMode,
)
from .shown_addresses import shown
from .size_units import SIZE_SETTINGS, check_size, parse_size
from .state_tables import transitions
from .stored_objects import (
    ObjectIndex,
    Piece,
    StoredPartition,
    check_allowed,
    check_prefix,
    folder_of,
    index_of,
    is_local,
    is_object,
    object_of,
)
from .stream_requests import (
    ALL,
    MAX_PARTITIONS,
    Commit,
    PutCommand,
    PutCreate,
    Ticket,
    Transaction,
    Versions,
    are_partitions,
    bulk_path,
    check_attempt,
    check_generation,
    check_range,
    parse_partition,
    partition_metadata,
)
from .strict_json import MAX_SMALL_PARSED_BYTES, dump_json, parse_json, parsed_bytes
from .suggestions import did_you_mean, nearest
from .wire import check_few_fields, locate
