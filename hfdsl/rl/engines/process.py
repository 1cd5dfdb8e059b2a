"""An engine in a separate process, which its caller can end when it dies, hangs or has half-loaded weights.

A process of its own also keeps an engine's process groups, threads and global switches out of the trainer. It is not
forked and does not import ``__main__``: a script without a guard would run twice.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from subprocess import DEVNULL, STDOUT, Popen, TimeoutExpired
from typing import IO, Any, Final, TypeVar
from weakref import finalize

import torch

from hfdsl.errors import DeadlineError, HfError, ResourceError
from hfdsl.rl.engines.interface import Completion, EngineStart, Lent, LoadPart, Stepped, WakePart
from hfdsl.rl.engines.parts import MAX_PART, WeightPart, parts
from hfdsl.rl.engines.ranks import EngineLink
from hfdsl.rl.engines.server import AGAIN, MORE, Failure, Reply, after_load

OF_A_TRAINER: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables of the trainer's process group, which the engine's process must not inherit."""

MAIN: Final = "from hfdsl.rl.engines.server import main; main()"
"""The program of an engine's process; ``-m`` would name the classes of its replies ``__main__``."""

SHOWN = 2000
"""The number of characters at the end of an engine's output that an error shows."""

LENT_FROM: Final = frozenset({"cuda"})
"""The device kinds whose memory an engine reads in place; parts from host memory are copied into shared memory."""

LOOK: Final = 0.5
"""The seconds after which a waiting rank checks the engine's other ranks."""

E = TypeVar("E", bound=HfError)


class EngineProcess:
    """An engine that answers calls from another process. A failed call ends the process.

    Raises, in every method:
        ResourceError: HF954 if the process has died or a call failed.
        DeadlineError: HF955 if it has not answered within ``deadline`` seconds.
    """

    def __init__(self, start: EngineStart, deadline: float, link: EngineLink | None = None) -> None:
        self.start, self.deadline, self.link = start, deadline, link
        self.versions: dict[LoadPart, int] = {}
        self._lent: dict[str, torch.Tensor] = {}  # weights that it reads in this process's memory
        self._lent_memory: list[tuple[object, ...]] = []
        self._lent_place: object = None
        self._shares = False
        self._unread = deque[str]()  # methods that were requested
        self.lends = False
        """Whether the engine read the last weights in place."""
        folder = tempfile.mkdtemp(prefix="hfdsl-engine-")
        own_socket, engine_socket = socket.socketpair()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the process
        environment = {name: value for name, value in os.environ.items() if name not in OF_A_TRAINER}
        environment["PYTHONPATH"] = os.pathsep.join(path or "." for path in sys.path)
        with engine_socket:
            self._process = Popen(
                [sys.executable, "-c", MAIN, str(engine_socket.fileno()), folder],
                pass_fds=[engine_socket.fileno()],
                stdin=DEVNULL,
                stdout=self._output,
                stderr=STDOUT,
                env=environment,
            )
        self._connection: Connection[Any, Any] = Connection(own_socket.detach())
        self.close = finalize(self, _end, self._process, self._connection, self._output, folder)
        """End the process; do nothing if it has ended."""
        self._begin()
        self._send_bytes(bytes(multiprocessing.current_process().authkey))
        self._send(start)
        answer = self._receive("start")
        if isinstance(answer, Failure):
            raise self._ended(ResourceError(answer.code or "HF951", _refusal(start, answer)))
        self._copies: bool = answer.value

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process answers calls."""
        return self.close.alive and self._process.poll() is None

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> list[Completion]:
        """Complete every prompt with the weights loaded last."""
        completions: list[Completion] = self._call("generate", prompts, seeds, self.versions)
        self._request_finish()
        return completions

    def begin(self, call: int, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> None:
        """Add the rows of a call, to sample them step by step; weights may be loaded between two steps."""
        self._call("begin", call, prompts, seeds, self.versions)

    def step(self, most: int) -> Stepped:
        """Run decode steps with the weights loaded last, until all rows of a call have ended."""
        stepped: Stepped = self._call("step", most, self.versions)
        return stepped

    def load(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        version: int,
        part: LoadPart = "weights",
        place: object = None,
    ) -> None:
        """Replace all weights, or the adapter, by those of a version, counted from 1.

        Weights with a ``place`` are in memory of this process that later versions are in, too. An engine that copies
        weights reads them there, and keeps it from being freed until ``release``. They are not even listed if their
        place is that of the last ones.
        """
        self._begin()
        self.versions = after_load(self.versions, part)
        self._send(("load", part, version))
        answer: Any = MORE
        try:
            for piece in self._pieces(weights, place):
                if answer != MORE:
                    break
                self._send(piece)
                answer = self._receive("load")
        except BaseException as error:
            # It has a part of the new weights. What the iterator raises, the other ranks raise too or hear of.
            self._ended(error if isinstance(error, HfError) else ResourceError("HF954", f"weights ended: {error!r}"))
            raise
        if answer == MORE:
            self._send(None)
            answer = self._receive("load")
        self._value("load", answer)
        self.versions[part] = version

    def _pieces(self, weights: Iterable[tuple[str, torch.Tensor]], place: object) -> Iterator[WeightPart | Lent | str]:
        """The messages that carry weights."""
        is_known = self.lends and place is not None and place == self._lent_place
        tensors = self._lent if is_known else dict(weights) if place is not None and self._copies else {}
        if not is_known and (not tensors or any(each.device.type not in LENT_FROM for each in tensors.values())):
            self.lends = False
            yield from parts(tensors.items() or weights, getattr(torch, self.start.dtype), MAX_PART)
            return
        self.lends = True
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # whatever writes them is another process's stream to the engine
        if is_known or _memory(tensors) == self._lent_memory:
            yield AGAIN
        else:
            yield Lent(tensors)
            self._lent, self._lent_memory = tensors, _memory(tensors)  # what was lent before may be freed now
        self._lent_place = place

    def release(self) -> None:
        """Stop the engine's use of this process's memory; the next load lends it again."""
        if self._lent and self.alive:
            self._call("release")
        self._lent, self._lent_memory, self._lent_place, self.lends = {}, [], None, False

    def share(self) -> dict[str, torch.Tensor] | None:
        """The memory of the engine's weights, named as in a saved model; None if it does not or cannot share it."""
        self._begin()
        self._send(("share",))
        answer = self._receive("share")
        try:
            memory = pickle.loads(answer.value) if isinstance(answer, Reply) else None  # ours
        except RuntimeError:  # from torch, where this process may not open it
            memory = None
        self._shares = memory is not None
        self._request_finish()
        return memory

    def write(self) -> None:
        """Let this process write the shared weights; the engine has no version until ``written``."""
        self.versions = {}
        self._begin()
        self._read_answers()
        self._request("write")

    def written(self, version: int) -> None:
        """Have the engine sample with the weights that were written, all of them."""
        self._request("written", version)
        self.versions = {"weights": version}

    def sleep(self, *, keep_weights: bool = True) -> None:
        """Free the device's memory; without ``keep_weights`` the engine no longer has a version."""
        if not keep_weights:
            self.versions = {}
        self._call("sleep", keep_weights)

    def wake(self, part: WakePart) -> None:
        """Allocate the memory of a part again."""
        self._call("wake", part)

    def _call(self, method: str, *arguments: Any) -> Any:
        self._begin()
        self._send((method, *arguments))
        return self._value(method, self._receive(method))

    def _request(self, method: str, *arguments: Any) -> None:
        """Begin a call without a result, whose answer is read before that of the next call that is waited for."""
        self._send((method, *arguments))
        self._unread.append(method)

    def _request_finish(self) -> None:
        """Have the device finish before this process writes the engine's memory, which may be soon."""
        if self._shares:
            with suppress(ResourceError):  # the next call raises it
                self._request("finish")

    def _read_answers(self) -> None:
        """Wait for the answers to all requests."""
        while self._unread:
            method = self._unread.popleft()
            self._value(method, self._read(method))

    def _value(self, method: str, answer: Any) -> Any:
        if isinstance(answer, Reply):
            return answer.value
        problem = answer.text.strip() or answer.problem
        message = f"engine {self.start.engine!r} failed in '{method}' and was ended: {problem}"
        raise self._ended(ResourceError("HF954", message))

    def _begin(self) -> None:
        """Start the deadline of a call."""
        self._until = time.monotonic() + self.deadline

    def _send(self, message: Any) -> None:
        try:
            self._connection.send(message)
        except OSError:
            raise self._death("call") from None

    def _send_bytes(self, message: bytes) -> None:
        try:
            self._connection.send_bytes(message)
        except OSError:
            raise self._death("start") from None

    def _receive(self, method: str) -> Any:
        """The answer to a call, after those to all requests."""
        self._read_answers()
        return self._read(method)

    def _read(self, method: str) -> Any:
        """The next answer, which is that to a method."""
        try:
            self._wait(method)
            return self._connection.recv()
        except (EOFError, OSError) as error:
            if isinstance(error, HfError):  # a deadline's error is an OSError too
                raise
            raise self._death(method) from None

    def _wait(self, method: str) -> None:
        """Wait for a reply and, if other ranks share the engine, for notice that it was ended."""
        if self.link is not None:
            self.link.meet()
        while not self._connection.poll(min(self._seconds_left(), LOOK if self.link else self.deadline)):
            ended = self.link.ended() if self.link else None
            if ended is not None:
                self.close()
                raise ended
            if not self._seconds_left():
                late = f"did not answer '{method}' within {self.deadline:g} s, its engine_deadline, and was ended"
                raise self._ended(DeadlineError("HF955", f"engine {self.start.engine!r} {late}{self._tail()}"))

    def _seconds_left(self) -> float:
        return max(self._until - time.monotonic(), 0)

    def _ended(self, error: E) -> E:
        """End the process because of an error, and pass the error to the other ranks."""
        self.close()
        if self.link is not None:
            self.link.end(error)
        return error

    def _death(self, method: str) -> ResourceError:
        if not self.close.alive:
            return ResourceError("HF954", f"engine {self.start.engine!r} has been ended, and cannot '{method}'")
        try:
            status = self._process.wait(5)
        except TimeoutExpired:
            status = 0
        how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
        message = f"engine {self.start.engine!r} died in '{method}', {how}{self._tail()}"
        return self._ended(ResourceError("HF954", message))

    def _tail(self) -> str:
        """The end of the process's output."""
        file = self._output.fileno()  # its offset is where the engine writes, and stays there
        text = os.pread(file, SHOWN, max(os.fstat(file).st_size - SHOWN, 0)).decode("utf-8", "replace").strip()
        return f"; the last that it printed:\n{text}" if text else ""


def _memory(tensors: Mapping[str, torch.Tensor]) -> list[tuple[object, ...]]:
    """The places of tensors in memory. Lent memory is kept alive, so no other tensor can take its place."""
    return [(name, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) for name, tensor in tensors.items()]


def _end(process: Popen[bytes], connection: Connection[Any, Any], output: IO[bytes], folder: str) -> None:
    process.kill()
    process.wait()
    connection.close()
    output.close()
    shutil.rmtree(folder, ignore_errors=True)  # the process removes it when it has started


def _refusal(start: EngineStart, failure: Failure) -> str:
    if failure.code is not None:
        return failure.problem
    return f"engine {start.engine!r} does not start with this model: {failure.problem}\n{failure.text}".rstrip()
