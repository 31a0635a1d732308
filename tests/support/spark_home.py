"""A home of Spark whose Python processes use the installed PySpark, as the driver does.

Spark puts ``python/lib/pyspark.zip`` of its home first on the path of each Python process that it starts. The archive
has no compiled modules: each process compiles what it imports anew, which is most of the processor time of a short
job. This home is a folder of links to the installed one and has no such archive.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path


def spark_home() -> Path:
    """The home, made at the first call; always at the same place, by which an archive of classes knows it."""
    import pyspark

    home = Path(sys.prefix) / "spark-home"
    home.mkdir(exist_ok=True)
    for part in ("bin", "sbin", "jars", "data", "licenses"):
        with suppress(FileExistsError):
            (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    return home
