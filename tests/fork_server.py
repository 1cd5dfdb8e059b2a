"""Ray workers that are forks of one process, which has imported torch: a launch in a test does not wait for imports.

Ray starts a worker by ``python SETUP_WORKER ... default_worker.py ...``. ``install`` makes this file the set-up script,
and starts a server. The script sends the server its arguments, environment, working directory and standard streams, and
ends. The server forks, and the fork becomes the worker: after 0.4 s of CPU time instead of 3.

Why a fork is as good as a process of its own:

- The server has one thread and no state of Ray. Ray reads the environment while it is imported, so each worker imports
  it.
- Other libraries read the environment, too. A worker whose ``READ_AT_IMPORT`` variables differ from the server's starts
  in the usual way, and so does one whose runtime environment has more than variables.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

SOCKET = "HFDSL_FORK_SERVER"
"""The variable with the path of the server's socket."""

FRESH = "HFDSL_FRESH_PROCESS"
"""A variable that a runtime environment sets so that its workers have imported nothing before."""

IMPORTED = (
    *("hfdsl.rl.workers", "hfdsl.runtime.rank.executor", "numpy", "torch", "transformers"),
    "torch._dynamo",  # what an optimizer imports, in 2 s
    *("google.protobuf.message", "jsonschema", "pydantic", "requests"),  # what Ray imports
)
READ_AT_IMPORT = (
    *("HF_", "OMP_", "PYTHON", "TORCH", "TRANSFORMERS_"),
    *(["CUDA_"] if Path("/dev/nvidiactl").exists() else []),  # which GPUs a process sees, where there are any
)
READ_LATER = "PYTHONBREAKPOINT"  # at each breakpoint(); Ray sets it in a driver, and a node that it adds inherits it


class Worker(NamedTuple):
    """What a worker is started with."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str

    def imports_alike(self, environment: Mapping[str, str]) -> bool:
        """Whether libraries find in the worker what they found in this environment."""
        return _read_at_import(self.environment) == _read_at_import(environment)


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in environment if name.startswith(READ_AT_IMPORT) and name != READ_LATER]
    return {name: environment[name] for name in names}


def install() -> subprocess.Popen[bytes]:
    """Let the clusters that this process starts from now on fork their workers; return the server.

    It ends with its standard input.
    """
    path = Path(tempfile.mkdtemp(prefix="hfdsl_")) / "fork"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1024)
        os.environ[SOCKET] = str(path)
        command = [sys.executable, __file__, str(listener.fileno())]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
    use()
    return server


def use() -> None:
    """As ``install``, by the server of the process that has started this one."""
    from ray._private import ray_constants

    ray_constants.SETUP_WORKER_FILENAME = __file__  # joined to a folder, which an absolute path replaces


# -- the script that Ray starts


def start_worker() -> None:
    """Have the worker forked; if that cannot be, become Ray's own script."""
    worker = requested(sys.argv[1:])
    if worker is None or not forked(worker):
        import ray._private.workers

        script = Path(ray._private.workers.__path__[0]) / "setup_worker.py"
        os.execv(sys.executable, [sys.executable, str(script), *sys.argv[1:]])


def requested(arguments: Sequence[str]) -> Worker | None:
    """The worker that Ray asks for, if its runtime environment has nothing but variables."""
    options = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    runtime = json.loads(options.get("--serialized-runtime-env-context", "{}"))
    variables = runtime.pop("env_vars", None) or {}
    if any(value not in (None, [], {}, "", sys.executable) for value in runtime.values()):
        return None
    if FRESH in variables or any("$" in value for value in variables.values()):  # Ray puts other variables there
        return None
    own = ("--serialized-runtime-env-context=", "--language=")
    rest = [argument for argument in arguments if not argument.startswith(own)]
    return Worker(rest, {**os.environ, **variables}, str(Path.cwd()))


def forked(worker: Worker) -> bool:
    """Whether the server starts the worker."""
    message = json.dumps(worker).encode()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.environ[SOCKET])
            socket.send_fds(connection, [len(message).to_bytes(8, "big")], [0, 1, 2])
            connection.sendall(message)
            return connection.recv(1) == b"1"
    except OSError:
        return False


# -- the server


def serve(listener: socket.socket) -> Worker | None:
    """Fork a process for each worker; the worker in such a process, and nothing once there is nobody to serve."""
    environment = dict(os.environ)  # torch._dynamo sets variables
    for name in IMPORTED:
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers
    with listener:
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                rmtree(Path(os.environ[SOCKET]).parent)
                return None
            connection, _ = listener.accept()
            with connection:
                if worker := accepted(connection, environment):
                    return worker


def accepted(connection: socket.socket, environment: Mapping[str, str]) -> Worker | None:
    """In a fork the worker of a request, with its standard streams; nothing in the server."""
    length, streams, _, _ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as reader:
        worker = Worker(*json.loads(reader.read(int.from_bytes(length, "big"))))
    alike = worker.imports_alike(environment)
    in_fork = alike and os.fork() == 0
    for number, stream in enumerate(streams):
        if in_fork:
            os.dup2(stream, number)
        os.close(stream)
    if not in_fork:
        connection.sendall(b"1" if alike else b"0")
    return worker if in_fork else None


def become(worker: Worker) -> None:
    """Go on as Ray's script of workers."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    random.seed()
    os.environ.clear()
    os.environ.update(worker.environment)
    os.chdir(worker.directory)
    sys.argv = worker.arguments
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    """Serve on the socket that is the only argument, or start a worker."""
    if len(sys.argv) > 2:
        start_worker()
    elif worker := serve(socket.socket(fileno=int(sys.argv[1]))):
        become(worker)


if __name__ == "__main__":
    main()
