"""A session's settings, read once for the calls of a block: a reading of one takes a trip to the JVM, or to a server.

Guarantee: in a block of :func:`settings_once` each setting has one value: the session's at a moment in the block, or
what it was in an earlier block while the same was set as at the beginning of this one. Outside of blocks a setting is
what it is when it is read.

On Spark Classic a block begins with one trip, for a digest of all that is set: defaults are those of Spark's version.
Later blocks know a value if the digest was still the same when it had been read, and the value then, too: another
thread may set it for a moment. On Spark Connect a block knows nothing of earlier ones.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from spark_client.pyspark_parts import interrupts_kept

_Values = dict[str, str]
_known: weakref.WeakKeyDictionary[SparkSession, tuple[bytes, _Values]] = weakref.WeakKeyDictionary()
_settings: weakref.WeakKeyDictionary[SparkSession, Any] = weakref.WeakKeyDictionary()
"""The JVM's map of all that is set in a session."""


class _Block(threading.local):
    """That of this thread: the digest at its beginning, its values, and those that later blocks may know."""

    spark: SparkSession | None = None
    digest: bytes | None
    values: _Values
    known: _Values


_block = _Block()


@contextmanager
def settings_once(spark: SparkSession) -> Iterator[None]:
    """The block. One inside of another one, of the same thread, is part of it."""
    if _block.spark is not None:
        yield
        return
    _block.digest = digest = _digest(spark)
    before = _known.get(spark)
    _block.known = before[1].copy() if before is not None and before[0] == digest else {}
    _block.values = _block.known.copy()
    _block.spark = spark
    try:
        yield
    finally:
        _block.spark = None
        if digest is not None:
            _known[spark] = digest, _block.known


def once(spark: SparkSession, name: str, read: Callable[[str], str]) -> str:
    """The setting, which ``read`` reads if no block has; an error of ``read`` is not remembered."""
    if _block.spark is not spark:
        return read(name)
    value = _block.values.get(name)
    if value is None:
        value = _block.values[name] = read(name)
        if _block.digest is not None and _digest(spark) == _block.digest and read(name) == value:
            _block.known[name] = value
    return value


def _digest(spark: Any) -> bytes | None:
    """Of all that is set in the session; None where it cannot be told in one trip."""
    if "connect" in type(spark).__module__:
        return None
    try:
        with interrupts_kept():
            settings = _settings.get(spark)
            if settings is None:
                settings = _settings[spark] = spark._jsparkSession.sessionState().conf().settings()
            text = settings.toString()
    except Exception:  # noqa: BLE001 - of a version of Spark that has no such object, or of a session that has ended
        return None
    return hashlib.sha256(str(text).encode()).digest()
