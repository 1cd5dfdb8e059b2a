"""The stream of a running plan: every call of ``Running.stream`` continues the same one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hfdsl.errors import CheckpointError, HfError, SizeError, WiringError
from hfdsl.plan.plan import Plan
from hfdsl.plan.queues import decides
from hfdsl.runtime.backend import Backend, PollingBackend
from hfdsl.runtime.loading import END, LoaderThread
from hfdsl.runtime.processes import Processes
from hfdsl.runtime.queues.decision_log import DecisionLog
from hfdsl.runtime.queues.durations import CallSeconds, call_durations
from hfdsl.runtime.queues.files import SavedStream
from hfdsl.runtime.queues.held_values import check_held_values, held_values
from hfdsl.runtime.queues.stage_stream import StageStream
from hfdsl.runtime.queues.streaming import StageOrder, Stream
from hfdsl.runtime.recovery.streams import RecoveringStream
from hfdsl.runtime.runner import StepRunner
from hfdsl.runtime.saving.driver import Manifest
from hfdsl.runtime.schedule import QueueState
from hfdsl.types.batches import Batch


class RunningStream:
    """A stream that may not have begun; ``begun`` is the stream, or None before that."""

    def __init__(self, plan: Plan, processes: Processes, runner: StepRunner) -> None:
        self.begun: Stream | StageStream | None = None
        self._plan, self._processes, self._runner = plan, processes, runner
        self._source: LoaderThread | None = None  # of the last call
        self._open: Generator[Any] | None = None  # its results
        processes.put_off[plan.name] = self._submit_put_off

    @property
    def decisions(self) -> int:
        """How many decisions the queues have made, including those before a load."""
        if self.begun is not None:
            return self.begun.order.decisions
        return 0 if decides(self._plan) else StageOrder(self._plan, self._runner.next_step).decisions

    @property
    def batches_read(self) -> int:
        """The number of the loader's batches that the stream has taken, including those before a load."""
        if self.begun is not None:
            return (self._recovering or self.begun).batches_read
        return self._runner.next_step

    @property
    def queues(self) -> tuple[QueueState, ...]:
        """The current queues."""
        return tuple((self.begun or self._new()).order.queues)

    def results(
        self,
        loader: Iterable[Any],
        timeout: float,
        decisions: DecisionLog,
        seconds: Mapping[str, float | CallSeconds] | None,
    ) -> Iterator[Any]:
        """The results in order, as ``Running.stream`` yields them.

        Raises:
            WiringError: HF202 if ``seconds`` names a call that the plan does not have, or calls take real time;
                HF206 if the loader is none.
        """
        self._check_loader(loader)
        call_seconds = self._call_seconds({} if seconds is None else seconds)
        stream = self.begun or self._begin()
        if isinstance(stream, StageStream) and seconds is not None:
            stream.seconds.update(call_seconds)
        return self._results(loader, timeout, decisions)

    def forget(self) -> None:
        """Forget the work in progress, which belongs to states that no longer exist."""
        self._leave()
        self.begun = self._source = None
        if self._processes.recovery is not None:
            self._processes.recovery.streams.pop(self._plan.name, None)

    def wait_for_loader(self) -> None:
        """Have the stream hold the batch that its loader is reading; an error of the loader is left to the stream."""
        source, stream = self._source, self._recovering or self.begun
        if source is None or stream is None:
            return
        with self._interruptible(source):
            source.wait()
            if not source.has_batch:
                return
            batch = source.next()
            try:
                stream.read_ahead(batch)
            except Exception:
                source.give_back(batch)
                if self._processes.broken:
                    raise  # else no step can take the batch, which the stream reports

    def save(self, backend: Backend, folder: str) -> SavedStream | None:
        """Write the contents of the queues, as the stream does; None if it has none."""
        self.wait_for_loader()
        if self.begun is None:
            return None
        if self._recovering is not None:
            self._recovering.hand_over()
        saved = self.begun.save(backend, folder)
        return None if saved is None else replace(saved, values=held_values(self._plan))

    def load(self, backend: Backend, folder: str, saved: SavedStream) -> None:
        """Continue with the steps in progress of a checkpoint.

        Raises:
            CheckpointError: HF905 if they are of another plan, or of other queues; HF906 if a file is damaged.
        """
        with self._runner.breaking(self._runner.next_step):
            check_held_values(self._plan, saved)
            try:
                self._begin().load(backend, folder, saved)
            except SizeError as error:
                text = f"the state has rows of other sizes in the queues of '{self._plan.name}': {error.message}"
                raise CheckpointError("HF905", text) from None

    def loads(self, folder: str, manifest: Manifest) -> dict[str, Callable[[], None]]:
        """The function by which the stream of this plan goes back to a file, if it has steps in progress."""
        stream, recovering, saved = self.begun, self._recovering, manifest.stream
        if stream is None or recovering is None or saved is None:
            return {}
        return {self._plan.name: lambda: recovering.load(lambda: stream.load(self._runner.backend, folder, saved))}

    def _submit_put_off(self) -> None:
        if isinstance(self.begun, StageStream):
            self.begun.submit_put_off()

    def _check_loader(self, loader: Any) -> None:
        """Refuse what is no loader, such as a batch by itself, with its type."""
        is_iterable = any(hasattr(type(loader), method) for method in ("__iter__", "__getitem__"))  # not of a class
        if isinstance(loader, (Batch, Mapping, str)) or not is_iterable:
            text = f"'{self._plan.name}' streams from a loader, which yields the batches of one step after another"
            call = f"call it: stream({getattr(loader, '__name__', 'loader')}())"
            advice = call if callable(loader) else "for a single step, pass a list: stream([batch])"
            raise WiringError("HF206", f"{text}, got {type(loader).__name__}; {advice}")

    def _check_current(self, source: LoaderThread) -> None:
        """Refuse to continue a stream whose steps belong to a later one, or to states before a load."""
        if self._source is not source:
            text = f"this stream of '{self._plan.name}' is over: a later running.stream(...) has taken over its steps"
            raise HfError("HF821", f"{text}, or a running.load(...) has replaced them; iterate over a new stream alone")

    def _call_seconds(self, seconds: Mapping[str, float | CallSeconds]) -> dict[str, CallSeconds]:
        if seconds and isinstance(self._runner.backend, PollingBackend):
            text = f"seconds= of the stream: the calls of '{self._plan.name}' take the time that they take"
            raise WiringError("HF202", f"{text}; only the local backend has a virtual clock")
        return call_durations(self._plan, seconds, "seconds= of the stream")

    def _begin(self) -> Stream | StageStream:
        recovery = self._processes.recovery
        self.begun = stream = self._new()
        if recovery is not None:
            recovery.streams[self._plan.name] = RecoveringStream(stream, self._runner, recovery)
        return stream

    @property
    def _recovering(self) -> RecoveringStream | None:
        recovery = self._processes.recovery
        stream = recovery.streams.get(self._plan.name) if recovery is not None else None
        return stream if isinstance(stream, RecoveringStream) else None

    def _new(self) -> Stream | StageStream:
        return StageStream(self._runner) if decides(self._plan) else Stream(self._runner)

    def _results(self, loader: Iterable[Any], timeout: float, decisions: DecisionLog) -> Iterator[Any]:
        with self._processes.alone(f"a stream of '{self._plan.name}'"):
            self._leave()
            stream = self.begun or self._begin()
            decisions.leave_out(stream.order.decisions)
            source = self._source = LoaderThread(loader, timeout, lambda: str(stream.order), self._source)
            results = self._open = (self._recovering or stream).results(source, decisions)
        self._processes.loaders.append(source)
        try:
            while True:
                self._check_current(source)
                with self._processes.alone(f"a stream of '{self._plan.name}'"):
                    self._processes.submit_put_off(self._plan.name)
                    with self._interruptible(source):
                        result = next(results, END)
                if result is END:
                    return
                yield result
                self._processes.usable_backend(self._plan.name)
        finally:
            results.close()
            source.close()
            self._processes.loaders.remove(source)
            decisions.close()

    @contextmanager
    def _interruptible(self, source: LoaderThread) -> Iterator[None]:
        """Within this context, an interrupt breaks the run, unless the stream has all that the loader has delivered."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception) or source.sleeps:
                raise
            if self._recovering is not None and self._recovering.reads_again():
                raise
            with self._runner.breaking(self._runner.next_step):
                raise

    def _leave(self) -> None:
        """End the loop of an earlier call, which the caller may still hold; its steps stay in progress."""
        if self._open is not None:
            self._open.close()
            self._open = None
