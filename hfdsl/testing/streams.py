"""Laws of streams: whatever interrupts a dataflow with queues, its results are those of an uninterrupted run.

A worked example: four batches, a lag of 1. The loop is left after result 0, and a checkpoint is loaded after result 2::

    loader gives     0, 1 | 2, 3 |
    results            0  | 1  2 | 3
                          |      +-- save, launch again, load: batch 3 comes from the checkpoint
                          +--------- leave the loop, begin another stream: batch 1 is in the queue

Results 0 to 3 have to be those of a stream without interruptions, bit for bit: then no batch was lost or trained twice,
and every one was generated and trained under the versions that it would have had.

Where a queue decides by the times at which calls end, as on Ray, no two runs decide alike. Then the decisions of an
interrupted run are held against the laws instead: over all its streams no prompt is lost or trained twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias, get_args

from hfdsl.runtime.decisions import from_lines
from hfdsl.runtime.queues.plan_simulation import CallSeconds
from hfdsl.runtime.queues.stage_plans import queue_stages
from hfdsl.runtime.running import Running
from hfdsl.testing.arguments import names_of, nothing, number_of, several_of
from hfdsl.testing.compare import first_difference
from hfdsl.testing.queues import BrokenQueueError, broken_laws, check_prompts

Interruption: TypeAlias = Literal["leave", "raise", "save"]
"""The loop is left, the loader raises, or the run is saved, ended, launched again and loaded."""


def check_stream(
    launch: Callable[[], Running],
    batches: Sequence[Any],
    *,
    interruptions: Sequence[Interruption] = get_args(Interruption),
    tries: int = 3,
    seed: int = 0,
    seconds: Mapping[str, float | CallSeconds] | None = None,
) -> None:
    """Stream batches straight through, from the log, and interrupted at random: all must give the same results.

    ``launch`` starts the same run each time: ``lambda: plan.launch(seed=0)``. The decisions of each queue must keep the
    laws of queues. "save" needs roles with ``state()``. With ``seconds`` of calls, as ``running.stream`` takes them on
    the local backend, groups are late: the laws must hold then, too, and the log of this run must repeat it. Of a run
    on Ray whose queue decides, which no other run repeats, the decisions must keep the laws through all interruptions.

    Raises:
        BrokenQueueError: with what differs, and which interruptions led there.
        DefinitionError: HF921 for an argument that the check does not take, HF922 if there are no batches.
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
    check, batches = "check_stream", several_of("check_stream", "batches", "batches in a list", batches)
    if not batches:
        raise nothing(check, "there are no batches")
    choices = get_args(Interruption)
    kinds: Any = names_of(check, "interruptions=", interruptions, choices, "interruption") if interruptions else ()
    number_of(check, "tries=", tries, 0)
    with TemporaryDirectory() as folder:
        straight, decides = _logged(launch, batches, Path(folder, "log"), None)
        if not decides and len(straight) != len(batches):
            raise BrokenQueueError(f"{len(batches)} batches gave {len(straight)} results")
        if seconds is not None:
            _logged(launch, batches, Path(folder, "timed"), seconds)
        for index in range(tries if kinds else 0):
            random = Random(f"{seed} {index}")
            cuts: dict[int, Interruption] = {random.randint(1, len(batches)): random.choice(kinds) for _ in range(3)}
            place = Path(folder, str(index))
            place.mkdir()
            subject = f"a run with {_interruptions_in_words(cuts)}"
            results, repeats = _interrupted(launch, batches, cuts, place, subject)
            if repeats:
                _compare(straight, results, subject)


def _logged(
    launch: Callable[[], Running],
    batches: Sequence[Any],
    log: Path,
    seconds: Mapping[str, float | CallSeconds] | None,
) -> tuple[list[Any], bool]:
    """The results of a run whose decisions keep the laws, and whose log repeats it; and whether its queues decide."""
    with launch() as running:
        results = list(running.stream(batches, log=log, seconds=seconds))
        decides = running.decides
        _check_log(running, log)
    with launch() as running:
        _compare(results, list(running.stream(batches, replay=log)), "a run that repeats the log")
    return results, decides


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


def _interruptions_in_words(cuts: Mapping[int, Interruption]) -> str:
    return ", ".join(f"'{cuts[number]}' at {number}" for number in sorted(cuts))


def _compare(straight: Sequence[Any], results: Sequence[Any], subject: str) -> None:
    if len(results) != len(straight):
        raise BrokenQueueError(f"{subject} gave {len(results)} results instead of {len(straight)}")
    for number, (expected, actual) in enumerate(zip(straight, results, strict=True)):
        if difference := first_difference(expected, actual):
            raise BrokenQueueError(f"{subject} gave another result {number}: {difference.message}")


class _RaisedError(Exception):
    """The error of the loader."""


class _Loader:
    """Batches, and once at each of some positions an error in front of the next one."""

    def __init__(self, batches: Sequence[Any], raises: set[int]) -> None:
        self._batches, self._raises, self._position = batches, raises, 0

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


def _interrupted(
    launch: Callable[[], Running], batches: Sequence[Any], cuts: Mapping[int, Interruption], folder: Path, subject: str
) -> tuple[list[Any], bool]:
    """All results, over several streams, cut after the given results or at the given batches of the loader.

    The second value says whether they should be those of a run without interruptions. If not, the laws hold for them.
    """
    loader = _Loader(batches, {number for number, kind in cuts.items() if kind == "raise"})
    results, running, log = list[Any](), launch(), folder / "log"
    try:
        while True:
            try:
                if _until_cut(running, loader, results, cuts, log):
                    if running.decides_by_time:
                        _check_log(running, log, subject)
                    return results, not running.decides_by_time
            except _RaisedError:
                continue
            if cuts.get(len(results)) == "save":
                place = folder / str(len(results))
                place.mkdir()
                running.save(place)
                running.close()
                running = launch()
                running.load(place)
    finally:
        running.close()


def _until_cut(
    running: Running, loader: _Loader, results: list[Any], cuts: Mapping[int, Interruption], log: Path
) -> bool:
    """Stream until the loop is to be left; whether the stream has ended instead."""
    for result in running.stream(loader, log=log):
        results.append(result)
        if cuts.get(len(results)) in ("leave", "save"):
            return False
    return True
