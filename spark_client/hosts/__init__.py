"""Files that the processes of one host share. For ``broadcast``, ``jobs`` and ``client``."""

from .host_files import Copies, HostFile, HostFiles

__all__ = [
    "Copies",
    "HostFile",
    "HostFiles",
]
