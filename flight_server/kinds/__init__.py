"""Kinds of datasets: the contract of a kind, and streams and shuffles, whose data are frames. The other kinds are rooms
of their own.
"""

from .kind import Action, DatasetKind, Kinds, VersionBurst, VersionedMessage, VersionRead
from .shuffle import ShuffleKind
from .sinks import BatchSink, FrameSink, Sink, check_no_deletes, check_no_transaction, check_totals, committed
from .stream import StreamKind
