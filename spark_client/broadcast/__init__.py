"""Broadcasts: one table for every task, one copy per host. Made by ``ShuffleClient.broadcast``."""

from .broadcasts import Broadcast, Unpersisted

__all__ = [
    "Broadcast",
    "Unpersisted",
]
