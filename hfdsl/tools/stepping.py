"""``hfdsl run``: an experiment's steps, one line each."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from hfdsl.deploy.experiment import Experiment
from hfdsl.errors import HfError
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.queues import decides
from hfdsl.runtime.running import Running
from hfdsl.tools.command_target import CommandTarget
from hfdsl.tools.importing import TargetSource, UsageError, own_traceback
from hfdsl.tools.output import FINDINGS, INTERRUPTED, OK, machine, say, show_json, show_report, show_start


class _BatchesError(Exception):
    """The user's own iterable raised."""


def run_steps(target: CommandTarget, arguments: argparse.Namespace) -> int:
    """Compile, launch and step; gives the exit code.

    Raises:
        UsageError: where the experiment has nothing to step on.
        CheckError: where the check finds errors.
    """
    experiment = target.deployed("run")
    plans = target.plans("run")
    for compiled in plans:
        if compiled.report.findings and not machine(arguments):
            show_report(compiled.report, arguments, sys.stderr)
    plan = plans[0]
    seed = experiment.seed if arguments.seed is None else arguments.seed
    steps_done = 0
    try:
        stepping = _stepping(target, experiment, plans, arguments)
        check_writable(arguments.trace)
        _install(arguments.backend, target.source)
        show_start(plan.deployment, arguments.backend, arguments)
        launched = plan.launch(arguments.backend, seed=seed, worker_env=_worker_env(target.source))
        with launched as running, _traced(running, arguments.trace):
            for number, step in enumerate(stepping(running)):
                _show(number, step, arguments)
                steps_done += 1
    except KeyboardInterrupt:
        say(f"interrupted after {_steps(steps_done)}", file=sys.stderr)
        return INTERRUPTED
    except _BatchesError as failure:
        say(f"the batches of '{target.text}' fail at step {steps_done}\n\n{failure}", file=sys.stderr)
        return FINDINGS
    except HfError as error:
        _show_failure(error, steps_done, arguments)
        return FINDINGS
    if not steps_done:
        unfilled = ": they do not fill a batch of a queue" if decides(plan) else ""
        say(f"the batches of '{target.text}' end before the first step{unfilled}", file=sys.stderr)
    elif arguments.steps and steps_done < arguments.steps:
        say(f"the batches of '{target.text}' end after {_steps(steps_done)}", file=sys.stderr)
    return OK


@dataclass(frozen=True, slots=True)
class _Step:
    """The result of a step, and the seconds of the step and its nodes."""

    result: Any
    seconds: float
    nodes: Mapping[str, float]


def _stepping(
    target: CommandTarget, experiment: Experiment, plans: Sequence[CompiledPlan], arguments: argparse.Namespace
) -> Callable[[Running], Iterator[_Step]]:
    """A function that steps a launched plan: on the experiment's batches, or on the data of a run with rounds."""
    if target.rounds is None:
        counted = experiment.batches is not None and decides(plans[0])
        batches = _batches(experiment, any(plans[0].graph.inputs), None if counted else arguments.steps)
        if plans[0].split.queues:
            return lambda running: _streamed(running, batches, arguments.steps if counted else None)
        return lambda running: (_timed(running, batch) for batch in batches)
    if arguments.trace:
        raise UsageError(f"--trace covers one dataflow, and {target.rounds}; trace one of them from Python")
    filled = target.rounds.stepping(plans[1])
    return lambda running: (
        _Step(step_taken.values, seconds, step_taken.nodes)
        for step_taken, seconds in itertools.islice(filled(running), arguments.steps)
    )


def _timed(running: Running, batch: tuple[Any, ...]) -> _Step:
    start = perf_counter()
    result = running.step(*batch)
    return _Step(result, perf_counter() - start, running.timings)


def _streamed(running: Running, batches: Iterator[tuple[Any, ...]], most: int | None) -> Iterator[_Step]:
    """Steps of a dataflow with queues: the seconds are those from one result to the next.

    A dynamic queue may need several batches for a step. There ``most`` bounds the steps: after
    them no more batches are taken, and what is in progress ends, so that a trace has all of it.
    """
    start, shown = perf_counter(), 0
    wanted = itertools.takewhile(lambda _: shown != most, batches)
    for result in running.stream(wanted):
        if shown == most:
            continue
        now = perf_counter()
        shown += 1
        yield _Step(result, now - start, running.timings)
        start = now


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"


def _batches(experiment: Experiment, needed: bool, steps: int | None) -> Iterator[tuple[Any, ...]]:
    """The input of every step, at most ``steps`` of them."""
    if experiment.batches is None and needed:
        raise UsageError("the experiment has no batches to run on; give it hf.Experiment(..., batches=...)")
    if experiment.batches is None:
        return itertools.repeat((), steps or 1)
    return itertools.islice(_own_batches(experiment.batches), steps)


def _own_batches(batches: Any) -> Iterator[tuple[Any, ...]]:
    try:
        source: Iterable[Any] = batches()
        for batch in source:
            yield batch if isinstance(batch, tuple) else (batch,)
    except HfError:
        raise
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        raise _BatchesError(own_traceback(error)) from None


def _install(backend: str, source: TargetSource) -> None:
    """Send the program to Ray's workers by value, as if Python had run its file."""
    if backend == "ray" and source.script:
        try:
            from ray.cloudpickle import register_pickle_by_value
        except ImportError:
            raise UsageError("--backend ray needs Ray: pip install 'hfdsl[ray]'") from None
        register_pickle_by_value(source.module)  # type: ignore[no-untyped-call]  # cloudpickle has no types


def _worker_env(source: TargetSource) -> dict[str, str]:
    """The workers' import path: the folder of the program, and PYTHONPATH of this process."""
    paths = [str(source.root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def _traced(running: Running, file: str | None) -> AbstractContextManager[None]:
    return running.trace(file) if file else nullcontext()


def check_writable(file: str | None) -> None:
    """Refuse, before the launch, a trace file that cannot be written.

    Raises:
        UsageError: with the reason.
    """
    try:
        if file:
            Path(file).touch()
    except OSError as error:
        raise UsageError(f"cannot write '{file}': {error.strerror}") from None


def _show(number: int, step: _Step, arguments: argparse.Namespace) -> None:
    if machine(arguments):
        show_json({"step": number, "seconds": step.seconds, "result": repr(step.result), "nodes": step.nodes})
    else:
        timings = f"  ({_timings(step.nodes)})" if step.nodes else ""
        say(f"step {number}  {step.seconds:.3f} s  {step.result!r}{timings}")


def _timings(timings: Mapping[str, float]) -> str:
    return ", ".join(f"{label} {seconds * 1000:.1f} ms" for label, seconds in timings.items())


def _show_failure(error: HfError, step: int, arguments: argparse.Namespace) -> None:
    if machine(arguments):
        show_json({"step": step, "error": {"code": error.code, "message": error.message}})
    else:
        say(f"error[{error.code}] at step {step}: {error.message}", file=sys.stderr)
