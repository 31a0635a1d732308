"""The host and the process: shared directories and memory, available memory, short pauses, freed pages, libraries kept
out, and PEM texts for TLS.
"""

from .board import Board
from .directories import HostDirectory, default_bases, locked, remove_ended, sweep
from .pauses import shorten_pauses
from .pem import expiry_seconds, load_pair
