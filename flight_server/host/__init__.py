"""The host and the process: shared directories and memory, available memory, libraries kept out, and PEM
texts for TLS.
"""

from .board import Board
from .directories import HostDirectory, default_bases, locked, remove_ended, sweep, try_lock
from .pem import expiry_seconds, load_pair
