"""Runs of other libraries, lowered to runs of hfdsl, and the TOML files that describe them."""

from __future__ import annotations

from pathlib import Path

from hfdsl.interop.lowered_runs import load, to_toml
from hfdsl.interop.lowering import Lowered
from hfdsl.interop.nemo_rl.reading import from_script as nemo_rl_script
from hfdsl.interop.openrlhf.reading import from_script as openrlhf_script
from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.reading import Inputs, RunReading
from hfdsl.interop.text import SourceText
from hfdsl.interop.trl.reading import from_script as trl_script
from hfdsl.interop.verl.reading import from_script as verl_script
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.rl.training import config
from hfdsl.rl.training.check import ConfigCheck
from tests.interop import test_nemo_rl, test_openrlhf
from tests.interop.test_verl import lists_of, script

READERS = {"verl": verl_script, "trl": trl_script, "nemo-rl": nemo_rl_script, "openrlhf": openrlhf_script}


def lowered(library: str, text: str) -> Lowered:
    return LIBRARIES[library].lower(reading_of(library, text).configuration)


def reading_of(library: str, text: str) -> RunReading:
    [reading] = READERS[library](SourceText("run.sh", text), Inputs("run.sh"))
    return reading


def of_verl(**changes: object) -> Lowered:
    return lowered("verl", script(**{lists_of(key): str(value) for key, value in changes.items()}))


def plan_of(run: Lowered) -> CompiledPlan:
    return load(run).experiment().compile()


def in_hfdsl(run: Lowered, folder: Path) -> config.Loaded:
    """The run of the TOML file that ``convert`` writes."""
    file = folder / "experiment.toml"
    file.write_text(to_toml(run, "a run"), "utf-8")
    return config.load(file)


def assert_the_same(run: Lowered, folder: Path) -> None:
    """The TOML file describes the run of the lowering, and a check of it on another machine finds nothing."""
    ours, theirs = load(run), in_hfdsl(run, folder)
    first, second = ours.experiment(), theirs.experiment()
    assert first.deployment.placements == second.deployment.placements
    assert first.dims == second.dims
    assert str(first.compile()) == str(second.compile())  # steps with what they read, processes, bytes
    assert all(not report.errors for report in ConfigCheck(elsewhere=True).reports(theirs))


def of_nemo_rl(**changes: object) -> Lowered:
    return lowered("nemo-rl", test_nemo_rl.command(**changes))


def rows_of_steps(plan: CompiledPlan) -> int:
    """The optimizer steps of a plan."""
    return sum(step.label.startswith("actor.update") for step in plan.steps)


WITH_OTHER_POOLS = ("GPUs for sampling", "a reward model", "a queue", "a critic")
"""Runs whose plans no property draws."""


def of_openrlhf(**changes: object) -> Lowered:
    return lowered("openrlhf", test_openrlhf.command(**changes))
