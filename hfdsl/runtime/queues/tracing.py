"""Dynamic queues, in its trace: the number of their groups, and the decisions that lose some.

Times are those at which the driver decides. It sees that a group has ended when it next decides something, so a counter
of ready groups may rise later than the group ends, and in a run that repeats a log only when the log takes the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import time

from hfdsl.plan.timeline import QueueLoss, QueueSample
from hfdsl.runtime.decisions import Decision
from hfdsl.runtime.queues.loop import QueuedId, QueueWorld
from hfdsl.runtime.queues.stage_plans import QueueStages
from hfdsl.runtime.schedule import QueueBatch, QueueSpec, QueueState


@dataclass(slots=True)
class TimedWorld:
    """A world that has ``noted`` when a decision is made: before its calls run, which takes long within one process."""

    world: QueueWorld
    noted: float = field(default_factory=time)

    def accepts(self, stage: int) -> bool:
        """Whether the wrapped world accepts a dispatch; late groups are dropped right after it."""
        self.noted = time()
        return self.world.accepts(stage)

    def dispatch(
        self, stage: int, numbers: Sequence[int], prompts: Sequence[int], version: int, batch: QueueBatch | None
    ) -> None:
        """Begin groups as the wrapped world does; the loader may have taken long to deliver their prompts."""
        self.noted = time()
        self.world.dispatch(stage, numbers, prompts, version, batch)

    def idle(self) -> bool:
        """Whether the wrapped world is idle; late groups are dropped, and a batch is taken, right after it."""
        self.noted = time()
        return self.world.idle()

    def train(self, batches: Sequence[QueueBatch]) -> None:
        """Begin an update as the wrapped world does."""
        self.world.train(batches)

    def ended(self) -> Sequence[QueuedId] | None:
        """Wait as the wrapped world does."""
        groups = self.world.ended()
        self.noted = time()
        return groups


def queue_samples(
    plan: str, stages: QueueStages, queues: Sequence[QueueState], decisions: Sequence[Decision], time: float
) -> Iterator[QueueSample]:
    """The groups in each queue after decisions that were made at a ``time`` in seconds, and the losses among them."""
    for staged, link, queue in zip(stages.queues, stages.links.of, queues, strict=True):
        statuses = [group.status for group in queue.groups.values()]
        yield QueueSample(
            plan=plan,
            queue=queue.spec.name,
            stages=(link.feeds, staged.reads),
            time=time,
            running=statuses.count("running"),
            ready=statuses.count("ready"),
            losses=tuple(_losses(queue.spec, decisions)),
        )


def _losses(spec: QueueSpec, decisions: Sequence[Decision]) -> Iterator[QueueLoss]:
    for decision in (decision for decision in decisions if decision.queue == spec.name):
        if decision.kind == "drop":
            again = spec.late == "refill"
            yield QueueLoss("refill" if again else "drop", decision.version, len(decision.groups))
        elif decision.kind == "lose":
            yield QueueLoss("lose", decision.version, len(decision.groups))
        elif decision.masked:
            yield QueueLoss("mask", decision.version, len(decision.masked))
