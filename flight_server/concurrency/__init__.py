"""Queues, waits and background tasks on the event loop, for the server's other rooms, without Arrow or gRPC."""

from flight_server.protocol import transitions

from .background import Background, seconds_to_tick
from .broadcast_queue import BroadcastQueue, EndOfQueue, Gone, Subscription, WouldBlock
from .changes import Changes
from .loop_lag import LoopLag
from .running import Running
from .shielded import in_thread, to_its_end
from .slices import FEW, Slice, at_once, dumped, emptied, in_slices, in_steps, later, run_later
from .turns import Turns
from .waits import WAITED_FOR, Waits
