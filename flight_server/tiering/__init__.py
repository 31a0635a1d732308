"""Moves frames between RAM and disk: admission, spilling, reading back, sealing durable datasets, recovery.

``transfer`` and ``sources`` admit, seal and read through it; ``node`` and ``server`` run the spiller and recovery.
"""

from .admission import Admission
from .durability import Durability
from .lost_frames import frame_lost
from .readback import ReadBack, Reader
from .recovery import recover
from .spiller import Spiller

__all__ = [
    "Admission",
    "Durability",
    "ReadBack",
    "Reader",
    "Spiller",
    "frame_lost",
    "recover",
]
