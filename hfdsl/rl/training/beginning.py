"""Where a run begins in its folder: at step 0, after its last checkpoint, or at step 0 again.

A run that ended before its first checkpoint has nothing to go on from, and nothing to lose: with the same command it
starts again, and what it wrote is written again::

    run/config.toml, metrics.jsonl with steps 0 to 7, no checkpoints/step-*
    hfdsl train run.toml, with or without --resume: the steps 0, 1, ... with the same results
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hfdsl.errors import CheckpointError, ConfigError, HfWarning, RoleError
from hfdsl.rl.training import checkpoints, tables
from hfdsl.rl.training.checkpoints import InputDifference, RunInputs, RunPosition
from hfdsl.rl.training.config import Loaded
from hfdsl.rl.training.fingerprints import code_fingerprints, data_fingerprints, versions
from hfdsl.rl.training.metrics import METRICS_FILE
from hfdsl.runtime.running import Running

CONFIG, CHECKPOINTS = "config.toml", "checkpoints"
"""Names in the folder of a run."""

BEFORE_ALL = -1
"""The step after which nothing is kept of files that are written again."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a run begins, the checkpoint that it loads, and the differences from it that the user accepts."""

    start: RunPosition
    checkpoint: Path | None = None
    kept: int | None = None
    """The step up to which the files of the folder are kept; None for a new run."""
    differences: tuple[InputDifference, ...] = ()


def run_inputs(loaded: Loaded, rows: int) -> RunInputs:
    """What the results of a run follow from."""
    table = loaded.table()
    return RunInputs(
        config=table,
        rows=rows,
        data=data_fingerprints(loaded.config),
        code=code_fingerprints(table),
        versions=versions(),
    )


def require_run(folder: Path) -> None:
    """Refuse to resume where there is no run.

    Raises:
        CheckpointError: HF906 where the folder has no run.
    """
    if not (folder / CONFIG).exists():
        checkpoints.latest(folder / CHECKPOINTS)


def beginning(
    loaded: Loaded, folder: Path, inputs: RunInputs, *, resume: bool, accept: Collection[str] = ()
) -> Beginning:
    """Where a run begins; its configuration is written to its folder.

    Raises:
        ConfigError: HF901 where the folder has a run that is not to be resumed, or cannot be written.
        CheckpointError: HF905, HF906 where there is nothing that it can go on from.
    """
    saved = folder / CHECKPOINTS
    begins = Beginning(RunPosition(0, loaded.cursor(), inputs.rows))
    if resume and checkpoints.whole(saved):
        begins = _after(checkpoints.latest(saved), loaded, inputs, accept)
    elif checkpoints.whole(saved):
        raise _taken(folder, "; go on with --resume, or begin another: --set output=FOLDER")
    elif resume or (folder / METRICS_FILE).exists():
        begins = _again(begins.start, folder, inputs, accept)
    text = tables.to_toml(inputs.config)
    try:
        new = folder / f".{CONFIG}.new"
        new.write_text(text, "utf-8")
        new.replace(folder / CONFIG)
    except OSError as error:
        raise ConfigError("HF901", f"'output': '{folder}' cannot be written: {error.strerror}", "output") from None
    return begins


def _after(checkpoint: Path, loaded: Loaded, inputs: RunInputs, accept: Collection[str]) -> Beginning:
    """After a checkpoint."""
    resumed = checkpoints.read(checkpoint, inputs, accept)
    if resumed.differences:
        _warn("HF905", f"'{checkpoint}' goes on although it is of {checkpoints.listed(resumed.differences)}")
    if not resumed.is_sealed:
        _warn(
            "HF905",
            f"'{checkpoint}' is of an earlier version, without digests: changed files, data and code go unnoticed",
        )
    point = resumed.point.in_order_of(loaded.cursor())
    return Beginning(point, checkpoint, point.step, resumed.differences)


def _again(start: RunPosition, folder: Path, inputs: RunInputs, accept: Collection[str]) -> Beginning:
    """At step 0 again, if the folder has a run of the same configuration that has no checkpoint."""
    broken = [path.name for path in (folder / CHECKPOINTS).glob("step-*")]
    if broken:
        raise CheckpointError("HF906", f"there is no whole checkpoint in '{folder / CHECKPOINTS}', only {broken[0]}")
    if not (folder / CONFIG).exists():
        raise _taken(folder, " without its configuration; begin another: --set output=FOLDER")
    before, now = tables.read_toml(folder / CONFIG), tomllib.loads(tables.to_toml(inputs.config))
    was = RunInputs(config=before, rows=inputs.rows, data={}, code={}, versions={})
    differing = checkpoints.different_inputs(
        was, RunInputs(config=now, rows=inputs.rows, data={}, code={}, versions={})
    )
    if refused := [difference for difference in differing if not difference.is_accepted(accept)]:
        raise _taken(folder, f" of {checkpoints.listed(refused)}\nbegin another: --set output=FOLDER")
    _warn("HF906", f"the run in '{folder}' ended before its first checkpoint: it starts again from step 0")
    return Beginning(start, kept=BEFORE_ALL)


def _taken(folder: Path, text: str) -> ConfigError:
    return ConfigError("HF901", f"'output': there is a run in '{folder}'{text}", "output")


def _warn(code: str, text: str) -> None:
    warnings.warn(HfWarning(code, text), stacklevel=2)


def load(running: Running, checkpoint: Path, differing: Sequence[InputDifference]) -> None:
    """Load a checkpoint.

    Raises:
        CheckpointError: HF905 where a role cannot load its state, now that the configuration differs; HF906 where it is
            damaged.
        RoleError: HF806 where a role's ``load_state()`` raises.
    """
    try:
        running.load(checkpoint)
    except RoleError as error:
        changed = [difference for difference in differing if difference.kind in ("config", "code")]
        if not changed:
            raise
        problem = f"no role can go on from '{checkpoint}', which is of {checkpoints.listed(changed)}"
        raise CheckpointError("HF905", problem) from error
