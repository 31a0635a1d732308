"""What moves frames between RAM and disk."""

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
