"""Moves frames between RAM and disk: admission, spilling, reading back, sealing durable datasets, recovery."""

from .admission import Admission
from .durability import Durability
from .loading import Loading
from .readback import ReadBack, Reader, frame_lost
from .recovery import delete_garbage, recover, set_aside
from .spiller import Spiller
