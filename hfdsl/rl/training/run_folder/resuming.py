"""The start of a run in its folder: at step 0, after its last checkpoint, or at step 0 again.

A run that ended before its first checkpoint has nothing to resume from and nothing to lose: the same command starts it
again and rewrites its files::

    run/config.toml, metrics.jsonl with steps 0 to 7, no checkpoints/step-*
    hfdsl train run.toml, with or without --resume: steps 0, 1, ... again, with the same results
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from hfdsl.errors import CheckpointError, ConfigError, HfWarning, RoleError
from hfdsl.rl.training.config import Loaded
from hfdsl.rl.training.metrics import METRICS_FILE
from hfdsl.rl.training.run_folder import checkpoints
from hfdsl.rl.training.run_folder.checkpoints import InputDifference, RunInputs, RunPosition
from hfdsl.rl.training.run_folder.fingerprints import code_fingerprints, data_fingerprints, versions
from hfdsl.rl.training.toml import tables
from hfdsl.runtime.running import Running

CONFIG, CHECKPOINTS = "config.toml", "checkpoints"
"""Names in the folder of a run."""

NO_STEP = -1
"""The last kept step of a run that starts again: its files lose all records."""


@dataclass(frozen=True, slots=True)
class RunStart:
    """The position at which a run starts, the checkpoint that it loads, and the accepted differences from that."""

    position: RunPosition
    checkpoint: Path | None = None
    last_kept_step: int | None = None
    """The step up to which the files of the folder keep their records; None for a new run."""
    differences: tuple[InputDifference, ...] = ()
    is_sealed: bool = True
    """Whether the checkpoint has digests."""


def run_inputs(loaded: Loaded, rows: int) -> RunInputs:
    """The inputs that determine the results of a run."""
    table = loaded.table()
    return RunInputs(
        config=table,
        rows=rows,
        data=data_fingerprints(loaded.config),
        code=code_fingerprints(table),
        versions=versions(),
    )


def has_run(folder: Path) -> bool:
    """Whether a run began in a folder, and has left anything to continue or to start again."""
    return any((folder / name).exists() for name in (CONFIG, CHECKPOINTS, METRICS_FILE))


def require_run(folder: Path) -> None:
    """Refuse to resume without a run.

    Raises:
        CheckpointError: HF906 if the folder has no run.
    """
    if not has_run(folder):
        text = f"there is no run in '{folder}' to continue; --auto-resume starts one where there is none"
        raise CheckpointError("HF906", text)


def with_saved_engines(loaded: Loaded) -> Loaded:
    """The configuration with the engines of the run in its folder, if there is one, in place of each ``"auto"``.

    So a run that continues samples with the engine that it began with, whatever has been installed since.

    Raises:
        ConfigError: HF901 if the saved configuration cannot be read.
    """
    file = Path(loaded.config.output) / CONFIG
    if not loaded.auto_engines or not file.exists():
        return loaded
    saved = tables.flattened(tables.read_toml(file))
    fields = {f"{role}.generation.engine": role for role in loaded.auto_engines}
    return loaded.with_engines({fields[name]: engine for name, engine in saved if name in fields})


def run_start(
    loaded: Loaded, folder: Path, inputs: RunInputs, *, resume: bool, accept: Collection[str] = ()
) -> RunStart:
    """Determine the start of a run, and write its configuration to its folder.

    Raises:
        ConfigError: HF901 if the folder has a run that is not to be resumed, or cannot be written.
        CheckpointError: HF905, HF906 if the run cannot resume from what the folder has.
    """
    saved = folder / CHECKPOINTS
    start = RunStart(RunPosition(0, loaded.cursor(), inputs.rows))
    if resume and checkpoints.complete(saved):
        start = _resumed(checkpoints.latest(saved), loaded, inputs, accept)
    elif checkpoints.complete(saved):
        raise _folder_in_use(folder, "; continue it with --resume, or start another: --set output=FOLDER")
    elif resume or (folder / METRICS_FILE).exists():
        start = _restarted(start.position, folder, inputs, accept)
    text = tables.to_toml(inputs.config)
    try:
        new = folder / f".{CONFIG}.new"
        new.write_text(text, "utf-8")
        new.replace(folder / CONFIG)
    except OSError as error:
        raise ConfigError("HF901", f"'output': '{folder}' cannot be written: {error.strerror}", "output") from None
    return start


def _resumed(checkpoint: Path, loaded: Loaded, inputs: RunInputs, accept: Collection[str]) -> RunStart:
    """Start after a checkpoint."""
    resumed = checkpoints.read(checkpoint, inputs, accept)
    position = resumed.position.in_order_of(loaded.cursor())
    return RunStart(position, checkpoint, position.step, resumed.differences, resumed.is_sealed)


def _restarted(start: RunPosition, folder: Path, inputs: RunInputs, accept: Collection[str]) -> RunStart:
    """Start at step 0 again, if the folder has a run of the same configuration without a checkpoint."""
    broken = [path.name for path in (folder / CHECKPOINTS).glob("step-*")]
    if broken:
        raise CheckpointError("HF906", f"there is no complete checkpoint in '{folder / CHECKPOINTS}', only {broken[0]}")
    if not (folder / CONFIG).exists():
        raise _folder_in_use(folder, " without its configuration; start another: --set output=FOLDER")
    configs = tables.read_toml(folder / CONFIG), tomllib.loads(tables.to_toml(inputs.config))
    former, current = (RunInputs(config=config, rows=inputs.rows, data={}, code={}, versions={}) for config in configs)
    differing = checkpoints.different_inputs(former, current)
    if refused := [difference for difference in differing if not difference.is_accepted(accept)]:
        raise _folder_in_use(folder, f" of {checkpoints.differences_text(refused)}\nstart another: --set output=FOLDER")
    _warn("HF906", f"the run in '{folder}' ended before its first checkpoint: it starts again from step 0")
    return RunStart(start, last_kept_step=NO_STEP)


def _folder_in_use(folder: Path, text: str) -> ConfigError:
    return ConfigError("HF901", f"'output': there is a run in '{folder}'{text}", "output")


def _warn(code: str, text: str) -> None:
    warnings.warn(HfWarning(code, text), stacklevel=2)


def load(running: Running, start: RunStart) -> None:
    """Load the checkpoint of a start, if it has one, and warn (HF905) of what went unnoticed or was accepted.

    Raises:
        CheckpointError: HF905 if a role cannot load its state after a change of configuration or code; HF906 if the
            checkpoint is damaged.
        RoleError: HF806 if a role's ``load_state()`` raises.
    """
    checkpoint, differing = start.checkpoint, start.differences
    if checkpoint is None:
        return
    try:
        running.load(checkpoint)
    except RoleError as error:
        changed = [difference for difference in differing if difference.kind in ("config", "code")]
        if not changed:
            raise
        problem = f"no role can continue from '{checkpoint}', which is of {checkpoints.differences_text(changed)}"
        raise CheckpointError("HF905", problem) from error
    if differing:
        _warn("HF905", f"'{checkpoint}' continues although it is of {checkpoints.differences_text(differing)}")
    if not start.is_sealed:
        unnoticed = "changed files, data and code go unnoticed"
        _warn("HF905", f"'{checkpoint}' is of an earlier version, without digests: {unnoticed}")
