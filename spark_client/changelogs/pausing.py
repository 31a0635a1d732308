"""The pause before a call is tried again."""

from __future__ import annotations

import random
import time

from spark_client.connection import Timeouts


def pause(timeouts: Timeouts, failures: int) -> None:
    """Wait a random time of up to ``backoff_seconds * 2^k`` after this many failures, at least 1, see ``Timeouts``."""
    most = min(timeouts.backoff_limit_seconds, timeouts.backoff_seconds * 2 ** (failures - 1))
    time.sleep(random.uniform(0, most))  # noqa: S311 - not a secret
