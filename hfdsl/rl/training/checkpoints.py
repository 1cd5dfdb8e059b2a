"""Checkpoints: a folder per step, complete or not there at all."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from hfdsl.errors import CheckpointError
from hfdsl.rl.data.order import Cursor
from hfdsl.rl.training.run_config import MAY_CHANGE
from hfdsl.rl.training.tables import ABSENT, differences
from hfdsl.runtime.running import Running
from hfdsl.runtime.saving import Saving
from hfdsl.runtime.state_files import sync_to_disk

FOLDER = re.compile(r"step-(\d{8,})")
STATED = "checkpoint.json"


@dataclass(frozen=True, slots=True)
class RunPosition:
    """Where a run is: how many steps it made, and where it is in its data, which has ``rows`` rows."""

    step: int
    cursor: Cursor
    rows: int


@dataclass(slots=True)
class Keeper:
    """Writes the checkpoints of a run into a folder, beside others, and leaves the last ``keep``.

    One is written to a folder of another name, forced to the disk, and renamed: who is killed meanwhile leaves the ones
    before it as they were. ``behind`` the steps, workers copy their states and write while the run goes on, one
    checkpoint at a time.
    """

    folder: Path
    running: Running
    config: Mapping[str, Any]
    keep: int
    behind: bool
    _under_way: tuple[RunPosition, Saving] | None = None

    @property
    def under_way(self) -> bool:
        """Whether one is being written."""
        return self._under_way is not None

    def write(self, point: RunPosition) -> None:
        """Begin a checkpoint, after the one that is under way; without ``behind`` it is whole afterwards.

        Raises:
            CheckpointError: HF908 where a role's state cannot be kept, HF906 where a disk is full, or not ours to
                write: for this one, or for the one before.
            RoleError: HF806 where a role's ``state()`` raises.
        """
        self.look(math.inf)
        with _told(point):
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in self.folder.glob(".*.part"):
                shutil.rmtree(left)
            part = self._part(point)
            part.mkdir()
            if self.behind:
                self._under_way = point, self.running.save_in_background(part)
            else:
                self.running.save(part)
                self._publish(point)

    def look(self, wait: float = 0.0) -> None:
        """Give the checkpoint that is under way its name, if all of it is written after ``wait`` seconds.

        Raises:
            CheckpointError: HF906 where it cannot be written.
        """
        if self._under_way is None:
            return
        point, saving = self._under_way
        self._under_way = None  # a failure is reported once
        with _told(point):
            if saving.done(wait):
                self._publish(point)
            else:
                self._under_way = point, saving

    def _publish(self, point: RunPosition) -> None:
        part, final = self._part(point), self.folder / name(point)
        stated = {
            "step": point.step,
            "cursor": asdict(point.cursor),
            "rows": point.rows,
            "config": self.config,
            "config_sha256": digest(self.config),
            "versions": versions(),
        }
        (part / STATED).write_text(json.dumps(stated, indent=1) + "\n", "utf-8")
        sync_to_disk(part / STATED)
        sync_to_disk(part)
        if final.exists():  # of a run that was stopped after it, and went on from before it
            final.rename(self.folder / f".{final.name}.old.part")
        part.rename(final)
        sync_to_disk(self.folder)
        for old in [*whole(self.folder)[: -self.keep], *self.folder.glob(".*.part")]:
            shutil.rmtree(old)

    def _part(self, point: RunPosition) -> Path:
        return self.folder / f".{name(point)}.part"


def name(point: RunPosition) -> str:
    """The name of a point's folder."""
    return f"step-{point.step:08d}"


@contextmanager
def _told(point: RunPosition) -> Iterator[None]:
    """Whatever keeps a file from being written, as HF906 with its step."""
    try:
        yield
    except OSError as error:
        why = str(error)
    except CheckpointError as error:
        if error.code != "HF906":
            raise
        why = error.message
    else:
        return
    raise CheckpointError("HF906", f"the checkpoint of step {point.step} cannot be written: {why}")


def whole(folder: Path) -> list[Path]:
    """The checkpoints that are complete, by step."""
    checkpoints = [path for path in folder.glob("step-*") if FOLDER.fullmatch(path.name) and (path / STATED).is_file()]
    return sorted(checkpoints, key=lambda path: int(path.name.removeprefix("step-")))


def latest(folder: Path) -> Path:
    """The last complete checkpoint.

    Raises:
        CheckpointError: HF906 where there is none.
    """
    checkpoints = whole(folder)
    if not checkpoints:
        raise CheckpointError("HF906", f"there is no whole checkpoint in '{folder}'")
    return checkpoints[-1]


def read(checkpoint: Path, config: Mapping[str, Any], rows: int) -> RunPosition:
    """Where a checkpoint's run was, held against the configuration that is to go on from it.

    Raises:
        CheckpointError: HF905 with the fields that differ, HF906 where it cannot be read.
    """
    try:
        stated = json.loads((checkpoint / STATED).read_text("utf-8"))
        point = RunPosition(int(stated["step"]), Cursor(**stated["cursor"]), int(stated["rows"]))
        was = stated["config"]
        if stated["config_sha256"] != digest(was):
            raise ValueError("its configuration is not the one that was written")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError("HF906", f"'{checkpoint}' cannot be read: {type(error).__name__}: {error}") from None
    changed = {name: pair for name, pair in differences(was, config).items() if decides(name)}
    if changed:
        listed = "".join(
            f"\n  {name}: {_shown(before)} there, {_shown(now)} here" for name, (before, now) in changed.items()
        )
        raise CheckpointError("HF905", f"'{checkpoint}' is of another configuration:{listed}")
    if rows != point.rows:
        raise CheckpointError(
            "HF905", f"'{checkpoint}' is of other data: the source had {point.rows} rows, and has {rows} now"
        )
    return point


def decides(name: str) -> bool:
    """Whether a field has a part in what the next steps do."""
    return name.endswith((".mesh", ".mesh.")) or not any(
        name == field or name.startswith(f"{field}.") for field in MAY_CHANGE
    )


def _shown(value: Any) -> str:
    return value if value == ABSENT else json.dumps(value)


def digest(config: Mapping[str, Any]) -> str:
    """SHA-256 of a configuration."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def versions() -> dict[str, str]:
    """What a checkpoint was written with."""
    import platform

    import hfdsl

    versions_by_name = {"python": platform.python_version(), "hfdsl": hfdsl.__version__}
    for name in ("torch", "transformers"):
        try:
            versions_by_name[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions_by_name
