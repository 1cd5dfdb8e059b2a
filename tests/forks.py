"""Processes of engines that are forks of one which has imported torch: each starts without 2 s of CPU time.

With vLLM it is 11 s (``VllmPopen``).

The server is a child of the process of tests, and so is each of its forks, which Linux has a switch for. As after
``subprocess.Popen``, the caller waits for the process and sees how it ended, and an engine sees the end of its parent.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import IO, Any, ClassVar

CLONE_PARENT = 0x8000
"""Of Linux: the parent of a process is that of the process which clones itself."""

CLONE = {"x86_64": 56, "aarch64": 220}
"""The numbers of the system call."""

MESSAGE = 2**17
"""The most bytes of a request: a command and its environment."""

VLLM = (
    "vllm",
    "vllm.lora.worker_manager",
    "vllm.model_executor.models.llama",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.worker.cpu_worker",
)
"""What an engine of vLLM imports, which imports most of the rest."""

AVAILABLE = sys.platform == "linux" and platform.machine() in CLONE

asking = threading.Lock()


@cache
def server(modules: tuple[str, ...]) -> socket.socket:
    """The socket to the server that has imported these modules; it ends with the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-c", "from tests.forks import main; main()", str(theirs.fileno()), *modules]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


class Popen:
    """A process with what ``hfdsl.rl.engines.process`` uses of a ``subprocess.Popen``."""

    modules: ClassVar[tuple[str, ...]] = ()
    """What its server has imported, besides the program of an engine's process."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        pass_fds: Sequence[int],
        stdin: int,
        stdout: IO[bytes],
        stderr: int,
        env: Mapping[str, str],
    ) -> None:
        assert (args[:2], stdin, stderr) == ([sys.executable, "-c"], subprocess.DEVNULL, subprocess.STDOUT)
        with asking, open(os.devnull, "rb") as null:  # noqa: PTH123  # no file
            message = json.dumps((args[2:], [0, 1, 2, *pass_fds], dict(env))).encode()
            requests = server(self.modules)
            socket.send_fds(requests, [message], [null.fileno(), stdout.fileno(), stdout.fileno(), *pass_fds])
            self.pid = int(requests.recv(32))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        """How it ended."""
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class VllmPopen(Popen):
    """For engines of vLLM on a CPU: a fork could not use the GPU that vLLM has looked at."""

    modules = VLLM


# -- the server


def main() -> None:
    """Fork for every request on the socket that is the first argument; in a fork, run the program of the request.

    The other arguments are modules to import.
    """
    from hfdsl.rl.engines.vllm_engine import ENVIRONMENT, ON_CPU  # and torch with it

    import_module("hfdsl.rl.engines.server")
    number, *modules = sys.argv[1:]
    if modules:
        os.environ |= {**ENVIRONMENT, **ON_CPU, **os.environ}  # vLLM and torch read them while they are imported
    for name in modules:
        import_module(name)
    with socket.socket(fileno=int(number)) as requests:
        code = serve(requests)
    exec(code, {"__name__": "__main__"})  # noqa: S102  # as python -c does


def serve(requests: socket.socket) -> str:
    """In a fork its program; in the server one of nothing, once nobody asks any more."""
    while True:
        message, received, _, _ = socket.recv_fds(requests, MESSAGE, 8)
        if not message:
            return ""
        (code, *arguments), numbers, environment = json.loads(message)
        process = fork_beside()
        if process == 0:
            requests.close()
            # Above all numbers that they get, of which the process of tests may have hundreds.
            high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, max(numbers) + 1) for descriptor in received]
            for descriptor in received:
                os.close(descriptor)
            for descriptor, number in zip(high, numbers, strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = ["-c", *arguments]
            return str(code)
        for descriptor in received:
            os.close(descriptor)
        requests.send(str(process).encode())


def fork_beside() -> int:
    """As ``os.fork``, but the new process is a child of this one's parent."""
    python: Any = ctypes.pythonapi
    python.PyOS_BeforeFork()
    process = int(ctypes.CDLL(None).syscall(CLONE[platform.machine()], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    (python.PyOS_AfterFork_Parent if process else python.PyOS_AfterFork_Child)()
    assert process >= 0
    return process
