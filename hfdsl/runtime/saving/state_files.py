"""The states of workers as files: every rank writes its own, and ranks with equal states write one file.

A worked example, a state with a weight under two names. Its tensors go into a file of safetensors, and the rest into
the metadata of that file, as JSON::

    state      {"head": w, "embed": w, "moments": (m,), "step": 3}
    tensors    head, moments/0
    JSON       {"head": {"$tensor": "head"}, "embed": {"$tensor": "head"},
                "moments": {"$tuple": [{"$tensor": "moments/0"}]}, "step": 3}

So tied weights are still tied after a load.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfdsl.errors import CheckpointError
from hfdsl.protocols.state import methods_with
from hfdsl.runtime.rank.store import as_bytes
from hfdsl.types.foreign_text import parse_json

if TYPE_CHECKING:
    import torch

SKELETON_KEY = "hfdsl"
"""The key of a file's metadata for everything that is not a tensor."""

PLAIN_TYPES = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class FlatState:
    """A state as tensors by name, and JSON for the rest, which refers to the tensors."""

    tensors: dict[str, torch.Tensor]
    skeleton: str

    def digest(self) -> str:
        """SHA-256 of the whole state."""
        digest = hashlib.sha256(self.skeleton.encode())
        for name, tensor in self.tensors.items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(as_bytes(tensor).numpy().data)
        return digest.hexdigest()


def flatten_state(state: Any, subject: str, *, copies: bool = False) -> FlatState:
    """A state as tensors on the CPU and JSON; shared memory appears once. With ``copies``, steps do not change it.

    Raises:
        CheckpointError: HF908 if it holds anything but dicts, lists, tuples, tensors and plain values.
    """
    flattener = _Flattener(subject, copies=copies)
    skeleton = json.dumps(flattener.plain(state, ""))
    return FlatState(flattener.tensors, skeleton)


class _Flattener:
    """Collects the ``tensors`` of a state, by their paths in it, and gives what remains of its parts."""

    def __init__(self, subject: str, *, copies: bool) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._subject, self._copies = subject, copies
        self._names: dict[Any, str] = {}  # by the memory of a tensor and its form
        self._memory: set[int] = set()

    def plain(self, value: Any, path: str) -> Any:
        """A part of a state as JSON, in which a tensor is a reference to its name."""
        import torch

        if isinstance(value, torch.Tensor):
            return {"$tensor": self._collect(value.detach(), path)}
        if isinstance(value, Mapping):
            return self._plain_dict(value, path)
        if isinstance(value, (list, tuple)):
            items = [self.plain(entry, f"{path}/{i}" if path else str(i)) for i, entry in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        if type(value) in PLAIN_TYPES:
            return value
        raise _unsupported(self._subject, path, f"a {type(value).__name__}")

    def _plain_dict(self, value: Mapping[Any, Any], path: str) -> dict[str, Any]:
        for key in value:
            if type(key) not in PLAIN_TYPES:
                raise _unsupported(self._subject, path, f"a key of type {type(key).__name__}")
        entries = {key: self.plain(entry, f"{path}/{key}" if path else str(key)) for key, entry in value.items()}
        is_json = all(isinstance(key, str) and not key.startswith("$") for key in entries)
        return entries if is_json else {"$dict": [[key, entry] for key, entry in entries.items()]}

    def _collect(self, value: Any, path: str) -> str:
        """Collect a tensor, unless an equal view of its memory has been; return its name."""
        import torch

        value = value.to_local() if hasattr(value, "to_local") else value  # a DTensor: this rank's shard
        if value.layout is not torch.strided:
            raise _unsupported(self._subject, path, f"a tensor of layout {value.layout}")
        key = (value.device, value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
        if value.numel() > 0 and key in self._names:
            return self._names[key]
        name = path or "state"
        while name in self.tensors:
            name += "_"
        self.tensors[name] = self._on_host(value)
        self._names[key] = name
        return name

    def _on_host(self, value: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor on the CPU, in memory that no other one has: safetensors refuses two views of one."""
        import torch

        flat = value.to("cpu", memory_format=torch.contiguous_format).contiguous()
        address = flat.untyped_storage().data_ptr()
        is_view = address == value.untyped_storage().data_ptr()
        taken = address in self._memory or (self._copies and is_view)
        self._memory.add(address)
        return flat.clone() if taken else flat


def _unsupported(subject: str, path: str, kind: str) -> CheckpointError:
    return CheckpointError(
        "HF908",
        f"the state of {subject} holds {kind} at '{path or 'the top'}'; it takes tensors, numbers, texts, True, False "
        "and None, in dicts, lists and tuples",
    )


def unflatten_state(flat: FlatState) -> Any:
    """The state rebuilt, with its tensors on the CPU."""

    def restored(value: Any) -> Any:
        match value:
            case {"$tensor": name}:
                return flat.tensors[name]
            case {"$dict": items}:
                return {key: restored(entry) for key, entry in items}
            case {"$tuple": items}:
                return tuple(map(restored, items))
            case dict():
                return {key: restored(entry) for key, entry in value.items()}
            case list():
                return list(map(restored, value))
            case _:
                return value

    return restored(json.loads(flat.skeleton))


def has_state(role: str, worker: Any) -> bool:
    """Whether a worker has a state to save.

    Raises:
        CheckpointError: HF908 if one that trains has no ``state()`` and ``load_state()``.
    """
    has_method = [callable(getattr(worker, name, None)) for name in ("state", "load_state")]
    if all(has_method):
        return True
    import torch

    written = methods_with(type(worker), "writes")
    holds = [name for name, value in vars(worker).items() if isinstance(value, torch.optim.Optimizer)]
    if any(has_method) or written or holds:
        why = (
            "has one of the two"
            if any(has_method)
            else writing(written)
            if written
            else f"has an optimizer, self.{holds[0]}"
        )
        raise CheckpointError("HF908", needs_state(role, type(worker), why))
    return False


def writing(written: Mapping[str, str]) -> str:
    """How a message says that a role trains, by the method that writes each of its states."""
    state, method = next(iter(written.items()))
    return f"'{method}' writes its state '{state}'"


def needs_state(role: str, kind: type, why: str) -> str:
    """The message about a role that lacks ``state()`` or ``load_state()``, with the reason that it needs them."""
    return f"role '{role}' ({kind.__name__}) {why}, and a checkpoint needs both state() and load_state(state)"


def keeps_state(worker: Any) -> bool:
    """Whether a worker has a state that checkpoints keep; otherwise a new worker equals it."""
    optimizer = getattr(sys.modules.get("torch"), "optim", None)
    return (
        any(hasattr(worker, name) for name in ("state", "load_state"))
        or any(methods_with(type(worker), kind) for kind in ("writes", "loads"))
        or any(optimizer and isinstance(value, optimizer.Optimizer) for value in vars(worker).values())
    )


def worker_state(role: str, worker: Any, copies: bool) -> FlatState | None:
    """A worker's current state; with ``copies`` it does not change while steps run. None without a state."""
    if not has_state(role, worker):
        return None
    return flatten_state(worker.state(), f"role '{role}' ({type(worker).__name__})", copies=copies)


class StateWriter:
    """Writes states by role to a folder, in a background thread."""

    def __init__(self, folder: str, states: Mapping[str, FlatState]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        threads = ThreadPoolExecutor(1, "hfdsl-saving")
        self._files = threads.submit(lambda: {role: write(folder, role, state) for role, state in states.items()})
        threads.shutdown(wait=False)

    def files(self, wait: float) -> dict[str, dict[str, str]] | None:
        """The files of the states; None if they are not written within ``wait`` seconds.

        Raises:
            CheckpointError: HF906 if a file cannot be written.
        """
        try:
            return self._files.result(min(wait, threading.TIMEOUT_MAX))
        except TimeoutError:
            return None


def write(folder: str, role: str, state: FlatState) -> dict[str, str]:
    """Write a state, unless a rank with an equal one writes it; return its file and digest.

    Raises:
        CheckpointError: HF906 if the file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    digest = state.digest()
    file = Path(folder) / f"{role}-{digest[:16]}.safetensors"
    written = {"file": file.name, "sha256": digest}
    try:
        file.touch(exist_ok=False)
        mode = file.stat().st_mode
        save_file(state.tensors, file, {SKELETON_KEY: state.skeleton})
        file.chmod(mode)  # safetensors makes files that only their owner reads
        sync_to_disk(file)
    except FileExistsError:
        return written
    except (OSError, SafetensorError) as error:
        raise CheckpointError("HF906", f"the state of role '{role}' cannot be written to {file}: {error}") from None
    return written


def load_worker(role: str, worker: Any, folder: str, saved: Mapping[str, str] | None) -> None:
    """Load the state of a worker.

    Raises:
        CheckpointError: HF905 if none was saved and it has one, HF906 if the file is not what was written.
    """
    if saved is None:
        if has_state(role, worker):
            raise CheckpointError("HF905", f"the state has no part of role '{role}' ({type(worker).__name__})")
        return
    file = Path(folder) / saved["file"]
    state = read_file(file)
    if state.digest() != saved["sha256"]:
        raise CheckpointError("HF906", f"{file} is damaged: it does not hold what '{role}' wrote")
    worker.load_state(unflatten_state(state))


def read_file(file: Path) -> FlatState:
    """A file of a worker's state.

    Raises:
        CheckpointError: HF906 if it is missing or cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as opened:
            skeleton = (opened.metadata() or {})[SKELETON_KEY]
            order = _names(parse_json(skeleton))
            stored = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # not a mapping, whose keys() are all it has
        return FlatState({name: stored[name] for name in order}, skeleton)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError("HF906", f"{file} cannot be read: {type(error).__name__}: {error}") from None


def _names(value: Any) -> dict[str, None]:
    """The tensors of a skeleton, in order of appearance."""
    match value:
        case {"$tensor": name}:
            return {name: None}
        case dict():
            return {name: None for inner in value.values() for name in _names(inner)}
        case list():
            return {name: None for inner in value for name in _names(inner)}
        case _:
            return {}


def sync_to_disk(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
