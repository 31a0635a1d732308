"""Files that the processes of one host share."""

from .host_files import Copies, HostFile, HostFiles, PartFile
from .open_files import OpenFiles
