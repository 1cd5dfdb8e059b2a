"""Recordings: the arguments and results of a step's calls, rank by rank, so that one call can be replayed alone.

A recording is a folder::

    recording.json                  the step, its seed, its calls and roles, and the script that ran
    script.py                       a copy of that script
    state/                          the states of the roles before the step
    roles/ROLE.*                    the class of a role, and the arguments of its constructor
    calls/LABEL/signature.*         the function, and the record that the body returns
    calls/LABEL/rank-N/arguments.*  what the body was called with
                       collectives.*  what its collectives returned
                       result.*     what the body returned; absent where it raised

States are as in a checkpoint. A name with ``.*`` is a value as in ``value_files.py``: JSON and safetensors, and a
pickle only where these cannot hold it. Digests cover every file.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfdsl.errors import CheckpointError
from hfdsl.graph.operations import SIGNATURE
from hfdsl.graph.signatures import RecordType
from hfdsl.protocols.call import Call
from hfdsl.protocols.collectives import recorded_collectives
from hfdsl.protocols.worker import Worker
from hfdsl.runtime.saving.sealed_json import digest
from hfdsl.runtime.saving.value_files import file_digest, write_value
from hfdsl.types.foreign_text import parse_object

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hfdsl.plan.plan import Plan, Step

HEADER, SCRIPT, STATE, ROLES, CALLS = "recording.json", "script.py", "state", "roles", "calls"
SIGNATURE_FILE, ARGUMENTS, COLLECTIVES, RESULT = "signature", "arguments", "collectives", "result"

FORMAT_VERSION = 4
"""The version of the format of a recording, which its header names."""

RECORDINGS_FOLDER = "recorded"
"""The folder of a run that holds its recordings, each in ``step-N``."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """Writes the calls of one rank into a recording."""

    folder: str
    rank: int
    script: bool

    @classmethod
    def of(cls, folder: str, rank: int) -> Recorder:
        """The recorder of a recording in progress."""
        return cls(folder, rank, read_header(Path(folder))["main"] is not None)

    def around(self, label: str, call: Call, body: Callable[..., Any]) -> Callable[..., Any]:
        """The body with recording: arguments are written before the call and stay if it fails, the result after it."""
        folder = call_folder(Path(self.folder), label, self.rank)

        def recorded(**arguments: Any) -> Any:
            folder.mkdir(parents=True, exist_ok=True)
            parts = {field.name: getattr(call, field.name) for field in fields(call) if field.init}
            self._write(folder / ARGUMENTS, {"call": parts, "arguments": arguments})
            with _collective_results(body) as results:
                try:
                    result = body(**arguments)
                finally:
                    self._write(folder / COLLECTIVES, results)
            self._write(folder / RESULT, result)
            return result

        return recorded

    def _write(self, file: Path, value: Any) -> None:
        write_value(file, value, script=self.script)


def _collective_results(body: Callable[..., Any]) -> AbstractContextManager[list[tuple[str, Any]]]:
    """The results of collectives in a role's body; a function has no peers."""
    worker = getattr(body, "__self__", None)
    context = worker._hf_rank if isinstance(worker, Worker) else None
    if context is None or context.collectives is None:
        return nullcontext([])
    return recorded_collectives((context.collectives, context.rank))


def call_folder(recording: Path, label: str, rank: int) -> Path:
    """The folder of a rank's part of a call."""
    return recording / CALLS / label / f"rank-{rank}"


def begin(folder: Path, plan: Plan, step_number: int, seed: int, state: Callable[[Path], object]) -> None:
    """Begin a recording: write its header, its plan and the states of the roles.

    Raises:
        CheckpointError: HF906 if a recording exists already or cannot be written, HF908 if a role's state cannot be
            saved.
    """
    with _writing(folder):
        if (folder / HEADER).exists():
            raise CheckpointError("HF906", f"there is a recording in '{folder}' already; name another folder")
        for part in (STATE, ROLES):
            (folder / part).mkdir(parents=True, exist_ok=True)
    state(folder / STATE)
    with _writing(folder):
        _write_plan(folder, plan, step_number, seed)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError("HF906", f"the recording cannot be written to '{folder}': {error}") from None


def _write_plan(folder: Path, plan: Plan, step_number: int, seed: int) -> None:
    """Write the roles, the calls and the header."""
    main = _script(folder)
    deployment, roles = plan.deployment, {}
    for number, role in enumerate(sorted(deployment)):
        placement = deployment[role]
        content = {"class": placement.role, "args": placement.args, "kwargs": dict(placement.kwargs)}
        write_value(folder / ROLES / role, {**content, "mesh": placement.mesh}, script=main is not None)
        roles[role] = {"number": number, "processes": list(placement.pool.processes)}
    for step in plan.steps:
        (folder / CALLS / step.label).mkdir(parents=True)
        write_value(folder / CALLS / step.label / SIGNATURE_FILE, _signature(step), script=main is not None)
    header = {
        "format": FORMAT_VERSION,
        "plan": plan.name,
        "step": step_number,
        "seed": seed,
        "calls": [_call(step) for step in plan.steps],
        "roles": roles,
        "path": [folder for folder in sys.path if folder],
        "main": main,
    }
    (folder / HEADER).write_text(json.dumps({**header, "sha256": digest(header)}, indent=1) + "\n", "utf-8")


def _script(folder: Path) -> dict[str, Any] | None:
    """The running script with its arguments, of which it writes a copy; None in a notebook."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None or not Path(file).is_file():
        return None
    shutil.copyfile(file, folder / SCRIPT)
    return {"file": str(Path(file).resolve()), "arguments": sys.argv[1:], "sha256": file_digest(folder / SCRIPT)}


def _call(step: Step) -> dict[str, Any]:
    body = step.signature.body
    return {
        "label": step.label,
        "node": step.node,
        "role": step.role,
        "method": step.signature.name,
        "ranks": list(step.ranks),
        "definition": f"{body.__module__}:{body.__qualname__}",
    }


def _signature(step: Step) -> dict[str, Any]:
    """The data to replay a call: its function, by its name in its module, and the record that it returns."""
    signature, returns = step.signature, step.signature.returns
    function = None if step.role is not None else _by_name(signature.body)
    return {"function": function, "returns": returns.record if isinstance(returns, RecordType) else None}


def _by_name(body: Callable[..., Any]) -> Any:
    """The ``hf.function`` object of a body, if the body's module has it, else the body."""
    value: Any = sys.modules.get(body.__module__)
    for part in body.__qualname__.split("."):
        value = getattr(value, part, None)
    return value if hasattr(value, SIGNATURE) and getattr(value, SIGNATURE)().body is body else body


def read_header(folder: Path) -> Mapping[str, Any]:
    """The header of a recording.

    Raises:
        CheckpointError: HF906 if there is none, or one in the format of another version.
    """
    try:
        header = parse_object((folder / HEADER).read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError("HF906", f"{folder / HEADER} cannot be read: {type(error).__name__}: {error}") from None
    written = header.get("format", 1)
    if written != FORMAT_VERSION:
        raise CheckpointError(
            "HF906",
            f"the recording in '{folder}' has format {written}, and this version of hfdsl reads "
            f"format {FORMAT_VERSION}; record the step again, or replay it with the version that recorded it",
        )
    if header.pop("sha256", None) != digest(header):
        raise CheckpointError("HF906", f"{folder / HEADER} was changed after it was written: its digest does not match")
    return header


@contextmanager
def importing(paths: list[str]) -> Iterator[None]:
    """Within this context, modules are found in the recorded run's path, after the current path."""
    before = list(sys.path)
    sys.path += [path for path in paths if path not in before]
    try:
        yield
    finally:
        sys.path[:] = before
