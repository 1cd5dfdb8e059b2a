"""The driver's side of a save: it waits for the files of all ranks, names them, and writes the manifest last.

A folder without a manifest is not a saved state, so a save that was cut off is never loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfdsl.deploy.deployment import Deployment
from hfdsl.errors import CheckpointError, HfError, LostProcessError
from hfdsl.runtime.backend import Backend
from hfdsl.runtime.processes import Processes
from hfdsl.runtime.queues.files import SavedStream
from hfdsl.runtime.saving.sealed_json import parse_file, sealed, unsealed
from hfdsl.runtime.saving.state_files import sync_to_disk


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a save: the file of each rank's state by role, the steps of each plan, and steps in progress."""

    roles: dict[str, list[dict[str, str]]]
    steps: dict[str, int]
    meshes: dict[str, str]
    seed: int
    stream: SavedStream | None = None


MANIFEST = "state.json"


def write_manifest(
    folder: Path,
    deployment: Deployment,
    saved: Mapping[str, list[dict[str, str]]],
    steps: Mapping[str, int],
    seed: int,
    stream: SavedStream | None = None,
) -> None:
    """Write the manifest, after all ranks have written their states.

    Raises:
        CheckpointError: HF906 if it cannot be written.
    """
    file = folder / MANIFEST
    try:
        roles = {
            role: {"class": deployment[role].role.__qualname__, "mesh": str(deployment[role].mesh), "ranks": ranks}
            for role, ranks in named_by_rank(folder, saved).items()
        }
        in_progress = {} if stream is None else {"stream": stream.as_dict()}
        file.write_text(sealed({"seed": seed, "steps": dict(steps), "roles": roles, **in_progress}), "utf-8")
        sync_to_disk(file)
    except OSError as error:
        raise CheckpointError("HF906", f"{file} cannot be written: {error}") from None


@dataclass(slots=True)
class Saving:
    """States being written to a folder, which is complete once ``done`` returns True or ``wait`` returns."""

    processes: Processes
    folder: Path
    deployment: Deployment
    steps: Mapping[str, int]
    seed: int
    generation: int
    stream: SavedStream | None = None
    complete: bool = False

    def done(self, wait: float = 0.0) -> bool:
        """Whether everything is written, within ``wait`` seconds.

        Raises:
            CheckpointError: HF906 if a file cannot be written.
            LostProcessError: HF806 if a process was lost before its state was written.
            HfError: HF807 if the deadline passed, HF808 if the run was closed before.
        """
        if self.complete:
            return True
        if self.processes.backend is None:
            raise HfError("HF808", f"the run was closed before its state was written to {self.folder}")
        if self.processes.generation != self.generation:
            raise LostProcessError("HF806", f"processes were lost while they wrote the state to {self.folder}")
        saved = self.processes.backend.saved(str(self.folder.resolve()), wait)
        if saved is not None:
            write_manifest(self.folder, self.deployment, saved, self.steps, self.seed, self.stream)
            self.complete = True
        return self.complete

    def wait(self) -> None:
        """Wait until everything is written; errors as for ``done``."""
        self.done(math.inf)


def read_manifest(folder: Path, deployment: Deployment, seed: int) -> Manifest:
    """The manifest of a folder, checked against the deployment that loads it.

    Raises:
        CheckpointError: HF905 if it is the state of other roles, meshes or another seed, HF906 if it cannot be
            read.
    """
    manifest = parse_manifest(folder)
    placed = {role: str(deployment[role].mesh) for role in deployment}
    differences = [f"seed {manifest.seed} instead of {seed}"] if manifest.seed != seed else []
    differences += [f"a role '{role}', which is not placed here" for role in manifest.meshes if role not in placed]
    differences += [
        f"'{role}' on {mesh} instead of {placed[role]}"
        for role, mesh in manifest.meshes.items()
        if placed.get(role, mesh) != mesh
    ]
    differences += [
        f"{len(states)} states of '{role}' instead of {deployment[role].mesh.world_size}"
        for role, states in manifest.roles.items()
        if placed.get(role) == manifest.meshes[role] and len(states) != deployment[role].mesh.world_size
    ]
    if differences:
        message = f"the state comes from another run: it has {'; '.join(differences)}"
        raise CheckpointError("HF905", f"{message}; launch with the seed, the roles and the meshes that were saved")
    return manifest


def parse_manifest(folder: Path) -> Manifest:
    """The manifest of a folder; HF906 if it cannot be read."""
    file = folder / MANIFEST
    try:
        manifest = unsealed(file.read_bytes())
        roles = dict(manifest["roles"])
        return Manifest(
            roles={role: [parse_file(state) for state in saved["ranks"]] for role, saved in roles.items()},
            steps={str(name): _count(number) for name, number in dict(manifest["steps"]).items()},
            meshes={role: str(saved["mesh"]) for role, saved in roles.items()},
            seed=manifest["seed"],
            stream=SavedStream.from_dict(manifest["stream"]) if "stream" in manifest else None,
        )
    except FileNotFoundError:
        lacks = f"has no {MANIFEST}, which a save writes last: that save did not end; load an earlier one"
        why = f"{folder} {lacks}" if folder.is_dir() else f"there is no folder {folder}"
        raise CheckpointError("HF906", f"the state cannot be read: {why}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError("HF906", f"{file} cannot be read: {type(error).__name__}: {error}") from None


def _count(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} is not a number of steps")
    return number


def named_by_rank(folder: Path, saved: Mapping[str, list[dict[str, str]]]) -> dict[str, list[dict[str, str]]]:
    """Rename files after the first rank whose state they hold: ``actor-rank-0.safetensors``."""
    named: dict[str, list[dict[str, str]]] = {}
    for role, ranks in saved.items():
        files: dict[str, str] = {}
        for rank, state in enumerate(ranks):
            if state["file"] not in files:
                files[state["file"]] = f"{role}-rank-{rank}.safetensors"
                (folder / state["file"]).rename(folder / files[state["file"]])
        named[role] = [{**state, "file": files[state["file"]]} for state in ranks]
    return named


def _make_empty(folder: Path) -> None:
    """Make a folder, or accept an empty one; HF906 for any other, and for one that cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise CheckpointError("HF906", f"the state cannot be written to {folder}: {error}") from None
    if not is_empty:
        raise CheckpointError("HF906", f"the state cannot be written to {folder}: it is not empty")


def save_states(
    processes: Processes,
    deployment: Deployment,
    folder: Path,
    *,
    background: bool,
    save_stream: Callable[[Backend, str], SavedStream | None],
    plan: str,
) -> Saving:
    """Have all processes write their states, and the contents of a stream's queues; errors as ``Running.save``."""
    backend, recovery = processes.usable_backend(plan), processes.recovery
    _make_empty(folder)

    def attempt() -> Saving:
        for file in folder.iterdir():  # by an attempt before, whose processes were lost
            file.unlink()
        place = str(folder.resolve())
        in_progress = save_stream(backend, place)
        backend.save(place, background)
        saving = Saving(
            processes=processes,
            folder=folder,
            deployment=deployment,
            steps=processes.all_steps,
            seed=processes.seed,
            generation=processes.generation,
            stream=in_progress,
        )
        if not background:
            saving.wait()
        return saving

    return attempt() if recovery is None else recovery.run(plan, attempt)
