"""What SQLite does to its files, seen and broken from Python: it writes in C, where wrapped functions of ``os`` see
nothing.

``with watching(around):`` calls ``around(what, path, work)`` for each ``write``, ``sync``, ``truncate`` and ``unlink``
of a file of SQLite (the database, its ``-wal``). ``around`` calls ``work()``, which does it, or not; where it raises
OSError SQLite gets that error as from the disk: ENOSPC of a write is SQLITE_FULL, EIO of a sync SQLITE_IOERR_FSYNC. So
an error of a commit's sync leaves its transaction in the log, as on a real disk.

Limits: files opened before the first ``watching`` of a process are not seen; nor is ``-shm``, which SQLite maps, and
which a start makes anew. The first sync of a new log also syncs its directory (``LOGS``), which is not seen.

It is a VFS of SQLite (sqlite.org/vfs.html) around the default one, for the life of the process.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

Work = Callable[[], None]
Around = Callable[[str, Path, Work], None]

LOGS = ("-wal", "-journal")
"""The ends of the names of SQLite's logs. The first sync of a new one also syncs its directory."""
_OK, _FULL = 0, 13
_IOERR_WRITE, _IOERR_FSYNC, _IOERR_TRUNCATE, _IOERR_DELETE = (10 | number << 8 for number in (3, 4, 6, 10))
_CODES = {"write": _IOERR_WRITE, "sync": _IOERR_FSYNC, "truncate": _IOERR_TRUNCATE, "unlink": _IOERR_DELETE}

_Write = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_Truncate = ctypes.CFUNCTYPE(c_int, c_void_p, c_int64)
_Sync = ctypes.CFUNCTYPE(c_int, c_void_p, c_int)
_Open = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_Delete = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)


class _Methods(ctypes.Structure):
    """sqlite3_io_methods."""

    _fields_ = [  # as ctypes has it
        ("version", c_int),
        ("close", c_void_p),
        ("read", c_void_p),
        ("write", c_void_p),
        ("truncate", c_void_p),
        ("sync", c_void_p),
        ("others", c_void_p * 13),
    ]


class _File(ctypes.Structure):
    """sqlite3_file."""

    _fields_ = [("methods", POINTER(_Methods))]


class _Vfs(ctypes.Structure):
    """sqlite3_vfs."""

    _fields_ = [
        ("version", c_int),
        ("file_bytes", c_int),
        ("path_bytes", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", c_void_p),
        ("delete", c_void_p),
        ("others", c_void_p * 14),
    ]


class _Refused(Exception):
    """SQLite's own VFS has answered with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(str(code))
        self.code = code


@contextmanager
def watching(around: Around) -> Iterator[None]:
    """See the module's text. One at a time."""
    shim = _shim()
    assert shim.around is None, "SQLite's files are watched already"
    shim.around = around
    try:
        yield
    finally:
        shim.around = None


def watch(around: Around) -> None:
    """As :func:`watching`, for the rest of the life of the process."""
    _shim().around = around


@cache
def _shim() -> _Shim:
    return _Shim()


class _Shim:
    """The VFS; what it made must live as long as SQLite has pointers to it."""

    def __init__(self) -> None:
        self.around: Around | None = None
        self._paths: dict[int, Path] = {}  # by the address of the open file
        self._methods: dict[int, tuple[_Methods, tuple[Any, ...]]] = {}  # by the address of SQLite's own
        library = ctypes.CDLL(
            _sqlite3.__file__
        )  # finds the functions of the library that it is linked with, too
        library.sqlite3_vfs_find.restype = POINTER(_Vfs)
        library.sqlite3_vfs_register.argtypes = [POINTER(_Vfs), c_int]
        whole = library.sqlite3_vfs_find(None).contents
        self._vfs = _Vfs.from_buffer_copy(whole)
        self._vfs.name = b"watched"
        self._vfs.next = None
        self._open, self._delete = _Open(whole.open), _Delete(whole.delete)
        self._own = _Open(self._opened), _Delete(self._deleted)
        self._vfs.open, self._vfs.delete = (ctypes.cast(each, c_void_p).value for each in self._own)
        assert library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1) == _OK

    def _opened(self, vfs: int, name: int | None, file: int, flags: int, out_flags: int | None) -> int:
        code: int = self._open(vfs, name, file, flags, out_flags)
        handle = _File.from_address(file)
        if code == _OK and name and handle.methods:
            self._paths[file] = Path(ctypes.string_at(name).decode())
            handle.methods = ctypes.pointer(self._watched(handle.methods))
        return code

    def _watched(self, methods: Any) -> _Methods:
        address = ctypes.addressof(methods.contents)
        if address not in self._methods:
            original = methods.contents
            copy = _Methods.from_buffer_copy(
                ctypes.string_at(address, ctypes.sizeof(_Methods))
                if original.version >= 3
                else ctypes.string_at(address, ctypes.sizeof(_Methods) - 2 * ctypes.sizeof(c_void_p))
                + bytes(2 * ctypes.sizeof(c_void_p))
            )
            callbacks = (
                _Write(self._writing(_Write(original.write))),
                _Truncate(self._truncating(_Truncate(original.truncate))),
                _Sync(self._syncing(_Sync(original.sync))),
            )
            copy.write, copy.truncate, copy.sync = (ctypes.cast(each, c_void_p).value for each in callbacks)
            self._methods[address] = copy, callbacks
        return self._methods[address][0]

    def _writing(self, original: Any) -> Callable[[int, int, int, int], int]:
        def write(file: int, data: int, size_bytes: int, offset: int) -> int:
            return self._do("write", self._paths[file], lambda: original(file, data, size_bytes, offset))

        return write

    def _truncating(self, original: Any) -> Callable[[int, int], int]:
        def truncate(file: int, size_bytes: int) -> int:
            return self._do("truncate", self._paths[file], lambda: original(file, size_bytes))

        return truncate

    def _syncing(self, original: Any) -> Callable[[int, int], int]:
        def sync(file: int, flags: int) -> int:
            return self._do("sync", self._paths[file], lambda: original(file, flags))

        return sync

    def _deleted(self, vfs: int, name: bytes, syncs_directory: int) -> int:
        return self._do("unlink", Path(name.decode()), lambda: int(self._delete(vfs, name, syncs_directory)))

    def _do(self, what: str, path: Path, call: Callable[[], int]) -> int:
        def work() -> None:
            if (code := call()) != _OK:
                raise _Refused(code)

        try:
            if self.around is None:
                work()
            else:
                self.around(what, path, work)
        except _Refused as refused:
            return refused.code
        except OSError as error:
            return _FULL if what == "write" and error.errno == errno.ENOSPC else _CODES[what]
        return _OK
