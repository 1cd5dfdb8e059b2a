"""Checkpoints: a folder per step, either complete or absent."""

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
from hfdsl.rl.training.toml.tables import ABSENT, differences
from hfdsl.runtime.running import Running
from hfdsl.runtime.saving.driver import MANIFEST, Saving
from hfdsl.runtime.saving.sealed_json import digest, parse_count, sealed, unsealed
from hfdsl.runtime.saving.state_files import sync_to_disk

FOLDER = re.compile(r"step-(\d{8,})")
CHECKPOINT_FILE = "checkpoint.json"


@dataclass(frozen=True, slots=True)
class RunPosition:
    """The position of a run: the number of its last step, and the cursor in its data, which has ``rows`` rows."""

    step: int
    cursor: Cursor
    rows: int

    def in_order_of(self, start: Cursor) -> RunPosition:
        """The position with another cursor's order of rows."""
        return replace(self, cursor=replace(self.cursor, seed=start.seed))


@dataclass(slots=True)
class CheckpointWriter:
    """Writes the checkpoints of a run into a folder, and keeps the last ``keep``.

    A checkpoint is written to a folder of another name, synced to the disk, and renamed: a process killed meanwhile
    leaves the earlier ones intact. With ``behind``, workers copy their states and write while the run continues, one
    checkpoint at a time.
    """

    folder: Path
    running: Running
    inputs: RunInputs
    keep: int
    behind: bool
    _in_progress: tuple[RunPosition, Saving] | None = None

    @property
    def in_progress(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._in_progress is not None

    def write(self, position: RunPosition) -> None:
        """Begin a checkpoint after completing the one in progress; without ``behind``, complete it.

        Raises:
            CheckpointError: HF908 if a role's state cannot be saved, HF906 if a disk is full or not writable, for this
                checkpoint or the one before.
            RoleError: HF806 if a role's ``state()`` raises.
        """
        self.poll(math.inf)
        with _write_errors(position):
            self.folder.mkdir(parents=True, exist_ok=True)
            for incomplete in self.folder.glob(".*.part"):
                shutil.rmtree(incomplete)
            part = self._part(position)
            part.mkdir()
            if self.behind:
                self._in_progress = position, self.running.save_in_background(part)
            else:
                self.running.save(part)
                self._publish(position)

    def poll(self, wait: float = 0.0) -> None:
        """Publish the checkpoint in progress if it is written within ``wait`` seconds.

        Raises:
            CheckpointError: HF906 if it cannot be written.
        """
        if self._in_progress is None:
            return
        position, saving = self._in_progress
        self._in_progress = None  # a failure is reported once
        with _write_errors(position):
            try:
                finished = saving.done(wait)
            except LostProcessError:
                if not self.running.recovers:
                    raise
                self._write_again(position, saving)
                return
            if finished:
                self._publish(position)
            else:
                self._in_progress = position, saving

    def _write_again(self, position: RunPosition, saving: Saving) -> None:
        """Rewrite a checkpoint whose processes were lost, unless the run has gone on: the next one is due soon."""
        part = self._part(position)
        shutil.rmtree(part)
        if all(self.running.all_steps[plan] == count for plan, count in saving.steps.items()):
            part.mkdir()
            self.running.save(part)
            self._publish(position)

    def _publish(self, position: RunPosition) -> None:
        part, final = self._part(position), self.folder / name(position)
        contents = {
            "step": position.step,
            "cursor": asdict(position.cursor),
            "rows": position.rows,
            "config": self.inputs.config,
            "data": self.inputs.data,
            "code": self.inputs.code,
            "versions": self.inputs.versions,
            "state_sha256": file_sha256(part / MANIFEST),
        }
        (part / CHECKPOINT_FILE).write_text(sealed(contents), "utf-8")
        sync_to_disk(part / CHECKPOINT_FILE)
        sync_to_disk(part)
        if final.exists():  # of a run that stopped after it and resumed before it
            final.rename(self.folder / f".{final.name}.old.part")
        part.rename(final)
        sync_to_disk(self.folder)
        self.running.go_back_to(final)
        for old in [*complete(self.folder)[: -self.keep], *self.folder.glob(".*.part")]:
            shutil.rmtree(old)

    def _part(self, position: RunPosition) -> Path:
        return self.folder / f".{name(position)}.part"


def name(position: RunPosition) -> str:
    """The name of a position's folder."""
    return f"step-{position.step:08d}"


@contextmanager
def _write_errors(position: RunPosition) -> Iterator[None]:
    """Turn errors of writing into HF906 with the step."""
    try:
        yield
    except OSError as error:
        reason = str(error)
    except CheckpointError as error:
        if error.code != "HF906":
            raise
        reason = error.message
    else:
        return
    raise CheckpointError("HF906", f"the checkpoint of step {position.step} cannot be written: {reason}")


def complete(folder: Path) -> list[Path]:
    """The complete checkpoints, by step."""
    checkpoints = [
        path for path in folder.glob("step-*") if FOLDER.fullmatch(path.name) and (path / CHECKPOINT_FILE).is_file()
    ]
    return sorted(checkpoints, key=lambda path: int(path.name.removeprefix("step-")))


def latest(folder: Path) -> Path:
    """The last complete checkpoint.

    Raises:
        CheckpointError: HF906 if there is none.
    """
    checkpoints = complete(folder)
    if not checkpoints:
        raise CheckpointError(
            "HF906",
            f"there is no complete checkpoint in '{folder}'{'' if folder.is_dir() else ': there is no such folder'}",
        )
    return checkpoints[-1]


def read(checkpoint: Path, inputs: RunInputs, accepted: Collection[str] = ()) -> Resumed:
    """Read a checkpoint and compare its inputs with those of the run that resumes from it.

    ``accepted`` lists kinds of differences, "config", "data", "code" and "versions", or names of fields.

    Raises:
        CheckpointError: HF905 with the differences, if one is not accepted; HF906 if the checkpoint cannot be read.
    """
    try:
        contents = unsealed((checkpoint / CHECKPOINT_FILE).read_bytes())
        position = RunPosition(
            parse_count(contents["step"]), _cursor(contents["cursor"]), parse_count(contents["rows"])
        )
        saved = RunInputs(
            config=dict(contents["config"]),
            rows=position.rows,
            data=dict(contents.get("data", {})),
            code=dict(contents.get("code", {})),
            versions=dict(contents["versions"]),
        )
        if position.cursor.position >= position.rows or checkpoint.name not in (
            name(position),
            f"{name(position)}.part",
        ):
            raise ValueError("its step or its position in the data is not one that a run writes")
        if "format" not in contents and contents["config_sha256"] != digest(saved.config):
            raise ValueError("its configuration is not the one that was written")
        if "format" in contents and contents["state_sha256"] != file_sha256(checkpoint / MANIFEST):
            raise ValueError(f"its {MANIFEST} is that of another checkpoint")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError("HF906", f"'{checkpoint}' cannot be read: {type(error).__name__}: {error}") from None
    differing = different_inputs(saved, inputs, compares_files="format" in contents)
    refused = [difference for difference in differing if not difference.is_accepted(accepted)]
    if refused:
        kinds = [kind for kind in KINDS if any(difference.is_accepted([kind]) for difference in refused)]
        advice = "seed and meshes cannot change"
        if all(difference.is_accepted(KINDS) for difference in refused):
            advice = f"{' '.join(f'--accept {kind}' for kind in kinds)} accepts the changes"
            advice += ", --set does so for a field" if "config" in kinds else ""
        raise CheckpointError("HF905", f"'{checkpoint}' is of {differences_text(differing)}\n{advice}")
    if inputs.rows != position.rows:  # the order of rows is another, so the rest of the epoch is too
        position = replace(
            position, rows=inputs.rows, cursor=replace(position.cursor, epoch=position.cursor.epoch + 1, position=0)
        )
    return Resumed(position, tuple(differing), is_sealed="format" in contents)


def _cursor(fields: Any) -> Cursor:
    cursor = Cursor(**fields)
    for count in (cursor.epoch, cursor.position, cursor.skipped, cursor.held_out):
        parse_count(count)
    if type(cursor.seed) is not int:
        raise ValueError(f"{cursor.seed!r} is not a seed")
    return cursor


# -- the inputs of a checkpoint, and those of the run that resumes from it


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """The inputs that determine the results of a run; data, code and versions as ``fingerprints`` has them."""

    config: Mapping[str, Any]
    rows: int
    data: Mapping[str, str]
    code: Mapping[str, str]
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class InputDifference:
    """A field, file or package that has changed since a checkpoint was written."""

    kind: Literal["config", "data", "code", "versions"]
    name: str
    text: str

    def is_accepted(self, accepted: Collection[str]) -> bool:
        """Whether the user accepts it: by its kind, by its name, or by a table above it.

        States and random streams depend on meshes and the seed, so no run resumes with others.
        """
        if self.kind == "config" and (self.name == "seed" or self.name.endswith((".mesh", ".mesh."))):
            return False
        return self.kind in accepted or any(
            self.kind == "config" and f"{self.name}.".startswith(f"{field}.") for field in accepted
        )


@dataclass(frozen=True, slots=True)
class Resumed:
    """The position at which a run resumes, with the accepted differences from the checkpoint."""

    position: RunPosition
    differences: tuple[InputDifference, ...]
    is_sealed: bool
    """Whether the checkpoint has digests over all of its fields; those of earlier versions have none."""


KINDS = {"config": "another configuration", "data": "other data", "code": "other code", "versions": "other versions"}
"""The kinds of differences, and their names in messages."""


def different_inputs(former: RunInputs, inputs: RunInputs, *, compares_files: bool = True) -> list[InputDifference]:
    """The differences that may change the next steps; without ``compares_files``, data only by the number of rows."""
    differing = [
        InputDifference("config", name, f"{_value_text(before)} in the checkpoint, {_value_text(now)} now")
        for name, (before, now) in differences(former.config, inputs.config).items()
        if decides(name)
    ]
    named = {difference.name for difference in differing}
    if former.rows != inputs.rows and not any(field.startswith("data.source.") for field in named):
        differing.append(
            InputDifference("data", "data.source", f"{former.rows} rows in the checkpoint, {inputs.rows} now")
        )
    if compares_files:
        differing += [
            InputDifference("data", name, "the files have other contents")
            for name, (before, now) in differences(former.data, inputs.data).items()
            if ABSENT not in (before, now) and not any(field.startswith(f"{name}.") for field in named)
        ]
        differing += [
            InputDifference("code", name, _file_change(before, now))
            for name, (before, now) in differences({"": former.code}, {"": inputs.code}).items()
        ]
    differing += [
        InputDifference("versions", name, f"{before} in the checkpoint, {now} now")
        for name, (before, now) in differences(former.versions, inputs.versions).items()
        if ABSENT not in (before, now)
    ]
    return differing


def _file_change(before: str, now: str) -> str:
    return "not there" if before == ABSENT else "not here" if now == ABSENT else "changed"


def differences_text(differing: Sequence[InputDifference]) -> str:
    """The text of differences: their kinds, and a line for each."""
    kinds = " and ".join(KINDS[kind] for kind in dict.fromkeys(difference.kind for difference in differing))
    return f"{kinds}:" + "".join(f"\n  {difference.name}: {difference.text}" for difference in differing)


def decides(name: str) -> bool:
    """Whether a field may change the next steps."""
    return name.endswith((".mesh", ".mesh.")) or not any(
        name == field or name.startswith(f"{field}.") for field in MAY_CHANGE
    )


def _value_text(value: Any) -> str:
    return value if value == ABSENT else json.dumps(value)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
