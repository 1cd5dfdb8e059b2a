"""The lock on the folder of a run: one process writes to it, a second is refused, and a killed one leaves no lock.

The lock is the operating system's, on the file ``run.lock``. It ends with its process in any case, so the file may
stay. POSIX locks belong to a process, not to a file descriptor: a child that outlives a killed run does not hold it,
and ``_HELD`` finds a second run in the same process.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hfdsl.errors import ConfigError, HfWarning
from hfdsl.types.foreign_text import parse_object

LOCK_FILE = "run.lock"
"""The locked file, which names the process that holds the lock or held it last."""

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""The errors of file systems without locks."""

_HELD: set[str] = set()
_HELD_GUARD = threading.Lock()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder of a run within this context, and create it if it is missing.

    Raises:
        ConfigError: HF901 if the folder cannot be written, HF914 if a run writes to it.
    """
    file = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = file.open("a+b")
    except OSError as error:
        raise ConfigError("HF901", f"'output': '{folder}' cannot be written: {error.strerror}", "output") from None
    name = os.path.realpath(file)
    with opened:
        with _HELD_GUARD:
            if name in _HELD or not _locks(opened, folder):
                raise ConfigError("HF914", f"'output': {_holder(opened)} is writing to '{folder}'", "output")
            _HELD.add(name)
        try:
            _sign(opened)
            yield
        finally:
            _HELD.discard(name)


def _locks(file: BinaryIO, folder: Path) -> bool:
    """Whether this process gets the lock; without locks in the system or file system always, with a warning."""
    try:
        import fcntl
    except ImportError:
        problem = f"{platform.system()} has no POSIX locks: nothing prevents a second run from writing to '{folder}'"
        warnings.warn(HfWarning("HF914", problem), stacklevel=5)
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            return False
        problem = f"the file system of '{folder}' has no locks: nothing prevents a second run from writing there"
        warnings.warn(HfWarning("HF914", problem), stacklevel=5)
    return True


def _sign(file: BinaryIO) -> None:
    """Write the process that holds the lock, for the error of others."""
    file.truncate(0)
    began = time.strftime("%Y-%m-%d %H:%M:%S")
    file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "began": began}).encode() + b"\n")
    file.flush()


def _holder(file: BinaryIO) -> str:
    """The process that holds the lock, if the file names it."""
    file.seek(0)
    try:
        signed = parse_object(file.read())
        return f"process {signed['pid']} on '{signed['host']}', which began {signed['began']},"
    except (ValueError, KeyError):
        return "another process"
