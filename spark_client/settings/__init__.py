"""The table of options, the settings of a session's ``spark.flight.shuffle.*``, and the clients made of them."""

from .client_options import (
    CREDENTIALS,
    LEASE_SECONDS,
    ClientOptions,
    apart,
    check_options,
    check_settings,
    of_calls,
    of_values,
)
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
    options_of,
)
from .server_settings import ServerSettings, StartingOptions
from .session_conf import session_arguments
from .texts import EMBEDDED, EXECUTORS
