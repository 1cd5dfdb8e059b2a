"""Checkpoints: a folder per step, complete or not there at all."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hfdsl.errors import CheckpointError, LostProcessError
from hfdsl.rl.data.order import Cursor
from hfdsl.rl.training.run_config import MAY_CHANGE
from hfdsl.rl.training.tables import ABSENT, differences
from hfdsl.runtime.running import Running
from hfdsl.runtime.saving import MANIFEST, Saving
from hfdsl.runtime.sealed_json import digest, sealed, unsealed
from hfdsl.runtime.state_files import sync_to_disk

FOLDER = re.compile(r"step-(\d{8,})")
STATED = "checkpoint.json"


@dataclass(frozen=True, slots=True)
class RunPosition:
    """Where a run is: how many steps it made, and where it is in its data, which has ``rows`` rows."""

    step: int
    cursor: Cursor
    rows: int

    def in_order_of(self, start: Cursor) -> RunPosition:
        """The same position in the order of rows that another cursor has."""
        return replace(self, cursor=replace(self.cursor, seed=start.seed))


@dataclass(slots=True)
class Keeper:
    """Writes the checkpoints of a run into a folder, beside others, and leaves the last ``keep``.

    One is written to a folder of another name, forced to the disk, and renamed: who is killed meanwhile leaves the ones
    before it as they were. ``behind`` the steps, workers copy their states and write while the run goes on, one
    checkpoint at a time.
    """

    folder: Path
    running: Running
    inputs: RunInputs
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
            try:
                done = saving.done(wait)
            except LostProcessError:
                if not self.running.recovers:
                    raise
                self._write_again(point, saving)
                return
            if done:
                self._publish(point)
            else:
                self._under_way = point, saving

    def _write_again(self, point: RunPosition, saving: Saving) -> None:
        """Write a checkpoint again whose processes were lost; not if the run has gone on: the next one is due soon."""
        part = self._part(point)
        shutil.rmtree(part)
        if all(self.running.all_steps[plan] == count for plan, count in saving.steps.items()):
            part.mkdir()
            self.running.save(part)
            self._publish(point)

    def _publish(self, point: RunPosition) -> None:
        part, final = self._part(point), self.folder / name(point)
        stated = {
            "step": point.step,
            "cursor": asdict(point.cursor),
            "rows": point.rows,
            "config": self.inputs.config,
            "data": self.inputs.data,
            "code": self.inputs.code,
            "versions": self.inputs.versions,
            "state_sha256": file_sha256(part / MANIFEST),
        }
        (part / STATED).write_text(sealed(stated), "utf-8")
        sync_to_disk(part / STATED)
        sync_to_disk(part)
        if final.exists():  # of a run that was stopped after it, and went on from before it
            final.rename(self.folder / f".{final.name}.old.part")
        part.rename(final)
        sync_to_disk(self.folder)
        self.running.go_back_to(final)
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


def read(checkpoint: Path, inputs: RunInputs, accepted: Collection[str] = ()) -> Resumed:
    """Where a checkpoint's run was, held against what is to go on from it; ``accepted`` differences are allowed.

    These are "config", "data", "code" and "versions", or names of fields.

    Raises:
        CheckpointError: HF905 with what differs and is not accepted, HF906 where it cannot be read.
    """
    try:
        stated = unsealed((checkpoint / STATED).read_bytes())
        point = RunPosition(_count(stated["step"]), _cursor(stated["cursor"]), _count(stated["rows"]))
        was = RunInputs(
            config=dict(stated["config"]),
            rows=point.rows,
            data=dict(stated.get("data", {})),
            code=dict(stated.get("code", {})),
            versions=dict(stated["versions"]),
        )
        if point.cursor.position >= point.rows or checkpoint.name not in (name(point), f"{name(point)}.part"):
            raise ValueError("its step or its position in the data is none that a run writes")
        if "format" not in stated and stated["config_sha256"] != digest(was.config):
            raise ValueError("its configuration is not the one that was written")
        if "format" in stated and stated["state_sha256"] != file_sha256(checkpoint / MANIFEST):
            raise ValueError(f"its {MANIFEST} is that of another checkpoint")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError("HF906", f"'{checkpoint}' cannot be read: {type(error).__name__}: {error}") from None
    differing = different_inputs(was, inputs, compares_files="format" in stated)
    refused = [difference for difference in differing if not difference.is_accepted(accepted)]
    if refused:
        kinds = [kind for kind in KINDS if any(difference.is_accepted([kind]) for difference in refused)]
        ways = f"{' '.join(f'--accept {kind}' for kind in kinds)} goes on with what is here"
        ways += ", --set does so for a field" if "config" in kinds else ""
        ways = ways if all(difference.is_accepted(KINDS) for difference in refused) else "seed and meshes cannot change"
        raise CheckpointError("HF905", f"'{checkpoint}' is of {listed(differing)}\n{ways}")
    if inputs.rows != point.rows:  # another order of rows: the rest of the epoch is not the rest of that one
        point = replace(point, rows=inputs.rows, cursor=replace(point.cursor, epoch=point.cursor.epoch + 1, position=0))
    return Resumed(point, tuple(differing), is_sealed="format" in stated)


def _count(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} is not a count")
    return number


def _cursor(fields: Any) -> Cursor:
    cursor = Cursor(**fields)
    for count in (cursor.epoch, cursor.position, cursor.skipped, cursor.held_out):
        _count(count)
    if type(cursor.seed) is not int:
        raise ValueError(f"{cursor.seed!r} is not a seed")
    return cursor


# -- what a checkpoint was written with, and what goes on from it


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """What the results of a run follow from; data, code and versions as ``fingerprints`` has them."""

    config: Mapping[str, Any]
    rows: int
    data: Mapping[str, str]
    code: Mapping[str, str]
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class InputDifference:
    """A field, file or package that is not what it was when a checkpoint was written."""

    kind: Literal["config", "data", "code", "versions"]
    name: str
    text: str

    def is_accepted(self, accepted: Collection[str]) -> bool:
        """Whether the user goes on with it: it is accepted by its kind, by its name, or by a table that has it.

        States and random streams are those of a mesh and a seed: no run goes on with others.
        """
        if self.kind == "config" and (self.name == "seed" or self.name.endswith((".mesh", ".mesh."))):
            return False
        return self.kind in accepted or any(
            self.kind == "config" and f"{self.name}.".startswith(f"{field}.") for field in accepted
        )


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a run goes on, with what differs from the checkpoint and is accepted."""

    point: RunPosition
    differences: tuple[InputDifference, ...]
    is_sealed: bool
    """Whether the checkpoint has digests over all of its fields; those of earlier versions have none."""


KINDS = {"config": "another configuration", "data": "other data", "code": "other code", "versions": "other versions"}
"""What may differ, and how messages call it."""


def different_inputs(was: RunInputs, inputs: RunInputs, *, compares_files: bool = True) -> list[InputDifference]:
    """All that differs and may change what the next steps do; without ``compares_files``, data only by their rows."""
    found = [
        InputDifference("config", name, f"{_shown(before)} there, {_shown(now)} here")
        for name, (before, now) in differences(was.config, inputs.config).items()
        if decides(name)
    ]
    named = {difference.name for difference in found}
    if was.rows != inputs.rows and not any(field.startswith("data.source.") for field in named):
        found.append(InputDifference("data", "data.source", f"{was.rows} rows there, {inputs.rows} here"))
    if compares_files:
        found += [
            InputDifference("data", name, "the files have other contents")
            for name, (before, now) in differences(was.data, inputs.data).items()
            if ABSENT not in (before, now) and not any(field.startswith(f"{name}.") for field in named)
        ]
        found += [
            InputDifference("code", name, _file_change(before, now))
            for name, (before, now) in differences({"": was.code}, {"": inputs.code}).items()
        ]
    found += [
        InputDifference("versions", name, f"{before} there, {now} here")
        for name, (before, now) in differences(was.versions, inputs.versions).items()
        if ABSENT not in (before, now)
    ]
    return found


def _file_change(before: str, now: str) -> str:
    return "not there" if before == ABSENT else "not here" if now == ABSENT else "changed"


def listed(differing: Sequence[InputDifference]) -> str:
    """What differs, a line each, after the kinds that they are of."""
    kinds = " and ".join(KINDS[kind] for kind in dict.fromkeys(difference.kind for difference in differing))
    return f"{kinds}:" + "".join(f"\n  {difference.name}: {difference.text}" for difference in differing)


def decides(name: str) -> bool:
    """Whether a field has a part in what the next steps do."""
    return name.endswith((".mesh", ".mesh.")) or not any(
        name == field or name.startswith(f"{field}.") for field in MAY_CHANGE
    )


def _shown(value: Any) -> str:
    return value if value == ABSENT else json.dumps(value)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
