"""The stages at the two ends of each queue of a program.

A worked example. Stage 3 is the trainer, which makes the results. Stage 1 judges what stage 0 has generated, and stage
2 has rows of its own::

    QueueLinks((QueueLink(0, 1), QueueLink(1, TRAINER), QueueLink(2, TRAINER)))

    prompts -> stage 0 -> queue 0 -> stage 1 -> queue 1 -> stage 3
    prompts -> stage 2 -> queue 2 ------------------------> stage 3
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

TRAINER: Final = -1
"""The number of all stages that make results, which step together."""


class QueueLink(NamedTuple):
    """The stages at the ends of a queue; its rows may have the version under which an earlier stage made them."""

    feeds: int = 0
    reads: int = TRAINER
    keeps_versions: bool = False


class QueueLinks:
    """The links of all queues.

    ``sources`` are the stages that dispatch prompts; ``between`` are the stages with queues both in front and behind.
    """

    def __init__(self, links: Iterable[QueueLink] = (QueueLink(),)) -> None:
        self.of = tuple(links)
        self._fed: dict[int, list[int]] = {}
        self._read: dict[int, list[int]] = {}
        for index, link in enumerate(self.of):
            self._fed.setdefault(link.feeds, []).append(index)
            self._read.setdefault(link.reads, []).append(index)
        self.sources = tuple(stage for stage in sorted(self._fed) if stage not in self._read)
        self.between = tuple(stage for stage in sorted(self._fed) if stage in self._read)
        self._behind = {
            stage: tuple(index for index in range(len(self.of)) if self._source(index) == stage)
            for stage in self.sources
        }

    def fed_by(self, stage: int) -> list[int]:
        """The queues that a stage feeds."""
        return self._fed[stage]

    def read_by(self, stage: int) -> list[int]:
        """The queues that a stage reads."""
        return self._read.get(stage, [])

    def read_with(self, queue: int) -> list[int]:
        """The queues whose batches are taken at the same time, including this one."""
        return self._read[self.of[queue].reads]

    def behind(self, source: int) -> tuple[int, ...]:
        """The queues through which the rows of a queue's prompts come."""
        return self._behind[source]

    def paths(self, stage: int) -> tuple[tuple[int, ...], ...]:
        """The queues in a row from a stage to the trainer, for each queue of the trainer that its rows reach."""
        paths = list[tuple[int, ...]]()
        for index in self.fed_by(stage):
            reads = self.of[index].reads
            paths += [(index,)] if reads == TRAINER else [(index, *behind) for behind in self.paths(reads)]
        return tuple(paths)

    def _source(self, queue: int) -> int:
        stage = self.of[queue].feeds
        return self._source(self._read[stage][0]) if stage in self._read else stage
