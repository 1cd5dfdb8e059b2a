"""What a run does while processes are lost, and an undisturbed run does, too: both have to give the same.

For example, of a program whose actor is synced to its engine::

    act            disturbed run, on Ray                       undisturbed run, local
    step           step 0                                      step 0
    save           writes its states, after 1 step             writes its own
    recorded step  step 1; rank 1 of the actor is killed       step 1
                   the recording holds what the other holds
    evaluation     of another plan, added by ``also``          the same
    load           rank 0 of the critic is killed              its own of step 0
    verified step  step 1 again; the engine's copy is right    step 1 again
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.programs import CALLS, EVALUATION_CALLS, Metrics, Prompts, evaluated, prompts
from hfdsl.runtime.saving.recording import ARGUMENTS, COLLECTIVES, RESULT, call_folder, read_header
from hfdsl.runtime.saving.value_files import is_written
from hfdsl.runtime.saving.value_reading import read_value
from hfdsl.testing.compare import first_difference
from hfdsl.testing.replaying import replay


@dataclass(slots=True)
class Save:
    """A folder, and how many batches a stream had read by then."""

    folder: Path
    read: int


@dataclass(slots=True)
class Side:
    """A run, disturbed or not, with what it has written."""

    running: Any
    folder: Path
    saves: list[Save] = field(default_factory=list)
    recording: Path | None = None
    read: int = 0
    _evaluation: Any = None
    _results: Iterator[Any] | None = None

    def step(self) -> Metrics:
        """The next result."""
        if not self.running.plan.steps_in_flight:
            result: Metrics = self.running.step(prompts(self.running.steps))
            return result
        results = self._results
        if results is None:
            results = self._results = self.running.stream(self._batches())
        metrics: Metrics = next(results)
        return metrics

    def _batches(self) -> Iterator[Prompts]:
        while True:
            self.read += 1
            yield prompts(self.read - 1)

    def recorded(self) -> Metrics:
        """The next result, with a recording of it."""
        self.recording = self.folder / f"recording {len(list(self.folder.iterdir()))}"
        with self.running.record(self.recording):
            return self.step()

    def verified(self) -> Metrics:
        """The next result, whose sync is verified."""
        with self.running.verifying("policy"):
            result = self.step()
            verification = self.running.verify("policy")
            if len(verification.compared) != 1 or verification.skipped:
                raise AssertionError(verification)
            return result

    def evaluate(self) -> list[float]:
        """A step of another plan on the same workers."""
        if self._evaluation is None:
            self._evaluation = self.running.also(evaluated.compile(self.running.plan.deployment))
        result = self._evaluation.step(prompts(self._evaluation.steps))
        return [float(score) for score in result.score.tensor]

    def save(self, go_back: bool = False) -> None:
        """Save; a loss goes back to it from here on if it is to."""
        save = Save(self.folder / f"save {len(list(self.folder.iterdir()))}", self.read)
        save.folder.mkdir()
        self.running.save(save.folder)
        self.saves.append(save)
        if go_back:
            self.running.go_back_to(save.folder)

    def load(self, save: Save) -> None:
        """Load what was saved; a stream reads on from there."""
        if self._results is not None:
            self._results.close()  # type: ignore[attr-defined]  # a generator
            self._results = None
        self.running.load(save.folder)
        self.read = save.read


@dataclass(frozen=True, slots=True)
class Act:
    """What a run does, and the calls that it makes; ``choice`` below 1 is the same on both sides."""

    name: str
    do: Callable[[Side, float], Any]
    calls: tuple[str, ...]


def acts(program: str) -> list[Act]:
    """Those of a program, steps more often than others."""
    calls = CALLS[program]
    step = Act("step", lambda side, _: side.step(), calls)
    choices = [
        *[step] * 3,
        Act("evaluation", lambda side, _: side.evaluate(), EVALUATION_CALLS),
        Act("save", lambda side, choice: side.save(choice < 0.5), ()),
        Act("load", lambda side, choice: side.load(side.saves[int(choice * len(side.saves))]), ()),
    ]
    if program != "queued":
        choices.append(Act("recorded step", lambda side, _: side.recorded(), calls))
    if program == "synced":
        choices.append(Act("verified step", lambda side, _: side.verified(), calls))
    return choices


def recordings_differ(run: Side, undisturbed: Side, choice: float) -> str:
    """Where the last recordings of two runs differ, or a call of the first replays to something else."""
    ours, theirs = run.recording, undisturbed.recording
    if ours is None or theirs is None:
        raise AssertionError("nothing was recorded")
    files = [
        (call["label"], rank, part)
        for call in read_header(theirs)["calls"]
        for rank in call["ranks"]
        for part in (ARGUMENTS, COLLECTIVES, RESULT)
        if is_written(call_folder(theirs, call["label"], rank) / part)
    ]
    for label, rank, part in files:
        values = [
            read_value(call_folder(folder, label, rank) / part, part, trust=False, main=lambda: None)
            for folder in (theirs, ours)
        ]
        if difference := first_difference(*values):
            return f"the {part} of '{label}' on rank {rank}: {difference}"
    label, rank, _ = files[int(choice * len(files))]
    replayed = replay(ours, label, rank)
    return "" if replayed.same else str(replayed)
