"""Laws of streams: whatever interrupts a dataflow with queues, its results are those of an uninterrupted run.

A worked example: four batches, a lag of 1. The loop is left after result 0, and a checkpoint is loaded after result 2::

    loader gives     0, 1 | 2, 3 |
    results            0  | 1  2 | 3
                          |      +-- save, launch again, load: batch 3 comes from the checkpoint
                          +--------- leave the loop, begin another stream: batch 1 is in the queue

Results 0 to 3 have to be those of a stream without interruptions, bit for bit: then no batch was lost or trained twice,
and every one was generated and trained under the versions that it would have had.

Where a queue decides by the times at which calls end, as on Ray, no two runs decide alike. Then the decisions of an
interrupted run are held against the laws instead: over all its streams no prompt is lost or trained twice, and a run
that repeats them gives the same results.

A rank dies in a drawn step (``deaths``). A run with retries continues; any other is launched again and loads a
checkpoint from before, and what it has decided and given out since then counts as never done::

    results     0  1 | 2  3          step 5: rank 1 of the engine is killed
                     |    | launch again, load: the loader goes back to batch 4, the log to its line 9
                     +-- save: batches 0 to 3 are read, the log has 9 lines
    then             | 2  3  4 ...
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias, get_args

from hfdsl.errors import DefinitionError, HfWarning, LostProcessError
from hfdsl.plan.plan import Plan
from hfdsl.plan.queues import decides
from hfdsl.runtime.backend import HookedBackend
from hfdsl.runtime.decisions import from_lines
from hfdsl.runtime.queues.durations import CallSeconds
from hfdsl.runtime.queues.stage_plans import queue_stages
from hfdsl.runtime.running import Running
from hfdsl.testing.arguments import names_of, nothing, number_of, refused, seed_of, several_of
from hfdsl.testing.compare import first_difference
from hfdsl.testing.deaths import RankDeath
from hfdsl.testing.final_states import final_states, repeated_states, state_difference
from hfdsl.testing.queues import BrokenQueueError, broken_laws, check_prompts

Interruption: TypeAlias = Literal["leave", "raise", "save", "kill"]
"""The loop is left, the loader raises, the run is saved, ended, launched again and loaded, or a rank dies."""

StreamCut: TypeAlias = Literal["leave", "raise", "save"]
"""An interruption between two calls of the stream."""

CallDurations: TypeAlias = Mapping[str, float | CallSeconds]


def check_stream(
    launch: Callable[[], Running],
    batches: Sequence[Any],
    *,
    interruptions: Sequence[Interruption] = get_args(Interruption),
    tries: int = 3,
    seed: int = 0,
    seconds: CallDurations | None = None,
) -> None:
    """Stream batches straight through, from the log, and interrupted at random: all must give the same results.

    Runs that load a checkpoint must also end with the same states of roles: an update may return nothing. A state that
    two uninterrupted runs do not share, such as a time of day, is left out.

    ``launch`` starts the same run each time: ``lambda: plan.launch(seed=0)``. The decisions of each queue must keep the
    laws of queues. "save" and "kill" need roles with ``state()``. "kill" has a process die on Ray, and a call raise on
    the local backend; without retries, the run is launched again from a checkpoint. With ``seconds`` of calls, as
    ``running.stream`` takes them on the local backend, groups are late. Of such a run, as of one on Ray whose queue
    decides, the decisions must keep the laws through all interruptions, and its log must repeat it.

    Raises:
        BrokenQueueError: with what differs, and which interruptions led there.
        DefinitionError: HF921 for an argument that the check does not take, or "kill" on a backend of your own that has
            no ``at_bodies``; HF922 if there are no batches.
        HfError: what the run itself raises.

    >>> import torch
    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Rows(hf.Batch):
    ...     x: hf.f32[B]
    >>> class Actor(hf.Worker):
    ...     total = 0.0
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def update(self, rows: Rows) -> Rows:
    ...         self.total += float(rows.x.tensor.sum())
    ...         return Rows(x=rows.x.tensor + self.total)
    ...     def state(self) -> dict[str, float]:
    ...         return {"total": self.total}
    ...     def load_state(self, state: dict[str, float]) -> None:
    ...         pass  # and forgets it
    >>> @hf.dataflow
    ... def flow(rows: Rows, actor: Actor) -> Rows:
    ...     return actor.update(rows)
    >>> plan = flow.compile(hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([1]))), dims={B: 1})
    >>> check_stream(lambda: plan.launch(seed=0), [Rows(x=torch.ones(1))] * 3, interruptions=["save"], tries=1)
    Traceback (most recent call last):
    hfdsl.testing.queues.BrokenQueueError: ...
    """
    launch = _checked(launch)
    check, batches = "check_stream", several_of("check_stream", "batches", "batches in a list", batches)
    if not batches:
        raise nothing(check, "there are no batches")
    choices = get_args(Interruption)
    kinds: Any = names_of(check, "interruptions=", interruptions, choices, "interruption") if interruptions else ()
    number_of(check, "tries=", tries, 0)
    seed = seed_of(check, seed)
    with TemporaryDirectory() as temporary:
        folder, loads = Path(temporary), not {"save", "kill"}.isdisjoint(kinds)
        straight, plan, by_time = _logged(launch, batches, folder / "straight", None, loads)
        if not decides(plan) and len(straight.results) != len(batches):
            raise BrokenQueueError(f"{len(batches)} batches gave {len(straight.results)} results")
        if seconds is not None:
            _logged(launch, batches, folder / "timed", seconds, loads)
        for index in range(tries if kinds else 0):
            random = Random(f"{seed} {index}")
            cuts, death = _drawn(kinds, plan, len(batches), random)
            for durations in (None,) if seconds is None else (None, seconds):
                place = folder / f"{index} {durations is None}"
                place.mkdir()
                interrupted = _InterruptedRun(
                    launch=launch, batches=batches, seconds=durations, cuts=cuts, death=death, folder=place
                )
                outcome = interrupted.outcome(straight.states.keys())
                if by_time or (durations is not None and decides(plan)):
                    with launch() as running:
                        stream = running.stream(batches, replay=interrupted.log)
                        repeated = _outcome(running, stream, place / "repeated", loads)
                    _compare(outcome, repeated, f"a run that repeats the log of {interrupted.subject}")
                else:
                    _compare(straight, outcome, interrupted.subject)


def _checked(launch: Callable[[], Running]) -> Callable[[], Running]:
    """A function that launches runs, or raises HF921 for what it launches."""
    takes = "a function that launches a plan, as in lambda: plan.launch(seed=0)"
    if not callable(launch):
        raise refused("check_stream", "launch", takes, launch)

    def launched() -> Running:
        running = launch()
        if not isinstance(running, Running):
            returned = "None" if running is None else f"a {type(running).__name__}"
            raise DefinitionError("HF921", f"check_stream: launch takes {takes}, got one that returns {returned}")
        return running

    return launched


def _drawn(
    kinds: Sequence[Interruption], plan: Plan, steps: int, random: Random
) -> tuple[Mapping[int, StreamCut], RankDeath | None]:
    """The cuts of a run by the number of results or batches before, and the death of one of its ranks."""
    choices: list[StreamCut] = [kind for kind in kinds if kind != "kill"]
    cuts = dict[int, StreamCut]()
    for _ in range(3 if choices else 0):
        cuts[random.randint(1, steps)] = random.choice(choices)
    return cuts, RankDeath.drawn(plan, steps, random) if "kill" in kinds else None


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The results of a run, and the states of its ranks at the end."""

    results: Sequence[Any]
    states: Mapping[str, Any]


def _outcome(running: Running, results: Iterable[Any], folder: Path, loads: bool) -> _Outcome:
    """The outcome of a run; where no run ``loads`` a checkpoint, roles need no ``state()``."""
    collected = list(results)
    return _Outcome(collected, final_states(running, folder) if loads else {})


def _logged(
    launch: Callable[[], Running], batches: Sequence[Any], folder: Path, seconds: CallDurations | None, loads: bool
) -> tuple[_Outcome, Plan, bool]:
    """The outcome of a run whose decisions keep the laws, and whose log repeats it; its plan; if it decides by time.

    Of the states, those that differ when the log is repeated are left out: a time of day, for example.
    """
    folder.mkdir()
    log = folder / "log"
    with launch() as running:
        first = _outcome(running, running.stream(batches, log=log, seconds=seconds), folder / "first", loads)
        _check_log(running, log)
        plan, by_time = running.plan, running.decides_by_time
    with launch() as running:
        repeated = _outcome(running, running.stream(batches, replay=log), folder / "repeated", loads)
    _compare_results(first, repeated, "a run that repeats the log")
    return _Outcome(first.results, repeated_states(first.states, repeated.states)), plan, by_time


def _check_log(running: Running, log: Path, subject: str = "") -> None:
    """Hold the decisions of a run, over all of its streams, against the laws of each queue and those of prompts.

    Raises:
        BrokenQueueError: which laws they break, and where ``subject`` is given, in which run.
    """
    decisions, specs = from_lines(log.read_text("utf-8")), [queue.spec for queue in running.queues]
    problems = [text for spec in specs for text in broken_laws(spec, decisions)]
    if not problems and running.decides:
        try:
            check_prompts(queue_stages(running.plan).links, specs, decisions)
        except BrokenQueueError as error:
            problems.append(str(error))
    if problems:
        raise BrokenQueueError("\n".join([f"{subject}:", *problems] if subject else problems))


def _compare(expected: _Outcome, actual: _Outcome, subject: str) -> None:
    _compare_results(expected, actual, subject)
    if difference := state_difference(expected.states, actual.states):
        raise BrokenQueueError(f"{subject} ended with {difference}")


def _compare_results(expected: _Outcome, actual: _Outcome, subject: str) -> None:
    if len(actual.results) != len(expected.results):
        raise BrokenQueueError(f"{subject} gave {len(actual.results)} results instead of {len(expected.results)}")
    for number, (result, other) in enumerate(zip(expected.results, actual.results, strict=True)):
        if difference := first_difference(result, other):
            raise BrokenQueueError(f"{subject} gave another result {number}: {difference.message}")


class _RaisedError(Exception):
    """The error of the loader."""


class _Loader:
    """Batches from a position on, and once at each of some positions an error in front of the next one."""

    def __init__(self, batches: Sequence[Any], raises: set[int], position: int = 0) -> None:
        self._batches, self._raises, self._position = batches, raises, position

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._position in self._raises:
            self._raises.discard(self._position)
            raise _RaisedError
        if self._position == len(self._batches):
            raise StopIteration
        self._position += 1
        return self._batches[self._position - 1]


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """The numbers of results, batches and decisions of a run that was saved into a folder; None for its launch."""

    folder: Path | None = None
    results: int = 0
    batches: int = 0
    decisions: int = 0


@dataclass
class _InterruptedRun:
    """A run over several streams: its ``results``, ``states``, and the ``log`` of its decisions, which keep the laws.

    A stream is cut after the given results or in front of the given batches of the loader.
    """

    launch: Callable[[], Running]
    batches: Sequence[Any]
    seconds: CallDurations | None
    cuts: Mapping[int, StreamCut]
    death: RankDeath | None
    folder: Path
    results: list[Any] = field(default_factory=list)
    states: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cuts = [f"'{self.cuts[number]}' at {number}" for number in sorted(self.cuts)]
        self.subject = f"a run with {', '.join([*cuts, *([str(self.death)] if self.death else [])])}"
        self.log = self.folder / "log"
        self._raises = {number for number, kind in self.cuts.items() if kind == "raise"}
        self._dies, self._saves = self.death, 0
        self._checkpoint = _Checkpoint()
        with warnings.catch_warnings():
            if self.death is not None:
                warnings.filterwarnings("ignore", self.death.loss, HfWarning)
            self._run()

    def outcome(self, ranks: Container[str]) -> _Outcome:
        """Its results, and of its states those of these ranks."""
        return _Outcome(self.results, {rank: state for rank, state in self.states.items() if rank in ranks})

    def _run(self) -> None:
        self._running = self.launch()
        try:
            self._begin()
            while cut := self._until_cut():
                if cut in ("save", "kill"):
                    self._running.close()
                    self._running = self.launch()
                    self._begin()
            _check_log(self._running, self.log, self.subject)
            if {"save", "kill"} & {*self.cuts.values(), *(["kill"] if self.death else [])}:
                self.states = final_states(self._running, self.folder / "states")
        finally:
            self._running.close()

    def _begin(self) -> None:
        """Begin at the checkpoint; what was given out, read and decided since then counts as never done."""
        checkpoint = self._checkpoint
        if checkpoint.folder is not None:
            self._running.load(checkpoint.folder)
        del self.results[checkpoint.results :]
        self._loader = _Loader(self.batches, self._raises, checkpoint.batches)
        if self.log.is_file():
            lines = self.log.read_text("utf-8").splitlines(keepends=True)
            self.log.write_text("".join(lines[: checkpoint.decisions]), "utf-8")
        if self._dies is not None:
            backend = self._running.backend
            if not isinstance(backend, HookedBackend):
                name = type(backend).__name__
                raise DefinitionError("HF921", f"check_stream: interruptions='kill' needs at_bodies of {name}")
            self._dies.await_in(backend)

    def _until_cut(self) -> Interruption | None:
        """Stream until the stream is cut, and return how; None if it has ended."""
        try:
            return self._streamed()
        except _RaisedError:
            return "raise"
        except LostProcessError:
            if self._dies is None or self._running.recovers:
                raise
            self._dies = None
            return "kill"

    def _streamed(self) -> Interruption | None:
        running = self._running
        for result in running.stream(self._loader, log=self.log, seconds=self.seconds):
            self.results.append(result)
            if running.recoveries:
                self._dies = None  # and lives in the next launch
            cut = self.cuts.get(len(self.results))
            if cut == "leave":
                return cut
            if cut == "save":
                break
            if self._dies is not None and not running.recovers and len(self.results) == self._dies.step // 2:
                self._checkpoint = self._saved()
        else:
            return None
        self._checkpoint = self._saved()
        return "save"

    def _saved(self) -> _Checkpoint:
        folder, self._saves = self.folder / f"saved {self._saves}", self._saves + 1
        self._running.save(folder)
        running = self._running
        return _Checkpoint(folder, len(self.results), running.batches_read, running.decisions)
