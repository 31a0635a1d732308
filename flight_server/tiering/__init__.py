"""Moves frames between RAM and disk: admission, spilling, reading back, sealing durable datasets, recovery."""

from .admission import Admission
from .durability import Durability
from .lost_frames import frame_lost
from .readback import ReadBack, Reader
from .recovery import recover
from .spiller import Spiller
