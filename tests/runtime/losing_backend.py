"""A local backend that loses process groups between calls, and replaces them: what Ray does, without its seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from hfdsl.errors import LostProcessError
from hfdsl.plan.plan import Plan
from hfdsl.runtime.backend import Submission
from hfdsl.runtime.local import LocalBackend


@dataclass
class Losses:
    """At which submissions of a run, counted from its launch, which process group is lost."""

    at: Mapping[int, int]
    submissions: int = 0
    lost: list[str] = field(default_factory=list)


class LosingBackend(LocalBackend):
    """Simulates processes, some of which are lost."""

    def __init__(self, plan: Plan, seed: int, losses: Losses) -> None:
        super().__init__(plan, seed)
        self._plans, self._seed, self._losses = [plan], seed, losses
        self._gone: str | None = None

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
            self._gone = names[self._losses.at[number] % len(names)]
            self._losses.lost.append(self._gone)
            for executor in self._executors[self._gone]:
                executor.__dict__.clear()  # whatever asks it for something fails
        if self._gone is not None:
            raise LostProcessError("HF806", f"'{self._gone}' is lost")

    def lost(self, wait: float) -> Mapping[str, Sequence[int]]:
        """What is lost."""
        return {} if self._gone is None else {self._gone: [0]}

    def copy_states(self) -> Any:
        """Copies by group and rank, of states by role and of queues by plan."""
        self._submitted()
        copies = {}
        for group, executors in self._executors.items():
            for executor in executors:
                for role in self._roles[group]:
                    executor.workers.take_state(role, True)
            copies[group] = [
                deepcopy((executor.workers.copy_states(), executor.copy_queues())) for executor in executors
            ]
        return copies

    def copied(self, copies: Any, wait: float) -> bool:
        """At once."""
        return True

    def rebuild(
        self, lost: Mapping[str, Sequence[int]], *, step: tuple[str, int] | None, everything: bool, wait: float
    ) -> bool:
        """New processes for what is lost."""
        self.driver.forget_step()
        fresh = LocalBackend(self._plans[0], self._seed)
        for plan in self._plans[1:]:
            fresh.add(plan)
        for group in self._executors:
            if group in lost or everything:
                self._executors[group] = fresh._executors[group]
                self._turns[group], self._collectives[group] = fresh._turns[group], fresh._collectives[group]
            else:
                for executor in self._executors[group]:
                    executor.forget_step()
        self._gone = None
        return False

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
                executor.restore_queues(plan, deepcopy(queues.get(plan)), payloads)
