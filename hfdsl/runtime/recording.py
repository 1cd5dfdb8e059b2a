"""Recordings: the arguments and results of a step's calls, rank by rank, so that one of them can be repeated alone.

A recording is a folder::

    recording.json                      the step, its plan, its seed, and which calls there are
    plan.pkl                            the plan: the classes of roles with their arguments, the functions
    state/                              the states of the roles before the step
    calls/LABEL/rank-N/arguments.pt     what the body was called with
                       collectives.pt   what its collectives returned
                       result.pt        what the body returned; absent where it raised

Unlike a checkpoint it holds pickled objects, which run code when they are loaded.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfdsl.errors import CheckpointError
from hfdsl.protocols.call import Call
from hfdsl.protocols.collectives import recorded_collectives
from hfdsl.protocols.worker import Worker
from hfdsl.types.batches import Batch, own_rows, rebuild
from hfdsl.types.columns import Column
from hfdsl.types.foreign_text import parse_object

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hfdsl.plan.plan import Plan

HEADER, PLAN, STATE, CALLS = "recording.json", "plan.pkl", "state", "calls"
ARGUMENTS, COLLECTIVES, RESULT = "arguments.pt", "collectives.pt", "result.pt"

FORMAT_VERSION = 2
"""Version of the names and contents of a recording's files; its header has the one that wrote it."""

RECORDINGS_FOLDER = "recorded"
"""The folder of a run that holds its recordings, each in ``step-N``."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """Writes the calls of one rank into a recording."""

    folder: str
    rank: int

    def around(self, label: str, call: Call, body: Callable[..., Any]) -> Callable[..., Any]:
        """The body; its arguments are written before the call, and stay if it fails, its result is written after it."""
        folder = call_folder(Path(self.folder), label, self.rank)

        def recorded(**arguments: Any) -> Any:
            folder.mkdir(parents=True, exist_ok=True)
            _write(
                folder / ARGUMENTS,
                {"call": call, "arguments": {name: _compact(value) for name, value in arguments.items()}},
            )
            with _collective_results(body) as results:
                try:
                    result = body(**arguments)
                finally:
                    _write(folder / COLLECTIVES, results)
            _write(folder / RESULT, _compact(result))
            return result

        return recorded


def _collective_results(body: Callable[..., Any]) -> AbstractContextManager[list[tuple[str, Any]]]:
    """The results of collectives in the body of a role; a function has no peers."""
    worker = getattr(body, "__self__", None)
    context = worker._hf_rank if isinstance(worker, Worker) else None
    if context is None or context.collectives is None:
        return nullcontext([])
    return recorded_collectives((context.collectives, context.rank))


def call_folder(recording: Path, label: str, rank: int) -> Path:
    """Where a rank's part of a call is."""
    return recording / CALLS / label / f"rank-{rank}"


def _compact(value: Any) -> Any:
    """The value with only its own rows: of a view, torch would write the whole memory."""
    if isinstance(value, Batch):
        return rebuild(type(value), own_rows(value.__hf_columns__))
    return type(value)(own_rows({"": value._value})[""]) if isinstance(value, Column) else value


def _write(file: Path, value: Any) -> None:
    import torch
    from ray import cloudpickle  # classes of a script are pickled with their instances

    torch.save(value, file, pickle_module=cloudpickle)


def read(file: Path, pickles: Any = pickle) -> Any:
    """The contents of a file, read by ``pickles`` (a module like ``pickle``), tensors on the CPU if there is no GPU.

    Raises:
        CheckpointError: HF906 where it is missing or cannot be read.
    """
    import torch

    try:
        device = None if torch.cuda.is_available() else "cpu"
        # Pickled code is allowed, since a ``Recorder`` wrote it.
        return torch.load(file, map_location=device, pickle_module=pickles, weights_only=False)
    except Exception as error:  # noqa: BLE001  # a pickle may raise anything
        raise CheckpointError("HF906", f"{file} cannot be read: {type(error).__name__}: {error}") from None


def begin(folder: Path, plan: Plan, step_number: int, seed: int, state: Callable[[Path], None]) -> None:
    """Begin a recording: write its header, its plan and the states of the roles.

    Raises:
        CheckpointError: HF906 where a recording exists already, HF908 where a role's state cannot be saved.
    """
    from ray import cloudpickle

    if (folder / HEADER).exists():
        raise CheckpointError("HF906", f"there is a recording in '{folder}' already; name another folder")
    (folder / STATE).mkdir(parents=True, exist_ok=True)
    state(folder / STATE)
    (folder / PLAN).write_bytes(cloudpickle.dumps(plan))  # type: ignore[no-untyped-call]  # of Ray
    calls = [
        {"label": step.label, "role": step.role, "group": step.group, "ranks": list(step.ranks)} for step in plan.steps
    ]
    file = getattr(sys.modules["__main__"], "__file__", None)  # a notebook has none
    main = None if file is None else {"file": str(Path(file).resolve()), "arguments": sys.argv[1:]}
    path = [p for p in sys.path if p]
    header = {
        "format": FORMAT_VERSION,
        "plan": plan.name,
        "step": step_number,
        "seed": seed,
        "calls": calls,
        "path": path,
        "main": main,
    }
    (folder / HEADER).write_text(json.dumps(header, indent=1) + "\n", "utf-8")


def read_header(folder: Path) -> Mapping[str, Any]:
    """The header of a recording.

    Raises:
        CheckpointError: HF906 where there is none, or one in the format of another version.
    """
    try:
        header: Mapping[str, Any] = parse_object((folder / HEADER).read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError("HF906", f"{folder / HEADER} cannot be read: {type(error).__name__}: {error}") from None
    written = header.get("format", 1)
    if written != FORMAT_VERSION:
        raise CheckpointError(
            "HF906",
            f"the recording in '{folder}' has format {written}, and this version of hfdsl reads "
            f"format {FORMAT_VERSION}; record the step again, or replay it with the version that recorded it",
        )
    return header


def plan_of(folder: Path, pickles: Any = pickle) -> Any:
    """The plan of a recording; errors as for ``read``."""
    try:
        return pickles.loads((folder / PLAN).read_bytes())  # written by ``begin``
    except Exception as error:  # noqa: BLE001  # as above
        raise CheckpointError("HF906", f"{folder / PLAN} cannot be read: {type(error).__name__}: {error}") from None


def holds_scripts(folder: Path) -> bool:
    """Whether the plan may hold classes or functions of the script that ran, which no module has."""
    file = folder / PLAN
    return file.exists() and b"__main__" in file.read_bytes()


@contextmanager
def importing(paths: list[str]) -> Iterator[None]:
    """Within this, modules are found where the recorded run found them, after where they are found here."""
    before = list(sys.path)
    sys.path += [path for path in paths if path not in before]
    try:
        yield
    finally:
        sys.path[:] = before
