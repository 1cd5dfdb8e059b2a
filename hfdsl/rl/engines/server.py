"""The main program of an engine's process, which answers the calls of the process that started it.

A call is a tuple of a method's name and its arguments, and has one answer. ``load`` continues after it, part by part::

    caller                          engine
    ("load", part, version)    ->
    WeightPart(a, b)           ->
                               <-   "more"            a and b are in the model
    None                       ->
                               <-   Reply(None)       and so is the whole state, as this version

An engine that copies weights reads them in the caller's own memory, if they stay there. They are sent once, and read
again in every later load, until ``release``. Nothing follows them, so such a load waits for one answer::

    ("load", part, version)    ->
    Lent(a, b) or "again"      ->
                               <-   Reply(None)       the caller may change a and b

An engine that shares its memory is written by the caller itself, which opens it once. From ``write`` to ``written``
the engine has no version and leaves its weights alone. A round trip takes as long as receiving 100 MB, so the caller
waits for none: it reads each answer before the first one of a later call that it does wait for::

    ("share",)                 ->
                               <-   Reply(memory)     pickled; None if it has no memory to share
    ("finish",)                ->                     after ``share``, and after each ``generate``
                               <-   Reply(None)       the device has finished, and the caller may write
    ("write",)                 ->                     after this answer; the caller begins to write
                               <-   Reply(None)       what was computed with the old weights is dropped
    ("written", version)       ->                     the caller has written
                               <-   Reply(None)

If it cannot drop that, both answers are failures, and it has no version: it would sample from what old weights left.

An engine that sleeps without its weights has no version until they are loaded, and refuses to sample before that, as it
does when it has been started.

The process ends with its caller: at the end of the socket, or when it has another parent.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Final

import torch

from hfdsl.rl.engines.interface import EngineStart, GenerationEngine, Lent, LoadPart
from hfdsl.rl.engines.parts import WeightPart
from hfdsl.rl.engines.weights import Weights

MORE: Final = "more"
"""The reply that requests the next part of the weights."""

AGAIN: Final = "again"
"""The message that stands for the weights that were lent last."""

SAMPLING: Final = ("generate", "begin", "step")
"""The methods whose last argument, the expected versions, is not passed on to the engine."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The value that a call returned."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a call failed: the last line of a traceback, all of it, and the code of a user's mistake."""

    problem: str
    text: str = ""
    code: str | None = None


def main() -> None:
    """Serve until the caller goes away; the arguments are the number of its socket, and a folder."""
    folder = Path(sys.argv[2])
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    # Shared memory is handed over by a socket of multiprocessing's, which asks for the key.
    multiprocessing.current_process().authkey = connection.recv_bytes()
    threading.Thread(target=_end_with, args=(os.getppid(), folder), daemon=True).start()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(connection, folder)
    os._exit(0)  # not sys.exit: threads of an engine may wait forever


def serve(connection: Connection[Any, Any], folder: Path) -> None:
    """Start the requested engine from a folder, remove the folder, and answer calls."""
    start = connection.recv()
    shortage = memory_shortage(start)
    if shortage is not None:
        connection.send(Failure(shortage, code="HF952"))
        return
    (folder / "config.json").write_text(start.config, "utf-8")
    started = _attempt(_adapter, start, folder)
    shutil.rmtree(folder, ignore_errors=True)
    if isinstance(started, Failure):
        connection.send(started)
        return
    server = _Server(connection, started.value)
    connection.send(Reply(started.value.copies))
    while True:
        method, *arguments = connection.recv()
        connection.send(server.answer(method, arguments))


class _Server:
    """An engine that is called, and the versions of the weights that it has."""

    def __init__(self, connection: Connection[Any, Any], engine: Any) -> None:
        self._connection, self._engine = connection, engine
        self._versions: dict[LoadPart, int] = {}
        self._since = "started"  # what the engine did when it lost its weights, for a message
        self._lent: list[Lent] = []
        self._has_forgotten = False  # what it computed with the weights that its caller replaces

    def answer(self, method: str, arguments: Sequence[Any]) -> Reply | Failure:
        """The answer to a call."""
        match method:
            case "load":
                return self._load(*arguments)
            case "release":
                return _attempt(self._lent.clear)
            case "finish":
                return _attempt(_finish_device)
            case "share":
                return _attempt(self._share)
            case "write":
                return self._begin_write()
            case "written":
                return self._end_write(*arguments)
            case "sleep" if not arguments[0]:
                self._versions, self._since = {}, "slept without them"
            case _ if method in SAMPLING:
                *arguments, expected = arguments
                if "weights" not in self._versions:
                    return Failure(f"the engine has no weights since it {self._since}")
                if expected != self._versions:
                    return Failure(f"the engine has the versions {self._versions}, and the call is for {expected}")
        return _attempt(getattr(self._engine, method), *arguments)

    def _load(self, part: LoadPart, version: int) -> Reply | Failure:
        loaded = _attempt(self._engine.load, self._received(), part)
        self._versions = {**after_load(self._versions, part), part: version} if isinstance(loaded, Reply) else {}
        return loaded

    def _received(self) -> Iterator[Weights]:
        """The weights that follow a call; each part is requested once the last one is used."""
        while isinstance(message := self._connection.recv(), WeightPart):
            yield list(message.weights())
            self._connection.send(MORE)
        if message is None:
            return
        if message != AGAIN:
            self._lent[:] = [message]
        del message  # else it would keep them after ``release``
        yield self._lent[0]

    def _share(self) -> bytes:
        """The memory that an engine shares, pickled here: that fails where a device cannot share it."""
        memory = self._engine.share() if hasattr(self._engine, "share") else None
        return bytes(ForkingPickler.dumps(memory))

    def _begin_write(self) -> Reply | Failure:
        self._versions, self._since = {}, "let its caller write them"
        forgotten = _attempt(lambda: self._engine.forget())  # noqa: PLW0108  # one that shares no memory has no such method
        self._has_forgotten = isinstance(forgotten, Reply)
        return forgotten

    def _end_write(self, version: int) -> Reply | Failure:
        self._versions, has_forgotten, self._has_forgotten = {}, self._has_forgotten, False
        if not has_forgotten:
            return Failure("the engine still has what it computed with the weights that were replaced")
        self._versions = {"weights": version}
        return Reply(None)


def after_load(versions: Mapping[LoadPart, int], part: LoadPart) -> dict[LoadPart, int]:
    """The versions that an engine keeps while it loads a part: new weights invalidate its adapter.

    >>> after_load({"weights": 1, "adapter": 4}, "adapter"), after_load({"weights": 1, "adapter": 4}, "weights")
    ({'weights': 1}, {})
    """
    if part == "weights":
        return {}
    return {loaded: version for loaded, version in versions.items() if loaded != part}


def memory_shortage(start: EngineStart) -> str | None:
    """The message for a device without room for the weights and the cache."""
    need, free = start.weight_bytes + start.cache_bytes, _free_bytes()
    if need <= free:
        return None
    weights, cache, available = (f"{size / 2**30:.2f} GiB" for size in (start.weight_bytes, start.cache_bytes, free))
    device = "GPU" if torch.cuda.is_available() else "host"
    return (
        f"the engine needs {weights} for its weights and {cache} for its cache, and the {device} has {available} free"
    )


def _free_bytes() -> int:
    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def _adapter(start: EngineStart, folder: Path) -> GenerationEngine:
    module, _, name = start.implementation.partition(":")
    engine: GenerationEngine = getattr(import_module(module), name)(start, folder)
    return engine


def _finish_device() -> None:
    """Wait for all that the device was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _attempt(call: Callable[..., Any], *arguments: Any) -> Reply | Failure:
    """Run a call: its reply, or the reason why it failed."""
    try:
        return Reply(call(*arguments))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:  # noqa: BLE001  # whatever it is, the caller reports it
        lines = str(error).strip().splitlines()
        return Failure(f"{type(error).__name__}: {lines[0] if lines else ''}", traceback.format_exc())


def _end_with(parent: int, folder: Path) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)
