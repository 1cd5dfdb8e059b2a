"""Recovery of a stream: each result is a step, which is repeated through the decisions that led to it.

A worked example, a queue of lag 1 and a copy after every second result; the engine is lost while result 3 is made::

    result   batches read   decisions since the result before      copy
    0        0, 1           dispatch 0, dispatch 1, take 0
    1        2              dispatch 2, take 1                     states, and the rows of dispatch 2
    2        3              dispatch 3, take 2
    (lost)   4              dispatch 4
             the states of the copy, the rows of dispatch 2
    2 again  3              dispatch 3, take 2                     not given out again
             4              dispatch 4
    3                       take 3

Why it is right. *The same values*: what is dispatched and taken under which version, and when in the order of calls, is
repeated from the journal (``LoggedWorld``), and values follow from that (``stage_stream``, ``streaming``). *A copy is
whole*: what was in progress is a payload that a call submitted before the copy sends, or lies in a process that copies
it with its states; processes run calls in the order of submission, so once the copies exist all of it does. *Nothing is
lost*: batches that were read since the copy are in the journal, by number, and are read again before the loader is
asked. One that was read for a dispatch which the loss, or an interrupt (``reads_again``), cut short may wait beyond the
next result; a file has it, too (``hand_over``). *None is read twice*: a stream counts the batches that it has, and the
next one that it reads has that number, whatever else the journal contains, such as one that a file already has.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from hfdsl.runtime.decisions import Decision
from hfdsl.runtime.loading import END, BatchSource
from hfdsl.runtime.queues.decision_log import DecisionLog
from hfdsl.runtime.queues.stage_stream import StageStream
from hfdsl.runtime.queues.streaming import Stream
from hfdsl.runtime.recovery.steps import Recovery
from hfdsl.runtime.runner import StepRunner


class LoaderRaisedError(BaseException):
    """An error of a loader, passed through the recovery, since it is no loss of processes."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


@dataclass(slots=True)
class StreamEntry:
    """The batches read, by number, and the decisions made for one result."""

    batches: dict[int, Any] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)


@dataclass(slots=True)
class JournaledSource:
    """A loader whose batches are kept until their result is committed; batches to read ``again`` come first.

    ``count`` gives the number of batches that the stream has.
    """

    entry: StreamEntry
    count: Callable[[], int]
    again: dict[int, Any] = field(default_factory=dict)
    source: BatchSource | None = None

    def ask(self) -> None:
        """Have the loader read the next batch, unless it is to be read again."""
        if self.source is not None and self.count() not in self.again:
            self.source.ask()

    def forget_read(self) -> None:
        """Forget the batches to read again that the stream has."""
        number = self.count()
        self.again = {later: batch for later, batch in self.again.items() if later >= number}

    @property
    def pending(self) -> bool:
        """Whether the next batch was asked for and has not come."""
        return self.source is not None and self.count() not in self.again and self.source.pending

    def wait(self) -> None:
        """Wait for the batch that was asked for."""
        if self.source is not None:
            self.source.wait()

    def next(self) -> Any:
        """The next batch; ``END`` at the end of a journal that is being repeated."""
        number = self.count()
        if number in self.again:
            return self.again[number]
        if self.source is None:
            return END
        try:
            batch = self.source.next()
        except BaseException as error:
            raise LoaderRaisedError(error) from error
        if batch is not END:
            self.entry.batches[number] = batch
        return batch


class RecoveringStream:
    """A stream that continues after a loss of processes; a ``Recovery`` sees it as a ``RecoverableStream``."""

    def __init__(self, stream: Stream | StageStream, runner: StepRunner, recovery: Recovery) -> None:
        self._stream, self._runner, self._recovery = stream, runner, recovery
        self._entry = StreamEntry()
        self._batches = JournaledSource(self._entry, lambda: stream.batches_read)
        self._log: DecisionLog | None = None
        self._live: Generator[Any] | None = None
        self._early: list[Any] = []  # the result to which the decisions since the last one led, when repeated

    def results(self, source: BatchSource, log: DecisionLog) -> Generator[Any]:
        """The results in order, each once.

        Raises:
            LostProcessError: HF840 if a result lost processes more often than the retries allow.
            HfError: as the stream; whatever the loader raises.
        """
        self._log, log.journal = log, self._entry.decisions
        try:
            while True:
                self._batches.source = source
                try:
                    result = self._recovery.run(self._runner.plan.name, self._next)
                except LoaderRaisedError as raised:
                    raise raised.error from None
                if result is END:
                    return
                journal = StreamEntry(dict(self._entry.batches), list(self._entry.decisions))
                self._entry.batches.clear()
                self._entry.decisions.clear()
                self._batches.forget_read()
                self._recovery.committed(self._runner.plan.name, self._repeat, journal)
                yield result
        finally:
            self._batches.source = None
            self._leave()

    def _next(self) -> Any:
        if self._early:
            return self._early.pop()
        if self._log is None:
            return END
        if self._live is None:
            self._live = self._stream.results(self._batches, self._log)
        return next(self._live, END)

    def _leave(self) -> None:
        """End this call of ``results``; the stream continues in another one."""
        live, self._live = self._live, None
        if live is not None:
            live.close()

    @property
    def batches_read(self) -> int:
        """The number of the loader's batches that the stream has, or is to read again."""
        number = self._stream.batches_read
        while number in self._batches.again:
            number += 1
        return number

    def reads_again(self) -> bool:
        """Whether an interrupt came before the stream had the batch that was read last, which it then reads again."""
        number = self._stream.batches_read
        if number in self._batches.again or number not in self._entry.batches:
            return False
        self._batches.again[number] = self._entry.batches[number]
        return True

    def hand_over(self) -> None:
        """Have the stream hold the batches that are to be read again, for a file; the loader does not have them."""
        while (number := self._stream.batches_read) in self._batches.again:
            self._stream.read_ahead(self._batches.again[number])

    def read_ahead(self, batch: Any) -> None:
        """Hold the loader's next batch, as the stream does."""
        self.hand_over()
        number = self._stream.batches_read
        self._stream.read_ahead(batch)
        self._entry.batches[number] = batch

    # -- what a recovery sees ------------------------------------------------------------------------------------------

    def copy(self) -> Callable[[Any], None]:
        """Remember the steps in progress; return the function that goes back to them."""
        go_back, again = self._stream.copy(self._runner.backend), dict(self._batches.again)

        def restore(states: Any) -> None:
            self._begin_again(lambda: go_back(states), again)

        return restore

    def reset(self) -> None:
        """Go back to a time without steps in progress."""
        self._begin_again(self._stream.reset, {})

    def load(self, load: Callable[[], None]) -> None:
        """Go back to the contents of a file."""

        def restore() -> None:
            self._stream.reset()
            load()

        self._begin_again(restore, {})

    def _begin_again(self, restore: Callable[[], None], again: Mapping[int, Any]) -> None:
        self._leave()
        self._early.clear()
        self._batches.again = dict(again)
        self._runner.recovered()
        with self._runner.breaking(self._runner.next_step):
            restore()

    def repeat_rest(self) -> None:
        """Repeat the decisions made since the last result, which may lead to the next one."""
        self._batches.again |= self._entry.batches
        self._early = self._repeated(self._entry.decisions) if self._entry.decisions else []

    def _repeat(self, journal: StreamEntry) -> None:
        """Repeat the decisions that led to a yielded result."""
        self._batches.again |= journal.batches
        self._repeated(journal.decisions)

    def _repeated(self, decisions: Sequence[Decision]) -> list[Any]:
        """The result of decisions, if they lead to one; without queues there is nothing to decide, and it is next."""
        has_queues = bool(self._runner.plan.split.queues)
        log = DecisionLog.repeating(decisions) if has_queues else DecisionLog(None, None)
        source, self._batches.source = self._batches.source, None
        results = self._stream.results(self._batches, log)
        try:
            with self._runner.breaking(self._runner.next_step):
                return list(islice(results, 1))
        finally:
            results.close()
            self._batches.source = source
