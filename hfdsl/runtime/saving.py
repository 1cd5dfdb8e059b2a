"""What workers keep from step to step, as files: every rank writes its own state, equal ranks write one file."""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfdsl.errors import CheckpointError, HfError
from hfdsl.protocols.state import methods_with
from hfdsl.runtime.store import as_bytes

if TYPE_CHECKING:
    import torch

    from hfdsl.deploy.deployment import Deployment
    from hfdsl.runtime.running import Processes

SKELETON = "hfdsl"
"""The key of a file's metadata under which everything that is no tensor is kept."""

PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class Apart:
    """A state taken apart: tensors by name, and JSON for the rest, which says where each of them goes."""

    tensors: dict[str, torch.Tensor]
    skeleton: str

    def digest(self) -> str:
        """SHA-256 of all that is kept."""
        found = hashlib.sha256(self.skeleton.encode())
        for name, tensor in self.tensors.items():
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(as_bytes(tensor).numpy().data)
        return found.hexdigest()


def take_apart(state: Any, what: str, copies: bool = False) -> Apart:
    """A state as tensors on the CPU and JSON; what shares memory is kept once. No step changes ``copies``.

    Raises:
        CheckpointError: HF908 where there is something else in it than dicts, lists, tuples, tensors and plain values.
    """
    import torch

    tensors: dict[str, torch.Tensor] = {}
    kept: dict[Any, str] = {}
    memory: set[int] = set()

    def tensor(value: Any, path: str) -> dict[str, str]:
        value = value.detach()
        value = value.to_local() if hasattr(value, "to_local") else value  # a DTensor: this rank's shard
        if value.layout is not torch.strided:
            raise _unkept(what, path, f"a tensor of layout {value.layout}")
        key = (value.device, value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
        if value.numel() == 0 or key not in kept:
            name = path or "state"
            while name in tensors:
                name += "_"
            flat = value.to("cpu", memory_format=torch.contiguous_format).contiguous()
            where = flat.untyped_storage().data_ptr()
            shared = copies and where == value.untyped_storage().data_ptr()
            # safetensors takes no two views of one memory
            tensors[name] = flat.clone() if shared or where in memory else flat
            memory.add(where)
            kept[key] = name
        return {"$tensor": kept[key]}

    def plain(value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            return tensor(value, path)
        if isinstance(value, Mapping):
            for key in value:
                if type(key) not in PLAIN:
                    raise _unkept(what, path, f"a key of type {type(key).__name__}")
            inner = {key: plain(one, f"{path}/{key}" if path else str(key)) for key, one in value.items()}
            simple = all(isinstance(key, str) and not key.startswith("$") for key in inner)
            return inner if simple else {"$dict": [[key, one] for key, one in inner.items()]}
        if isinstance(value, (list, tuple)):
            items = [plain(one, f"{path}/{i}" if path else str(i)) for i, one in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        if type(value) in PLAIN:
            return value
        raise _unkept(what, path, f"a {type(value).__name__}")

    skeleton = json.dumps(plain(state, ""))
    return Apart(tensors, skeleton)


def _unkept(what: str, path: str, found: str) -> CheckpointError:
    return CheckpointError(
        "HF908",
        f"the state of {what} holds {found} at '{path or 'the top'}'; it takes tensors, numbers, texts, True, False "
        "and None, in dicts, lists and tuples",
    )


def put_together(apart: Apart) -> Any:
    """The state again, its tensors on the CPU."""

    def whole(value: Any) -> Any:
        match value:
            case {"$tensor": name}:
                return apart.tensors[name]
            case {"$dict": items}:
                return {key: whole(one) for key, one in items}
            case {"$tuple": items}:
                return tuple(map(whole, items))
            case dict():
                return {key: whole(one) for key, one in value.items()}
            case list():
                return list(map(whole, value))
            case _:
                return value

    return whole(json.loads(apart.skeleton))


def check_keeps(role: str, worker: Any) -> bool:
    """Whether a worker has a state of its own to keep.

    Raises:
        CheckpointError: HF908 where one that trains has no ``state()`` and ``load_state()``.
    """
    both = [callable(getattr(worker, name, None)) for name in ("state", "load_state")]
    if all(both):
        return True
    import torch

    written = methods_with(type(worker), "writes")
    holds = [name for name, value in vars(worker).items() if isinstance(value, torch.optim.Optimizer)]
    if any(both) or written or holds:
        why = (
            "has one of the two"
            if any(both)
            else f"'{next(iter(written.values()))}' writes its state '{next(iter(written))}'"
            if written
            else f"has an optimizer, self.{holds[0]}"
        )
        raise CheckpointError(
            "HF908",
            f"role '{role}' ({type(worker).__name__}) {why}, and a checkpoint needs both state() and load_state(state)",
        )
    return False


def taken(role: str, worker: Any, own: bool) -> Apart | None:
    """A worker's state as it is now, with ``own`` for later too; None for a worker without."""
    if not check_keeps(role, worker):
        return None
    return take_apart(worker.state(), f"role '{role}' ({type(worker).__name__})", own)


class Writing:
    """States by role that a thread writes to a folder, while the process goes on."""

    def __init__(self, folder: str, states: Mapping[str, Apart]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        threads = ThreadPoolExecutor(1, "hfdsl-saving")
        self._files = threads.submit(lambda: {role: write(folder, role, apart) for role, apart in states.items()})
        threads.shutdown(wait=False)

    def files(self, wait: float) -> dict[str, dict[str, str]] | None:
        """Where the states are; None where they are not written after ``wait`` seconds.

        Raises:
            CheckpointError: HF906 where a file cannot be written.
        """
        try:
            return self._files.result(min(wait, threading.TIMEOUT_MAX))
        except TimeoutError:
            return None


def write(folder: str, role: str, apart: Apart) -> dict[str, str]:
    """Write a state, unless a rank with an equal one does; where it is.

    Raises:
        CheckpointError: HF906 where the file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    digest = apart.digest()
    file = Path(folder) / f"{role}-{digest[:16]}.safetensors"
    found = {"file": file.name, "sha256": digest}
    try:
        file.touch(exist_ok=False)
        mode = file.stat().st_mode
        save_file(apart.tensors, file, {SKELETON: apart.skeleton})
        file.chmod(mode)  # safetensors makes a file for its owner alone
        synced(file)
    except FileExistsError:
        return found
    except (OSError, SafetensorError) as error:
        raise CheckpointError("HF906", f"the state of role '{role}' cannot be written to {file}: {error}") from None
    return found


def load_worker(role: str, worker: Any, folder: str, saved: Mapping[str, str] | None) -> None:
    """Give a worker its state back.

    Raises:
        CheckpointError: HF905 where none was saved and it keeps one, HF906 where the file is not what was written.
    """
    if saved is None:
        if check_keeps(role, worker):
            raise CheckpointError("HF905", f"the state has no part of role '{role}' ({type(worker).__name__})")
        return
    file = Path(folder) / saved["file"]
    apart = read_file(file)
    if apart.digest() != saved["sha256"]:
        raise CheckpointError("HF906", f"{file} is damaged: it does not hold what '{role}' wrote")
    worker.load_state(put_together(apart))


def read_file(file: Path) -> Apart:
    """A file of a worker's state.

    Raises:
        CheckpointError: HF906 where it is not there or cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as opened:
            skeleton = (opened.metadata() or {})[SKELETON]
            stored = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # no mapping
    except (OSError, SafetensorError, KeyError) as error:
        raise CheckpointError("HF906", f"{file} cannot be read: {type(error).__name__}: {error}") from None
    order = _names(json.loads(skeleton))
    return Apart({name: stored[name] for name in order}, skeleton)


def _names(value: Any) -> dict[str, None]:
    """The tensors of a skeleton in the order in which they were met."""
    match value:
        case {"$tensor": name}:
            return {name: None}
        case dict():
            return {name: None for inner in value.values() for name in _names(inner)}
        case list():
            return {name: None for inner in value for name in _names(inner)}
        case _:
            return {}


def synced(path: Path) -> None:
    """Have a file, or a folder's list of files, on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was saved: by role where the state of each rank is, and how many steps of each plan there were."""

    roles: dict[str, list[dict[str, str]]]
    steps: dict[str, int]


MANIFEST = "state.json"


def write_manifest(
    folder: Path, deployment: Deployment, saved: Mapping[str, list[dict[str, str]]], steps: Mapping[str, int], seed: int
) -> None:
    """Write what there is, after all ranks have written theirs.

    Raises:
        CheckpointError: HF906 where it cannot be written.
    """
    file = folder / MANIFEST
    try:
        roles = {
            role: {"class": deployment[role].role.__qualname__, "mesh": str(deployment[role].mesh), "ranks": ranks}
            for role, ranks in named_by_rank(folder, saved).items()
        }
        file.write_text(json.dumps({"seed": seed, "steps": dict(steps), "roles": roles}, indent=1) + "\n", "utf-8")
        synced(file)
    except OSError as error:
        raise CheckpointError("HF906", f"{file} cannot be written: {error}") from None


@dataclass(slots=True)
class Saving:
    """What workers write for a folder, which is whole when ``done`` says so or ``wait`` returns."""

    processes: Processes
    folder: Path
    deployment: Deployment
    steps: Mapping[str, int]
    seed: int
    whole: bool = False

    def done(self, wait: float = 0.0) -> bool:
        """Whether all is written, after ``wait`` seconds at the latest.

        Raises:
            CheckpointError: HF906 where a file cannot be written.
            HfError: HF807 where the deadline passed, HF808 where the run was closed before.
        """
        if self.whole:
            return True
        if self.processes.backend is None:
            raise HfError("HF808", f"the run was closed before its state was written to {self.folder}")
        saved = self.processes.backend.saved(str(self.folder.resolve()), wait)
        if saved is not None:
            write_manifest(self.folder, self.deployment, saved, self.steps, self.seed)
            self.whole = True
        return self.whole

    def wait(self) -> None:
        """Wait until it is; errors as for ``done``."""
        self.done(math.inf)


def read_manifest(folder: Path, deployment: Deployment, seed: int) -> Manifest:
    """What there is, held against the deployment that is to take it over.

    Raises:
        CheckpointError: HF905 where it is the state of other roles, meshes or another seed, HF906 where it cannot be
            read.
    """
    file = folder / MANIFEST
    try:
        found = json.loads(file.read_text("utf-8"))
        steps, was, roles = dict(found["steps"]), found["seed"], dict(found["roles"])
        meshes = {role: str(one["mesh"]) for role, one in roles.items()}
        ranks = {role: list(one["ranks"]) for role, one in roles.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError("HF906", f"{file} cannot be read: {type(error).__name__}: {error}") from None
    here = {role: str(deployment[role].mesh) for role in deployment}
    wrong = [f"seed {was} instead of {seed}"] if was != seed else []
    wrong += [f"a role '{role}', which is not placed here" for role in meshes if role not in here]
    wrong += [
        f"'{role}' on {mesh} instead of {here[role]}" for role, mesh in meshes.items() if here.get(role, mesh) != mesh
    ]
    if wrong:
        raise CheckpointError("HF905", f"the state is that of another run: it has {'; '.join(wrong)}")
    return Manifest(ranks, steps)


def named_by_rank(folder: Path, saved: Mapping[str, list[dict[str, str]]]) -> dict[str, list[dict[str, str]]]:
    """Files called after the first rank that they are of: ``actor-rank-0.safetensors``."""
    named: dict[str, list[dict[str, str]]] = {}
    for role, ranks in saved.items():
        files: dict[str, str] = {}
        for rank, one in enumerate(ranks):
            if one["file"] not in files:
                files[one["file"]] = f"{role}-rank-{rank}.safetensors"
                (folder / one["file"]).rename(folder / files[one["file"]])
        named[role] = [{**one, "file": files[one["file"]]} for one in ranks]
    return named
