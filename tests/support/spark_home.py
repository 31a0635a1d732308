"""A home of Spark whose processes start faster than those of the installed PySpark's, which it is a folder of links to.

Spark puts ``python/lib/pyspark.zip`` of its home first on the path of each Python process that it starts. The archive
has no compiled modules: each process compiles what it imports anew, which is most of the processor time of a short
job. This home has no such archive; its Python processes use the installed PySpark, as the driver does.

Two of Spark's jars, those of the compiler of its generated code, are signed. A JVM verifies each class of them, and
takes none from an archive of classes: that is a tenth of the processor time of a short job. Here they are copies
without the signatures.
"""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from pathlib import Path
from tempfile import mkdtemp

_LINKED = ("bin", "sbin", "data", "licenses")
_SIGNATURE = re.compile(r"META-INF/[^/]+\.(SF|RSA|DSA|EC)")


def spark_home() -> Path:
    """The home, made at the first call; always at the same place, by which an archive of classes knows it."""
    import pyspark

    home = Path(sys.prefix) / f"spark-{pyspark.__version__}"
    if not home.exists():
        new = Path(mkdtemp(prefix=home.name, dir=sys.prefix))
        _fill(new, Path(pyspark.__file__).resolve().parent)
        try:
            new.rename(home)
        except OSError:
            shutil.rmtree(new)
            if not home.exists():
                raise
    return home


def _fill(home: Path, installed: Path) -> None:
    home.chmod(0o755)
    for part in _LINKED:
        (home / part).symlink_to(installed / part)
    (home / "jars").mkdir()
    for jar in sorted((installed / "jars").iterdir()):
        target = home / "jars" / jar.name
        if jar.suffix != ".jar" or not _copy_unsigned(jar, target):
            target.symlink_to(jar)


def _copy_unsigned(jar: Path, target: Path) -> bool:
    """Whether it is signed, and was copied without its signatures."""
    with zipfile.ZipFile(jar) as signed:
        kept = [entry for entry in signed.infolist() if not _SIGNATURE.fullmatch(entry.filename)]
        if len(kept) == len(signed.infolist()):
            return False
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as copy:
            for entry in kept:
                copy.writestr(entry, signed.read(entry))
    return True
