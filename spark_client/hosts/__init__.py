"""Files that the processes of one host share. For ``broadcast``, ``lookup``, ``jobs`` and ``client``."""

from .host_files import Copies, HostFile, HostFiles, Part

__all__ = [
    "Copies",
    "HostFile",
    "HostFiles",
    "Part",
]
