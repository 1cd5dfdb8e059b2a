"""A running plan: steps, one after another, each from the caller's batches to the dataflow's result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hfdsl.errors import CheckpointError, LostProcessError, ResourceError, WiringError
from hfdsl.graph.program import Input
from hfdsl.plan.plan import Plan
from hfdsl.plan.routes import Hints, compute_routes
from hfdsl.plan.rows import row_table
from hfdsl.plan.size_checks import check_sizes
from hfdsl.plan.sizes import bind_sizes, row_dims
from hfdsl.plan.timeline import Timeline, TraceFile
from hfdsl.runtime.backend import Backend
from hfdsl.runtime.loading import END, LoaderThread
from hfdsl.runtime.messages import SMALL_PAYLOAD_BYTES
from hfdsl.runtime.processes import Processes
from hfdsl.runtime.queue_files import SavedStep, SavedStream
from hfdsl.runtime.recording import begin
from hfdsl.runtime.recovery import LOSS_SECONDS, RecoverableBackend, Recovered, named
from hfdsl.runtime.saving import Saving, read_manifest
from hfdsl.runtime.step import Routing, StepRun
from hfdsl.runtime.store import bytes_of
from hfdsl.runtime.streaming import DecisionLog, StageOrder, StepCallbacks, Stream, check_queued_rows
from hfdsl.runtime.timeline import StepRecord, timeline
from hfdsl.runtime.verification import (
    Verified,
    VerifiedSync,
    comparable,
    compare,
    dtypes_of,
    same_names,
    states_of,
    syncs_of,
)
from hfdsl.types.batches import Batch, closest, upcast

CALL_SECONDS = 1e-3
"""The cost of a call: a step that takes less is not worth its own call."""

MEASURED_STEPS = (4, 8, 16, 32)
"""The steps of a run after which it looks at how long bodies take."""

CACHED_ROUTINGS = 16
"""How many routings a run keeps, the most recently used; its processes keep as many specs of each segment."""


class Running:
    """A launched plan. Use it as a context manager: leaving it, in whatever way, ends its processes."""

    def __init__(self, plan: Plan, processes: Processes, owner: bool = True) -> None:
        self.plan = plan
        self._processes, self._owner = processes, owner
        self._row_dims = row_dims(plan)
        self._routings: dict[tuple[tuple[int | None, ...], Hints], Routing] = {}  # least recently used first
        self._fastest: dict[str, float] = {}  # seconds of the slowest rank, in the fastest step
        self._short_steps: frozenset[int] = frozenset()
        self._check_sizes = lru_cache(CACHED_ROUTINGS)(lambda sizes: check_sizes(plan, dict(sizes)))
        self._measured = 0
        self._record: StepRecord | None = None
        self._traces: list[TraceFile] = []
        self._unwritten: StepRecord | None = None
        self._generation = 0
        self._stream: Stream | None = None

    def also(self, plan: Plan) -> Running:
        """Run another plan of the same deployment on the same workers, such as an evaluation between training steps.

        Its steps use the workers' states as they are at the time. The processes end with this run.

        Raises:
            ResourceError: HF519 where the plan is for another ``Deployment`` or has the name of one that runs.
            HfError: HF807 where a process does not take the plan within the deadline.
        """
        if plan.deployment is not self.plan.deployment:
            raise ResourceError(
                "HF519",
                f"'{plan.name}' was compiled for another deployment ({plan.deployment.span}) than '{self.plan.name}' "
                f"({self.plan.deployment.span}), on whose workers it is to run; compile both for one hf.Deployment",
            )
        if plan.name in self._processes.steps:
            raise ResourceError("HF519", f"a plan named '{plan.name}' runs here already")
        self._processes.usable_backend(self.plan.name).add(plan)
        steps = self._processes.restored.pop(plan.name, 0)
        self._processes.steps[plan.name] = steps
        if self._processes.recovery is not None:
            self._processes.recovery.add(plan.name, steps)
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
        """How many steps have been committed, including those before a ``load``."""
        return self._step_number

    @property
    def _step_number(self) -> int:
        return self._processes.steps[self.plan.name]

    @property
    def decisions(self) -> int:
        """How many decisions the queues have made, including those before a ``load``: lines of a log of all steps."""
        order = self._stream.order if self._stream is not None else StageOrder(self.plan, self._step_number)
        return order.decisions

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the states of the workers, and the number of steps, into an empty folder that exists.

        Every role with ``state()`` and ``load_state(state)`` is saved, on every rank; ranks with equal states write
        one file. All nodes have to see the folder. Steps of a stream that were begun are saved with what lies in the
        queues: after a ``load`` the next stream gives their results first, and its loader goes on after them.

        Raises:
            CheckpointError: HF908 where a role that trains has no state, or one that cannot be saved, or a queue holds
                objects that are no plain values; HF906 where a file cannot be written.
            RoleError: HF806 where a role's ``state()`` raises.
            HfError: HF807 where the deadline passed, HF808 where the run is closed or broken.
        """
        self._save(Path(folder), background=False)

    def save_in_background(self, folder: str | PathLike[str]) -> Saving:
        """Save while steps run: workers copy their states before this returns, and write the copies in a thread.

        So what is written is the state at the time of the call::

            saving = running.save_in_background(folder)
            running.step(batch)
            saving.wait()

        Raises:
            CheckpointError, RoleError, HfError: as ``save``; HF906 is raised by the returned object.
        """
        return self._save(Path(folder), background=True)

    save_behind = save_in_background
    """Its name in earlier versions."""

    def _save(self, folder: Path, background: bool) -> Saving:
        backend, recovery = self._processes.usable_backend(self.plan.name), self._processes.recovery
        if any(folder.iterdir()):
            raise CheckpointError("HF906", f"the state cannot be written to {folder}: it is not empty")

        def attempt() -> Saving:
            for left in folder.iterdir():  # by an attempt before, whose processes were lost
                left.unlink()
            stream = self._stream.save(backend, str(folder.resolve())) if self._stream is not None else None
            backend.save(str(folder.resolve()), background)
            saving = self._saving(folder, stream)
            if not background:
                saving.wait()
            return saving

        with self._processes.alone("a save"):
            return attempt() if recovery is None else recovery.run(self.plan.name, attempt)

    def _saving(self, folder: Path, stream: SavedStream | None) -> Saving:
        return Saving(
            processes=self._processes,
            folder=folder,
            deployment=self.plan.deployment,
            steps=self.all_steps,
            seed=self._processes.seed,
            generation=self._processes.generation,
            stream=stream,
        )

    def load(self, folder: str | PathLike[str]) -> None:
        """Load the states that ``save`` wrote; the next step has the random streams that it would have had then.

        Raises:
            CheckpointError: HF905 where it is the state of other roles, meshes, queues or another seed, HF906 where it
                is damaged.
            RoleError: HF806 where a role's ``load_state()`` raises; the run is broken then.
            HfError: HF807 where the deadline passed, HF808 where the run is closed or broken.
        """
        backend = self._processes.usable_backend(self.plan.name)
        manifest = read_manifest(Path(folder), self.plan.deployment, self._processes.seed)
        place = str(Path(folder).resolve())
        with self._processes.alone("a load"):
            try:
                backend.load(place, manifest.roles)
            except BaseException as error:
                self._processes.broken = f"a load of '{folder}' ({type(error).__name__})"
                raise
        self._stream = None  # what was in flight belongs to the states before
        backend.driver.load(place, {})
        self._processes.syncs.forget()
        known = self._processes.steps
        self._processes.restored = {name: n for name, n in manifest.steps.items() if name not in known}
        known |= {name: manifest.steps.get(name, 0) for name in known}
        if manifest.stream is not None:
            self._load_stream(backend, place, manifest.stream)
        if self._processes.recovery is not None:
            self._processes.recovery.begin(lambda: backend.load(place, manifest.roles))

    def _load_stream(self, backend: Backend, folder: str, saved: SavedStream) -> None:
        if saved.plan != self.plan.name:
            text = f"the state has rows in the queues of '{saved.plan}', and '{self.plan.name}' cannot go on with them"
            raise CheckpointError("HF905", text)
        with self._breaking(self._step_number):
            stream = self._new_stream()
            stream.load(backend, folder, saved)
        self._stream = stream

    def go_back_to(self, folder: str | PathLike[str]) -> None:
        """After a loss of processes, go back to what ``save`` wrote into this folder, rather than to an older copy.

        The folder has to stay until a newer one takes its place. Without ``launch(..., retries=...)`` nothing happens.

        Raises:
            CheckpointError: HF905, HF906 as for ``load``.
        """
        recovery = self._processes.recovery
        if recovery is not None:
            backend = self._processes.usable_backend(self.plan.name)
            place = Path(folder).resolve()
            manifest = read_manifest(place, self.plan.deployment, self._processes.seed)
            recovery.go_back_to(manifest.steps, lambda: backend.load(str(place), manifest.roles))

    @property
    def all_steps(self) -> Mapping[str, int]:
        """How many steps of each plan on these workers have been committed, by the plan's name."""
        return dict(self._processes.restored | self._processes.steps)

    @property
    def recovers(self) -> bool:
        """Whether the run goes on after a loss of processes, as ``launch(..., retries=...)`` makes it do."""
        return self._processes.recovery is not None

    @property
    def recoveries(self) -> Sequence[Recovered]:
        """The losses of processes from which this run went on."""
        return tuple(self._processes.recovery.recoveries) if self._processes.recovery is not None else ()

    @property
    def timings(self) -> dict[str, float]:
        """Seconds that each node of the last step took, from its first rank's start to its last rank's end."""
        return {label: stop - start for label, (start, stop) in self.timeline.nodes.items()}

    @property
    def timeline(self) -> Timeline:
        """What every process did in the last step, and what was sent between them; empty before the first step."""
        return timeline(self._record) if self._record else Timeline(self.plan.name, -1, 0.0, 0.0, ())

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
        self._write()
        with TraceFile(path) as file:
            self._traces.append(file)
            try:
                yield
            finally:
                self._write()
                self._traces.remove(file)

    @contextmanager
    def record(self, folder: str | PathLike[str]) -> Iterator[None]:
        """Record the step within the block, so that one of its calls can be repeated alone: ``hfdsl replay FOLDER``.

        It writes the states of the roles, and the arguments and results of each call on every rank; of a step that
        fails, those up to the failure. The folder is new, and all nodes have to see it::

            with running.record("steps/17"):
                running.step(batch)

        Raises:
            CheckpointError: HF906 where a recording exists already, HF908 where a role that trains has no state.
            WiringError: HF751 where the dataflow has queues.
            HfError: HF807 where a process does not answer within the deadline, HF808 where the run is closed or broken.
        """
        backend, place = self._processes.usable_backend(self.plan.name), Path(folder).resolve()
        if self.plan.steps_in_flight:
            text = f"'{self.plan.name}' has queues, so several steps are in progress at a time; a recording is of one"
            raise WiringError("HF751", text)
        begin(place, self.plan, self._step_number, self._processes.seed, self.save)
        backend.record(str(place))
        try:
            yield
        finally:
            if self._processes.backend is not None and not self._processes.broken:
                backend.record(None)

    def verify(self, state: str) -> Verified:
        """Compare digests of every weight that roles export and that others have loaded: do the copies hold it?

        A copy is compared with the last export. Where its source has learned since then, that works for a sync in a
        step under ``verifying``; other copies, and roles without access to their weights, are listed as skipped.

        Raises:
            SyncError: HF771 where a copy holds other weights, with its role, the parameter and the ranks.
            ResourceError: HF772 where no plan that has run here syncs such a state.
            RoleError: HF806 where a role's ``held_weights()`` raises.
            HfError: HF807 where the deadline passed, HF808 where the run is closed or broken.
        """
        recovery = self._processes.recovery
        with self._processes.alone("a verification"):
            if recovery is None:
                return self._verify(state)
            return recovery.run(self.plan.name, lambda: self._verify(state))

    def _verify(self, state: str) -> Verified:
        """Compare digests once, on the processes that there are by now."""
        backend, history = self._processes.usable_backend(self.plan.name), self._processes.syncs
        self._processes.forget_replaced(backend)
        syncs = [sync for sync in {**dict.fromkeys(history.current), **syncs_of(self.plan)} if sync.state == state]
        if not syncs:
            known = ", ".join(map(repr, dict.fromkeys(states_of(self.plan)))) or "none"
            missing = f"no hf.sync of '{self.plan.name}' sends the state {state!r}"
            raise ResourceError("HF772", f"{missing}; states that it sends: {known}")
        compared, skipped = list[VerifiedSync](), dict[VerifiedSync, str]()
        for sync in syncs:
            problem = comparable(sync, history) or self._compare(backend, sync, learned=not history.current[sync])
            if problem is None:
                compared.append(sync)
            else:
                skipped[sync] = problem
        return Verified(state, tuple(compared), skipped)

    def _compare(self, backend: Backend, sync: VerifiedSync, learned: bool) -> str | None:
        """Compare a copy with its source; why that is not possible, or None."""
        missing = "has no method held_weights(state), which gives the weights that a rank holds"
        copies = backend.digests(sync, sync.target, None, exported=False)
        if all(digests is None for digests in copies):
            return f"'{sync.target}' {missing}"
        held = [digests or () for digests in copies]
        exports = backend.digests(sync, sync.source, dtypes_of(held), exported=learned)
        if all(digests is None for digests in exports):
            return f"'{sync.source}' exports something else than a dict of tensors, and {missing}"
        exported = [digests or () for digests in exports]
        if not hasattr(self.plan.deployment[sync.target].role, "held_weights") and not same_names(exported, held):
            return f"the state() of '{sync.target}' has other names than '{sync.source}' exports, and it {missing}"
        compare(sync, exported, held)
        return None

    @contextmanager
    def verifying(self, *states: str) -> Iterator[None]:
        """Verify the syncs of the steps within the block, as ``verify`` does, as it ends; of all states by default.

        What the steps export is digested, which ``verify`` needs where the source learns after the sync::

            with running.verifying("policy"):
                running.step(batch)

        Raises:
            SyncError, ResourceError, RoleError, HfError: as ``verify``.
        """
        backend = self._processes.usable_backend(self.plan.name)
        syncs = [sync for sync in syncs_of(self.plan) if not states or sync.state in states]
        dtypes = self._processes.syncs.dtypes
        for sync in syncs:
            if sync not in dtypes:
                copies = backend.digests(sync, sync.target, None, exported=False)
                dtypes[sync] = dtypes_of([digests or () for digests in copies])
        before = self._processes.verifying
        self._processes.verifying = (*before, *syncs)
        self._processes.digest_exports(backend)
        try:
            yield
            for state in states or dict.fromkeys(sync.state for sync in syncs):
                self.verify(state)
        finally:
            self._processes.verifying = before
            if self._processes.backend is not None and not self._processes.broken:
                self._processes.digest_exports(backend)

    def _write(self) -> None:
        """Write the last step to the traces, once."""
        if self._unwritten is not None:
            record, self._unwritten = self._unwritten, None
            for file in self._traces:
                file.add(timeline(record))

    def step(self, *batches: Batch, **named: Batch) -> Any:
        """Run the dataflow once on these batches, in the order of its parameters or by name, and return its result.

        Raises:
            WiringError: HF203, HF206 for batches that are not those of the dataflow, HF751 where it has queues.
            SizeError: HF302 for sizes that are not those of the plan, HF319 for sizes that the check had left open
                and that do not work out, HF313 and HF321 for what filters keep.
            RoleError: HF806 where a body raised; the run is broken then.
            HfError: HF807 where a body waits for peers that never arrive, or the deadline passed; broken as well.
                HF821 where another thread is within a step here.
        """
        with self._processes.alone(f"a step of '{self.plan.name}'"):
            return self._step(batches, named)

    def _step(self, batches: tuple[Batch, ...], named: dict[str, Batch]) -> Any:
        backend = self._processes.usable_backend(self.plan.name)
        if self.plan.steps_in_flight:
            use = "use 'for result in running.stream(loader)' instead of running.step(batch)"
            raise WiringError(
                "HF751", f"'{self.plan.name}' has queues, so several steps are in progress at a time; {use}"
            )
        inputs = self._inputs(batches, named)
        sizes = bind_sizes(self.plan, inputs)
        routing = self._routing(backend, inputs, sizes)
        recovery = self._processes.recovery
        with self._breaking(self._step_number):
            if recovery is None:
                return self._run(backend, inputs, sizes, routing)
            result = recovery.run(self.plan.name, lambda: self._run_again(inputs))
            recovery.committed(self.plan.name, self._run_again, inputs)
        return result

    def _run_again(self, inputs: Mapping[int, Batch]) -> Any:
        """Run the dataflow once, on the processes that there are by now."""
        processes, sizes = self._processes, bind_sizes(self.plan, inputs)
        backend = processes.usable_backend(self.plan.name)
        processes.forget_replaced(backend)
        return self._run(backend, inputs, sizes, self._routing(backend, inputs, sizes))

    def _run(self, backend: Backend, inputs: Mapping[int, Batch], sizes: Mapping[Any, int], routing: Routing) -> Any:
        """Run the dataflow once, and count the step."""
        run = StepRun(self.plan, backend, routing, self._step_number, sizes)
        result, record = run.run(inputs, self._write)
        self._commit()
        self._keep_record(record)
        return result

    def stream(
        self,
        loader: Iterable[Batch | Sequence[Batch] | Mapping[str, Batch]],
        *,
        timeout: float = 1800.0,
        log: str | PathLike[str] | None = None,
        replay: str | PathLike[str] | None = None,
    ) -> Iterator[Any]:
        """Run the dataflow on every batch of a loader, stages beside each other, and give its results in order.

        ::

            for metrics in running.stream(loader):
                print(running.steps, metrics)

        The loader gives for each step what ``step`` takes: a batch, or several in a sequence or by name. It is asked
        for as many steps ahead as the queues have places, and may take ``timeout`` seconds for each. A step that was
        begun stays in the run: if the loop is left early, the next ``stream`` gives its result first. Every decision of
        the queues is appended to the file ``log`` as a line of JSON; with ``replay`` the decisions must be those of
        such a file, with whose last step the stream ends.

        Raises:
            HfError: HF764 where the loader gives nothing in time; HF765 where a queue gives other numbers of rows than
                a step puts in; HF807 where the deadline of a step passed.
            CheckpointError: HF761 where decisions are not those of ``replay``.
            ResourceError: HF841 where the plan was launched with ``retries=``.
            WiringError, SizeError, RoleError: as ``step``; whatever the loader raises.
        """
        self._processes.usable_backend(self.plan.name)
        if self._processes.recovery is not None:
            raise ResourceError(
                "HF841", "retries= repeat steps, and a stream has several in progress; launch without them"
            )
        if self._stream is None:
            self._stream = self._new_stream()
        replay = replay if self.plan.split.queues else None  # without queues there is nothing to decide
        return self._results(self._stream, loader, timeout, DecisionLog(log, replay))

    def _new_stream(self) -> Stream:
        callbacks = StepCallbacks(
            begin=self._begin_step,
            resume=self._resume_step,
            within=self._within_stream,
            committed=self._commit,
            ended=self._keep_record,
        )
        return Stream(self.plan, self._step_number, callbacks)

    def _resume_step(self, saved: SavedStep, inputs: Mapping[int, Batch]) -> StepRun:
        """Go on with a step of an earlier run."""
        backend, sizes = self._processes.usable_backend(self.plan.name), bind_sizes(self.plan, inputs)
        routing = self._routing(backend, inputs, sizes, frozenset(saved.short_steps))
        with self._breaking(saved.number):
            run = StepRun(self.plan, backend, routing, saved.number, sizes)
            run.begin(inputs)
            run.resume(saved)
        return run

    def _results(self, stream: Stream, loader: Iterable[Any], timeout: float, decisions: DecisionLog) -> Iterator[Any]:
        source = LoaderThread(loader, timeout, lambda: str(stream.order))
        try:
            results = stream.results(source, decisions)
            while True:
                with self._processes.alone(f"a stream of '{self.plan.name}'"):
                    result = next(results, END)
                if result is END:
                    return
                yield result
                self._processes.usable_backend(self.plan.name)
        finally:
            source.close()
            decisions.close()

    def _begin_step(self, step_number: int, batch: Batch | Sequence[Batch] | Mapping[str, Batch]) -> StepRun:
        """Begin a step of a stream: errors as for ``step``, and HF765."""
        backend = self._processes.usable_backend(self.plan.name)
        if isinstance(batch, Batch):
            inputs = self._inputs((batch,), {})
        elif isinstance(batch, Mapping):
            inputs = self._inputs((), dict(batch))
        elif isinstance(batch, Sequence):
            inputs = self._inputs(tuple(batch), {})
        else:
            text = f"the loader of '{self.plan.name}' gave {type(batch).__name__} instead of a batch, or several"
            raise WiringError("HF206", text)
        sizes = bind_sizes(self.plan, inputs)
        routing = self._routing(backend, inputs, sizes)
        check_queued_rows(self.plan, routing.routes.table)
        with self._breaking(step_number):
            run = StepRun(self.plan, backend, routing, step_number, sizes)
            run.begin(inputs)
        return run

    def _commit(self) -> None:
        self._processes.steps[self.plan.name] += 1
        self._processes.syncs.add(self.plan, self._processes.verifying)

    @contextmanager
    def _breaking(self, step_number: int) -> Iterator[None]:
        """Within this, an error breaks the run: processes may be anywhere within the step."""
        try:
            yield
        except BaseException as error:
            self._processes.broken = f"step {step_number} of '{self.plan.name}' ({type(error).__name__})"
            raise

    @contextmanager
    def _within_stream(self, step_number: int) -> Iterator[None]:
        """As ``_breaking``; the error of a loss names the ranks that are gone, and what the queues hold."""
        with self._breaking(step_number):
            try:
                yield
            except LostProcessError as error:
                backend, queues = self._processes.backend, "" if self._stream is None else str(self._stream.order)
                lost = backend.lost(LOSS_SECONDS) if isinstance(backend, RecoverableBackend) else {}
                if not lost:
                    raise
                text = f"step {step_number} of '{self.plan.name}' lost {named(lost)} while {queues}"
                raise LostProcessError("HF806", f"{text}: {error.message}") from None

    def _keep_record(self, record: StepRecord) -> None:
        """Keep the record of a step that has ended, and what it says of how long bodies take."""
        self._write()
        self._record = record
        self._unwritten = record if self._traces else None
        self._measured += 1
        if 1 < self._measured <= MEASURED_STEPS[-1]:  # the first step of all loads what bodies import
            slowest: dict[str, float] = {}
            for call in (call for part in record.results for call in part.calls):
                slowest[call.label] = max(slowest.get(call.label, 0.0), call.stop - call.start)
            for label, seconds in slowest.items():
                self._fastest[label] = min(self._fastest.get(label, seconds), seconds)

    def _routing(
        self,
        backend: Backend,
        inputs: Mapping[int, Batch],
        sizes: Mapping[Any, int],
        short_steps: frozenset[int] | None = None,
    ) -> Routing:
        """The routes for these sizes, which depend on numbers of rows alone, and for what was measured.

        New ones take the ID of the least recently used: their specs replace those of the old ones in all processes.
        """
        self._check_sizes(tuple(sizes.items()))
        if self._processes.generation != self._generation:  # new processes have no specs
            self._routings.clear()
            self._generation = self._processes.generation
        short_steps = self._find_short_steps() if short_steps is None else short_steps
        hints = Hints(short_steps, self._inline_inputs(inputs))
        cache, key = self._routings, (tuple(sizes.get(dim) for dim in self._row_dims), hints)
        routing = cache.pop(key, None)
        if routing is None:
            new_routes = compute_routes(self.plan, row_table(self.plan, sizes), backend.topology(self.plan), hints)
            most = max(CACHED_ROUTINGS, self.plan.steps_in_flight + 1)  # those of steps in flight are used last
            routing_id = len(cache) if len(cache) < most else cache.pop(next(iter(cache))).id
            routing = Routing(new_routes, routing_id, hints)
        cache[key] = routing
        return routing

    def _inline_inputs(self, inputs: Mapping[int, Batch]) -> frozenset[int]:
        """The inputs so small that what a rank of the first step reads of them, on average, travels with its call."""
        readers = sum(len(step.ranks) for step in self.plan.steps[:1])
        return frozenset(n for n, b in inputs.items() if bytes_of(b.__hf_columns__) <= readers * SMALL_PAYLOAD_BYTES)

    def _find_short_steps(self) -> frozenset[int]:
        """The steps whose slowest rank took less time than a call does, in the fastest of the measured steps.

        On a GPU a body returns before its work is done, so its time says nothing.
        """
        if self._measured in MEASURED_STEPS:
            cpu = {group.name for group in self.plan.groups if not group.pool.use_gpu}
            steps = (step for step in self.plan.steps if step.group in cpu)
            self._short_steps = frozenset(
                step.node for step in steps if self._fastest.get(step.label, CALL_SECONDS) < CALL_SECONDS
            )
        return self._short_steps

    def _inputs(self, batches: tuple[Batch, ...], named: dict[str, Batch]) -> dict[int, Batch]:
        nodes = {node.op.name: node for node in self.plan.graph.inputs if isinstance(node.op, Input)}
        by_name = dict(zip(nodes, batches, strict=False)) | named
        takes = ", ".join(f"{n}: {node.op.record.__name__}" for n, node in nodes.items() if isinstance(node.op, Input))
        if len(batches) > len(nodes):
            raise WiringError("HF202", f"'{self.plan.name}' takes {len(nodes)} batches ({takes}), got {len(batches)}")
        for name in named:
            if name in list(nodes)[: len(batches)]:
                raise WiringError("HF202", f"'{self.plan.name}' is given its input '{name}' twice")
        for name in by_name:
            if name not in nodes:
                raise WiringError("HF202", f"'{self.plan.name}' has no input '{name}'; {closest(name, list(nodes))}")
        inputs: dict[int, Batch] = {}
        for name, node in nodes.items():
            if name not in by_name:
                raise WiringError("HF203", f"'{self.plan.name}' is missing its input '{name}' (it takes {takes})")
            record = node.op.record if isinstance(node.op, Input) else Batch
            if not isinstance(by_name[name], record):
                got = type(by_name[name]).__name__
                raise WiringError("HF206", f"input '{name}' of '{self.plan.name}' takes {record.__name__}, got {got}")
            inputs[node.id] = upcast(by_name[name], record)
        return inputs
