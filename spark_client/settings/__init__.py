"""The table of options, the settings of a session's ``spark.flight.shuffle.*``, and the clients made of them."""

from .open_clients import open_client
from .option_table import (
    ANY_READ,
    BATCH_READ,
    BATCH_WRITE,
    LIMITS,
    OF_CHANGELOGS,
    OF_PARTITIONS,
    OF_SPARK,
    SESSION,
    STREAM_READ,
    STREAM_WRITE,
    Option,
    fields_of,
    options_of,
)
from .session_conf import client_arguments
from .texts import EMBEDDED, EXECUTORS
