"""The client's side of a server: connections, calls, errors, leases, and the embedded server."""

from .advice import about, check_location, check_locations, check_mode
from .calls import Call, EmbeddedEnded, ForkedProcess, TimedOut, Unreachable, immortal_in_children
from .drops import drop
from .leases import LeaseKeeper
from .owners import owner, owner_of_process, user
from .proxies import is_loopback, proxy_of
from .refusals import refuses
from .restarts import AWAY, retrying
from .stream_options import Compression, Reading, Timeouts, Writing, check_compression
from .tls import ClientCertificate, TlsContexts
from .transport import CREDENTIALS, RemoteServer
