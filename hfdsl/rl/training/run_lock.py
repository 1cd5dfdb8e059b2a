"""One process writes to the folder of a run: a second one is refused, and what a kill leaves refuses nobody.

The lock is the operating system's, on the file ``run.lock``. It ends with its process, however that ends, so the file
may stay. Locks of POSIX belong to a process and not to a file descriptor: a child that outlives a killed run does not
hold it, and a second run in the same process is found in ``_HELD``.
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
"""The file that is locked; it names the process that holds the lock, or held it last."""

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""What a file system without locks answers."""

_HELD: set[str] = set()
_HELD_GUARD = threading.Lock()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Within this, no other process writes to the folder of a run, which exists afterwards.

    Raises:
        ConfigError: HF901 where the folder cannot be written, HF914 where a run writes to it.
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
    """Whether this process has the lock now; on a system or file system without locks always, with a warning."""
    try:
        import fcntl
    except ImportError:
        problem = f"{platform.system()} has no locks of POSIX: nothing keeps a second run from writing to '{folder}'"
        warnings.warn(HfWarning("HF914", problem), stacklevel=5)
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            return False
        problem = f"the file system of '{folder}' has no locks: nothing keeps a second run from writing there"
        warnings.warn(HfWarning("HF914", problem), stacklevel=5)
    return True


def _sign(file: BinaryIO) -> None:
    """Write which process holds the lock, for the message that others get."""
    file.truncate(0)
    began = time.strftime("%Y-%m-%d %H:%M:%S")
    file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "began": began}).encode() + b"\n")
    file.flush()


def _holder(file: BinaryIO) -> str:
    """The process that holds the lock, as far as the file names it."""
    file.seek(0)
    try:
        signed = parse_object(file.read())
        return f"process {signed['pid']} on '{signed['host']}', which began {signed['began']},"
    except (ValueError, KeyError):
        return "another process"
