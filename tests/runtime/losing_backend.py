"""A local backend that loses process groups between calls, and replaces them: what Ray does, without its seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from hfdsl.errors import LostProcessError
from hfdsl.plan.plan import Plan
from hfdsl.runtime.backend import Submission, do_nothing
from hfdsl.runtime.local import LocalBackend

LOST: Any = object()
"""The handle of what is lost."""


@dataclass
class Losses:
    """At which submissions of a run, counted from its launch, which process group is lost."""

    at: Mapping[int, int]
    submissions: int = 0
    lost: list[str] = field(default_factory=list)
    last: int = -1
    """The number of the submission at which the last one was lost."""
    at_save: str | None = None
    """The process group to lose at the next save."""

    @property
    def unnoticed(self) -> bool:
        """Whether the last loss came with the last submission: a copy after the last result, which nobody waits for."""
        return self.submissions == self.last + 1


class LosingBackend(LocalBackend):
    """Simulates processes, some of which are lost."""

    def __init__(self, plan: Plan, seed: int, losses: Losses) -> None:
        super().__init__(plan, seed)
        self._plans, self._seed, self._losses = [plan], seed, losses
        self._gone: str | None = None
        self.forgotten: list[set[str]] = []

    def add(self, plan: Plan) -> None:
        """Another plan, which a process that takes the place of a lost one needs, too."""
        super().add(plan)
        if self._executors:
            self._plans.append(plan)

    def run(self, submission: Submission) -> list[Any]:
        """As ever, unless a group is lost; then the call may have run or not."""
        number = self._losses.submissions
        if number % 2 and self._gone is None and number in self._losses.at:
            super().run(submission)
        self._submitted()
        return super().run(submission)

    def _submitted(self) -> None:
        number, self._losses.submissions = self._losses.submissions, self._losses.submissions + 1
        names = sorted(self._executors)
        if number in self._losses.at and self._gone is None:
            self._losses.last = number
            self._lose(names[self._losses.at[number] % len(names)])
        if self._gone is not None:
            raise LostProcessError("HF806", f"'{self._gone}' is lost")

    def _lose(self, group: str) -> None:
        self._gone = group
        self._losses.lost.append(group)
        for executor in self._executors[group]:
            executor.__dict__.clear()  # whatever asks it for something fails

    def save(self, folder: str, background: bool) -> None:
        """As ever, unless a group is lost."""
        group, self._losses.at_save = self._losses.at_save, None
        if group is not None:
            self._lose(group)
            raise LostProcessError("HF806", f"'{group}' is lost")
        super().save(folder, background)

    def lost_ranks(self, wait: float) -> Mapping[str, Sequence[int]]:
        """What is lost."""
        return {} if self._gone is None else {self._gone: [0]}

    def copy_states(self, peers: bool) -> Any:
        """Copies by group and rank, of states by role and of queues by plan."""
        self._submitted()
        copies = {}
        for group, executors in self._executors.items():
            for executor in executors:
                for role in self._roles[group]:
                    executor.workers.take_state(role, True)
            copies[group] = [
                deepcopy((executor.workers.copy_states(), executor.stores.copies())) for executor in executors
            ]
        return copies

    def copied(self, copies: Any, wait: float) -> bool:
        """At once."""
        return True

    def rebuild(
        self, lost: Mapping[str, Sequence[int]], *, step: tuple[str, int] | None, everything: bool, wait: float
    ) -> Collection[str] | None:
        """New processes for what is lost."""
        self.driver.forget_step()
        fresh = LocalBackend(self._plans[0], self._seed)
        for plan in self._plans[1:]:
            fresh.add(plan)
        others = self._executors.keys() - lost.keys()
        unchanged = step is not None and not any(
            any(executor.workers._keeps_state.values()) for group in lost for executor in fresh._executors[group]
        )
        if step is not None:
            unchanged &= not any(executor.changed_in(*step) for name in others for executor in self._executors[name])
        for group in self._executors:
            if group in lost or (everything and not unchanged):
                self._executors[group] = fresh._executors[group]
                self._turns[group], self._collectives[group] = fresh._turns[group], fresh._collectives[group]
            else:
                for executor in self._executors[group]:
                    executor.forget_step(values=not unchanged)
        self._gone = None
        return others if unchanged else None

    def forget(self, groups: Collection[str]) -> None:
        """At once."""
        self.forgotten.append(set(groups))
        for group in groups:
            for executor in self._executors[group]:
                executor.forget_step()

    def succeeded(self, acknowledgments: Sequence[Any]) -> list[bool]:
        """All that were not lost."""
        return [acknowledgment is not LOST for acknowledgment in acknowledgments]

    def restore(self, copies: Any) -> None:
        """Load the copies of states."""
        for group, executors in self._executors.items():
            for executor, (states, _) in zip(executors, copies[group], strict=True):
                executor.forget_step()
                for role, state in states.items():
                    executor.workers.restore(role, deepcopy(state))

    def restore_queues(self, plan: str, copies: Any, pending: Mapping[int, Mapping[tuple[str, int], Any]]) -> None:
        """Put what lay in queues back."""
        for group, executors in self._executors.items():
            for rank, (executor, (_, queues)) in enumerate(zip(executors, copies[group], strict=True)):
                payloads = {step: self.get(by_rank.get((group, rank), ())) for step, by_rank in pending.items()}
                executor.stores.restore(plan, deepcopy(queues.get(plan)), payloads)


class LateLossBackend(LosingBackend):
    """As a cluster: a loss is found when the driver waits; until then all calls run that do not read what is lost."""

    def __init__(self, plan: Plan, seed: int, losses: Losses) -> None:
        super().__init__(plan, seed, losses)
        self.runs: Counter[tuple[int, int]] = Counter()  # by step and segment
        self.lost_groups = losses.lost

    @property
    def submissions(self) -> int:
        """How many there were so far."""
        return self._losses.submissions

    def run(self, submission: Submission) -> list[Any]:
        """As ever, for what is not lost."""
        with suppress(LostProcessError):
            self._submitted()
        segment, read = submission.segment, [*submission.payloads, *submission.after]
        if segment.group == self._gone or any(handle is LOST for handles in read for handle in handles):
            return [(LOST, [LOST] * len(sends)) for sends in submission.sends]
        self.runs[submission.call.step, segment.number] += 1
        return LocalBackend.run(self, submission)

    def done(
        self, acknowledgments: Sequence[Any], wanted: Sequence[Any] = (), meanwhile: Callable[[], None] = do_nothing
    ) -> list[Any]:
        """The results; not if one is lost."""
        return super().done(self._there(acknowledgments), wanted, meanwhile)

    def get(self, handles: Sequence[Any]) -> list[Any]:
        """The contents; not if one is lost."""
        return super().get(self._there(handles))

    def _there(self, handles: Sequence[Any]) -> Sequence[Any]:
        if any(handle is LOST for handle in handles):
            raise LostProcessError("HF806", f"'{self._gone}' is lost")
        return handles
