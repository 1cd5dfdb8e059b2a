"""Deaths of ranks at bodies that a test draws: on Ray a process is killed, within this process the call raises.

A worked example: rank 1 of two dies in step 2, as a body has ended (``w`` is the state that an update changes)::

    update of step 1    rank 0: w0 -> w1    rank 1: w0 -> w1, and replies
    update of step 2    rank 0: w1 -> w2    rank 1: w1 -> w2, killed before it replies

A run that repeats the step with w2 on rank 0 trains it twice; one that does not repeat it has lost what rank 1 was to
return. "begins" ends the process before its body, so peers wait for it in their collectives. Which bodies have run
before a death depends on no time, since a process runs its calls in the order of their submission.
"""

from __future__ import annotations

import os
import platform
import re
import signal
from dataclasses import dataclass
from random import Random
from typing import get_args

from hfdsl.errors import LostProcessError
from hfdsl.plan.plan import Plan
from hfdsl.runtime.backend import HookedBackend
from hfdsl.runtime.rank.body_hooks import BodyMoment


@dataclass(frozen=True, slots=True)
class RankDeath:
    """The end of a rank of a process group: at its first body of this step or a later one.

    >>> print(RankDeath("engine", 1, 3, "begins"))
    rank 1 of 'engine' killed as a body of step 3 begins
    """

    group: str
    rank: int
    step: int
    moment: BodyMoment

    def __str__(self) -> str:
        moment = "begins" if self.moment == "begins" else "has ended"
        return f"rank {self.rank} of '{self.group}' killed as a body of step {self.step} {moment}"

    @property
    def loss(self) -> str:
        """A pattern of the warnings of a run that continues after it."""
        return rf"HF840: step \d+ of '.*' lost rank {self.rank} of '{re.escape(self.group)}'"

    @classmethod
    def drawn(cls, plan: Plan, steps: int, random: Random) -> RankDeath:
        """A death in one of the first steps of a plan."""
        group = random.choice(plan.groups)
        rank = random.randrange(sum(group.pool.processes))
        return cls(group.name, rank, random.randrange(steps), random.choice(get_args(BodyMoment)))

    def await_in(self, backend: HookedBackend) -> None:
        """Have the rank die; a process that takes its place lives."""
        backend.at_bodies(self.group, self.rank, self.moment, _End(self, _this_process()))


@dataclass(frozen=True, slots=True)
class _End:
    """The hook of a rank that dies: it ends its process, unless that is the one of the test."""

    death: RankDeath
    of_test: tuple[str, int]

    def __call__(self, plan: str, step: int, label: str) -> None:
        if step < self.death.step:
            return
        if _this_process() != self.of_test:
            os.kill(os.getpid(), signal.SIGKILL)
        raise LostProcessError("HF806", f"'{label}' of '{plan}' in step {step}: {self.death}")


def _this_process() -> tuple[str, int]:
    return platform.node(), os.getpid()
