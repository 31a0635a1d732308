"""The host and the process: shared directories and memory, available memory, short pauses, and libraries kept out."""

from .board import Board
from .directories import IDLE_SECONDS, HostDirectory, default_bases, locked, remove_ended, sweep
from .pauses import shorten_pauses
