"""The client's side of a server: connections, calls, errors, leases, and the embedded server."""

from .advice import ClientCertificate, TlsContexts, about, check_locations, check_mode, is_remote
from .calls import (
    AWAY,
    Call,
    EmbeddedEnded,
    ForkedProcess,
    NoAnswer,
    TimedOut,
    Unreachable,
    about_credentials,
    immortal_in_children,
    refuses,
    retrying,
)
from .closable import Closable
from .leases import LeaseKeeper, drop, owner, owner_of_process, user
from .stream_options import (
    Compression,
    Credentials,
    LaneChoice,
    Reading,
    ServerOptions,
    Timeouts,
    Writing,
    check_compression,
)
from .traces import of_users, short_traces
from .transport import RemoteServer, misdirected, sent_elsewhere
