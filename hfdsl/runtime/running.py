"""A launched plan: it runs steps, each from the caller's batches to the dataflow's result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hfdsl.errors import ResourceError, WiringError
from hfdsl.plan.plan import Plan
from hfdsl.plan.queues import decides
from hfdsl.plan.timeline import Timeline, TraceFile
from hfdsl.runtime.backend import Backend, PollingBackend
from hfdsl.runtime.inputs import check_is_plan, path_of, step_inputs
from hfdsl.runtime.processes import Processes
from hfdsl.runtime.queues.decision_log import DecisionLog
from hfdsl.runtime.queues.dispatch_loads import check_in_flight
from hfdsl.runtime.queues.durations import CallSeconds
from hfdsl.runtime.queues.running_stream import RunningStream
from hfdsl.runtime.queues.shared_states import warn_of_shared_updates
from hfdsl.runtime.recovery.steps import Recovered
from hfdsl.runtime.runner import StepRunner
from hfdsl.runtime.saving.driver import Saving, save_states
from hfdsl.runtime.saving.loaded_states import check_copied_states, check_loaded_states
from hfdsl.runtime.saving.restoring import go_back_to, load_states
from hfdsl.runtime.saving.step_recording import recording
from hfdsl.runtime.schedule import QueueState
from hfdsl.runtime.timeline import timeline
from hfdsl.runtime.verification.copies import Verified
from hfdsl.runtime.verification.verifying import verify, verifying
from hfdsl.types.batches import Batch
from hfdsl.types.numbers import checked_deadline


class Running:
    """A launched plan. Use it as a context manager: its processes end with the block."""

    def __init__(self, plan: Plan, processes: Processes, owner: bool = True) -> None:
        self.plan = plan
        self._processes, self._owner = processes, owner
        self._runner = StepRunner(plan, processes)
        self._stream = RunningStream(plan, processes, self._runner)

    @property
    def backend(self) -> Backend:
        """The backend on which the plan runs, for tests of roles.

        Raises:
            HfError: if the run has broken or its processes have ended.
        """
        return self._processes.usable_backend(self.plan.name)

    def also(self, plan: Plan) -> Running:
        """Run another plan of the same deployment on the same workers, such as an evaluation between training steps.

        Its steps use the workers' current states, and it warns of updates that queues do not count (HF746). The
        processes end with this run.

        Raises:
            WiringError: HF206 if it is none, such as a dataflow that has not been compiled.
            ResourceError: HF519 if the plan is for another ``Deployment`` or has the name of a running plan.
            CheckpointError: HF908 if the plan makes a role load a state that ``retries`` needs and cannot copy.
            HfError: HF765 if the run cannot follow a queue of the plan, or deliver its weights in flight; HF807 if a
                process does not accept the plan within the deadline.
        """
        check_is_plan(plan, "running.also")
        if plan.deployment is not self.plan.deployment:
            raise ResourceError(
                "HF519",
                f"'{plan.name}' was compiled for another deployment ({plan.deployment.span}) than '{self.plan.name}' "
                f"({self.plan.deployment.span}), on whose workers it is to run; compile both for one hf.Deployment",
            )
        if plan.name in self._processes.steps:
            raise ResourceError("HF519", f"a plan named '{plan.name}' runs here already")
        backend, recovery = self._processes.usable_backend(self.plan.name), self._processes.recovery
        check_in_flight(plan, recovers=recovery is not None, backend=backend)
        warn_of_shared_updates(self._processes.plans, plan)
        plans = [*self._processes.plans, plan]
        if recovery is not None and recovery.retries.every is not None:
            check_copied_states(plans)
        self._processes.with_retries(self.plan.name, lambda: backend.add(plan))
        self._processes.plans.append(plan)
        steps = self._processes.restored.pop(plan.name, 0)
        self._processes.steps[plan.name] = steps
        if recovery is not None:
            recovery.add(plan.name, steps)
        return Running(plan, self._processes, owner=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes; a second call does nothing."""
        if self._owner:
            self._processes.close()

    @property
    def steps(self) -> int:
        """The number of completed steps, including those before a ``load``."""
        return self._runner.next_step

    @property
    def decisions(self) -> int:
        """The number of decisions of the queues, including those before a ``load``: the lines of a log of all steps."""
        return self._stream.decisions

    @property
    def batches_read(self) -> int:
        """The number of batches that streams have taken from their loaders, including those before a ``load``.

        After a ``save``, the loader of a run that loads the folder continues behind them.
        """
        return self._stream.batches_read

    def wait_for_loader(self) -> None:
        """Wait for the batch that a stream's loader is reading, and hold it for the stream, as ``save`` does.

        The loader then rests until the next result is asked for, and ``batches_read`` counts all that it has yielded.
        """
        with self._processes.alone("a wait for the loader"):
            self._processes.with_retries(self.plan.name, self._stream.wait_for_loader)

    @property
    def decides(self) -> bool:
        """Whether a queue is dynamic: it decides during the run which groups an update gets."""
        return decides(self.plan)

    @property
    def decides_by_time(self) -> bool:
        """Whether another run may make other decisions: a queue is dynamic, and calls take the time that they take."""
        return self.decides and isinstance(self._runner.backend, PollingBackend)

    @property
    def queues(self) -> tuple[QueueState, ...]:
        """The current queues; one that decides during the run has no sizes before the first batch."""
        return self._stream.queues

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the states of the workers, and the number of steps, into a folder: an empty one, or a new one.

        Every role with ``state()`` and ``load_state(state)`` is saved, on every rank; ranks with equal states write
        one file. All nodes must have access to the folder. A stream's steps in progress are saved with the contents of
        the queues: after a ``load``, the next stream returns their results first, and its loader continues after them.
        If the loader of this stream is reading a batch, ``save`` waits for it, and it is saved, too.

        Raises:
            CheckpointError: HF908 if a role that trains has no state, or one that cannot be saved, or a role loads
                a state that later steps read and has no ``state()``, or a queue holds objects that are not plain
                values; HF906 if the folder is not empty, or it or a file cannot be written.
            RoleError: HF806 if a role's ``state()`` raises.
            HfError: HF807 if the deadline passed, HF808 if the run is closed or broken.
        """
        self._check_saved_states()
        self._save(path_of(folder, "running.save"), background=False)

    def save_in_background(self, folder: str | PathLike[str]) -> Saving:
        """Save while steps run: workers copy their states before this returns, and write the copies in the background.

        The checkpoint has the states at the time of the call::

            saving = running.save_in_background(folder)
            running.step(batch)
            saving.wait()

        Raises:
            CheckpointError, RoleError, HfError: as ``save``; HF906 is raised by the returned object.
        """
        self._check_saved_states()
        return self._save(path_of(folder, "running.save_in_background"), background=True)

    save_behind = save_in_background
    """The former name of ``save_in_background``."""

    def _check_saved_states(self) -> None:
        check_loaded_states(self._processes.plans, self._processes.plans, "a checkpoint")

    def _save(self, folder: Path, background: bool) -> Saving:
        with self._processes.alone("a save"):
            return save_states(
                self._processes,
                self.plan.deployment,
                folder,
                background=background,
                save_stream=self._stream.save,
                plan=self.plan.name,
            )

    def load(self, folder: str | PathLike[str]) -> None:
        """Load the states that ``save`` wrote; the next step then draws the same random numbers as after the save.

        Raises:
            CheckpointError: HF905 if it is the state of other roles, meshes or queues, or of another seed; HF906 if it
                is damaged.
            RoleError: HF806 if a role's ``load_state()`` raises; the run is then broken.
            HfError: HF807 if the deadline passed, HF808 if the run is closed or broken.
        """
        load_states(self._processes, self._stream, self.plan, path_of(folder, "running.load"))

    def go_back_to(self, folder: str | PathLike[str]) -> None:
        """After a loss of processes, go back to the checkpoint in this folder, instead of an older copy.

        Keep the folder until you name a newer one. Without ``launch(..., retries=...)`` this has no effect.

        Raises:
            CheckpointError: HF905, HF906 as for ``load``.
        """
        if self._processes.recovery is not None:
            go_back_to(
                self._processes,
                self._processes.recovery,
                self._stream,
                self.plan,
                path_of(folder, "running.go_back_to"),
            )

    @property
    def all_steps(self) -> Mapping[str, int]:
        """The number of completed steps of each plan on these workers, by the plan's name."""
        return self._processes.all_steps

    @property
    def recovers(self) -> bool:
        """Whether the run recovers from lost processes: ``launch(..., retries=...)``."""
        return self._processes.recovery is not None

    @property
    def recoveries(self) -> Sequence[Recovered]:
        """The losses of processes from which this run has recovered."""
        return tuple(self._processes.recovery.recoveries) if self._processes.recovery is not None else ()

    @property
    def timings(self) -> dict[str, float]:
        """Seconds that each node of the last step took, from its first rank's start to its last rank's end."""
        return {label: stop - start for label, (start, stop) in self.timeline.nodes.items()}

    @property
    def timeline(self) -> Timeline:
        """The activity of every process in the last step, and its transfers; empty before the first step."""
        record = self._runner.record
        return timeline(record) if record else Timeline(self.plan.name, -1, 0.0, 0.0, ())

    @contextmanager
    def trace(self, path: str | PathLike[str]) -> Iterator[None]:
        """Write the timelines of the steps within the block to a file that Perfetto and ``chrome://tracing`` open.

        A step is written while the next one runs, when the driver would only wait::

            with plan.launch("ray") as running, running.trace("steps.json"):
                for batch in batches:
                    running.step(batch)

        Raises:
            OSError: where the file cannot be written.
        """
        with TraceFile(path) as file, self.traced(file):
            yield

    @contextmanager
    def traced(self, file: TraceFile) -> Iterator[None]:
        """Write the timelines of the steps within the block to an open trace, which may have those of other plans."""
        self._runner.write()
        self._runner.traces.append(file)
        try:
            yield
        finally:
            self._runner.write()
            self._runner.traces.remove(file)

    @contextmanager
    def record(self, folder: str | PathLike[str]) -> Iterator[None]:
        """Record the step within the block, so that ``hfdsl replay FOLDER`` can repeat one of its calls.

        It writes the states of the roles, and the arguments and results of each call on every rank; if the step
        fails, those up to the failure. The folder must be new, and all nodes must have access to it::

            with running.record("steps/17"):
                running.step(batch)

        Raises:
            CheckpointError: HF906 if a recording exists already or cannot be written, HF908 if a role that trains has
                no state, or a role loads a state that later steps read and has no ``state()``.
            WiringError: HF751 if the dataflow has queues.
            HfError: HF807 if a process does not answer within the deadline, HF808 if the run is closed or broken.
        """
        save = partial(self._save, background=False)
        with recording(
            self._processes, self.plan, path_of(folder, "running.record").resolve(), self._runner.next_step, save
        ):
            yield

    def verify(self, state: str) -> Verified:
        """Compare digests of every exported weight with those of its loaded copies.

        A copy is compared with the last export. If its source has been updated since then, the sync must have run in a
        step under ``verifying``; other copies, and roles without access to their weights, are listed as skipped.

        Raises:
            SyncError: HF771 if a copy holds other weights; names its role, the parameter and the ranks.
            ResourceError: HF772 if no plan that has run here syncs such a state.
            RoleError: HF806 if a role's ``held_weights()`` raises.
            HfError: HF807 if the deadline passed, HF808 if the run is closed or broken.
        """
        return verify(self._processes, self.plan, state, reported=False)

    @contextmanager
    def verifying(self, *states: str) -> Iterator[None]:
        """At the end of the block, verify its last sync of these states, by default of all, as ``verify`` does.

        The exports within the block are digested, which ``verify`` needs if the source is updated after the sync.
        Weights that arrive bucket by bucket are digested on arrival, and compared after their load::

            with running.verifying("policy"):
                running.step(batch)

        Raises:
            SyncError, ResourceError, RoleError, HfError: as ``verify``.
        """
        with verifying(self._processes, self.plan, states):
            yield

    def step(self, *batches: Batch, **named: Batch) -> Any:
        """Run the dataflow once on these batches, in the order of its parameters or by name, and return its result.

        Raises:
            WiringError: HF203, HF206 if the batches do not match the dataflow's parameters, HF751 if it has queues.
            SizeError: HF302 for sizes that are not those of the plan; HF319 for sizes that the check could not decide
                and that do not work; HF313 and HF321 for the rows that filters keep.
            RoleError: HF806 if a body raised; the run is then broken.
            HfError: HF807 if a body waits for peers that never arrive, or the deadline passed; the run is then broken.
                HF821 if another thread is within a step of this run.
        """
        with self._processes.alone(f"a step of '{self.plan.name}'"):
            return self._step(batches, named)

    def _step(self, batches: tuple[Batch, ...], named: dict[str, Batch]) -> Any:
        self._processes.usable_backend(self.plan.name)
        if self.plan.steps_in_flight:
            use = "use 'for result in running.stream(loader)' instead of running.step(batch)"
            raise WiringError(
                "HF751", f"'{self.plan.name}' has queues, so several steps are in progress at a time; {use}"
            )
        runner, recovery = self._runner, self._processes.recovery
        inputs = step_inputs(self.plan, batches, named)
        self._processes.submit_put_off(self.plan.name)
        step = runner.new(inputs)
        with runner.breaking(self.steps):
            if recovery is None:
                return runner.run(step, inputs)
            result = recovery.run(self.plan.name, lambda: self._run_again(inputs))
            recovery.committed(self.plan.name, runner.run_again, inputs)
        return result

    def _run_again(self, inputs: Mapping[int, Any]) -> Any:
        self._processes.continue_recording()
        return self._runner.run_again(inputs)

    def stream(
        self,
        loader: Iterable[Batch | Sequence[Batch] | Mapping[str, Batch]],
        *,
        timeout: float = 1800.0,
        log: str | PathLike[str] | None = None,
        replay: str | PathLike[str] | None = None,
        seconds: Mapping[str, float | CallSeconds] | None = None,
    ) -> Iterator[Any]:
        """Run the dataflow on every batch of a loader, with overlapping stages, and yield its results in order.

        ::

            for metrics in running.stream(loader):
                print(running.steps, metrics)

        For each step, the loader yields the arguments of ``step``: a batch, or several in a sequence or by name. It is
        read as many steps ahead as the queues have places, in a thread of its own, and may take ``timeout`` seconds for
        each. A step in progress stays in the run: after a ``break``, the next ``stream`` returns its result first, and
        reads on after the batch that the loader was reading. Every decision of the queues is appended to the file
        ``log`` as a line of JSON; with ``replay`` the decisions must be those of such a file, and the stream ends with
        its last step.

        On the local backend, a dynamic queue uses a virtual clock, on which the calls of a node
        take this many ``seconds``; by default they take none. A later ``stream`` uses them, too, unless it names
        others; a checkpoint does not hold them.

        Raises:
            HfError: HF764 if the loader yields nothing in time; HF765 if a batch puts another number of groups
                into a dynamic queue than earlier ones; HF807 if the deadline of a step passed.
            CheckpointError: HF761 if decisions are not those of ``replay``, or it is no log, HF906 if ``log`` cannot be
                written.
            LostProcessError: HF840 if processes were lost more often than ``launch(..., retries=...)`` allows.
            ResourceError: HF931 for a ``timeout`` that is not a positive number.
            WiringError, SizeError, RoleError: as ``step``, and HF202 if ``seconds`` names a call that the plan does not
                have, or gives one no duration, or the backend is not the local one; HF206 if ``loader`` is none;
                HF821 in the iterator, after a later ``stream`` or ``load``; whatever the loader raises.
        """
        self._processes.usable_backend(self.plan.name)
        replay = replay if self.plan.split.queues else None  # without queues there is nothing to decide
        timeout = checked_deadline(timeout, "stream(timeout=)")
        return self._stream.results(loader, timeout, DecisionLog(log, replay), seconds)
