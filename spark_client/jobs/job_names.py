"""The name of an exchange where Spark shows its jobs.

On Spark Classic it is the job's description in the web UI, in the place of the user's own, which is set again
afterwards. Spark Connect has no descriptions: there it is a tag of the operation, for ``interruptTag`` and the UI's
page of sessions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_DESCRIPTION = "spark.job.description"


@contextlib.contextmanager
def named(spark: Any, name: str | None) -> Iterator[None]:
    """The jobs that this thread starts in the block have the name; None leaves them as they are."""
    if name is None:
        yield
    elif "connect" in type(spark).__module__:
        tag = name.replace(",", " ")  # which separates tags
        theirs = tag in spark.getTags()
        spark.addTag(tag)
        try:
            yield
        finally:
            if not theirs:
                spark.removeTag(tag)
    else:
        context = spark.sparkContext
        before = context.getLocalProperty(_DESCRIPTION)
        context.setLocalProperty(_DESCRIPTION, name)
        try:
            yield
        finally:
            context.setLocalProperty(_DESCRIPTION, before)
