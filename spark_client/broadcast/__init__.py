"""Broadcasts: one table for every task, one copy per host."""

from .broadcasts import Broadcast, SmallTable
from .carried_table import CARRIED_BYTES, CarriedTable
