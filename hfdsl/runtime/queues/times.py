"""The interface to the times at which groups and updates end: as processes report, or on a virtual clock.

Both follow one rule (docs/queues.md): a stage dispatches again once some rank has fewer than ``concurrent_calls``
unfinished generating calls (``QueueStages.generating``), including calls that wait for a filter of prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from hfdsl.runtime.queues.dispatched import Dispatched
from hfdsl.runtime.queues.loop import QueuedId
from hfdsl.runtime.queues.stage_run import StageRun


class QueueTime(Protocol):
    """Determines when submitted work ends."""

    def accepts(self, stage: int) -> bool:
        """Whether a process may generate for another dispatch of a stage."""
        ...

    def filtered(self) -> bool:
        """Whether the filters of all dispatches have run."""
        ...

    def dispatched(self, stage: int, dispatches: Mapping[int, Dispatched]) -> None:
        """Note that the calls of a stage's step were submitted, which puts groups into these queues."""

    def trained(self, number: int, steps: Mapping[int, StageRun]) -> None:
        """Note that the calls of an update were submitted, by stage."""

    def idle(self) -> bool:
        """Whether no update is in progress."""
        ...

    def ended(self, full: Collection[int], happened: Callable[[], bool] | None = None) -> Sequence[QueuedId] | None:
        """Wait until a group or an update ends, and return the groups; None if nothing is in progress.

        Stages that are ``full`` cannot begin another dispatch before groups have left their queues. If the backend can
        wake up for it, the wait also ends once something else has ``happened``.
        """
        ...

    def submitted(self, step: StageRun) -> None:
        """Note that more calls of an unrecorded step may have been submitted."""

    def has_ended(self, step: StageRun) -> bool:
        """Whether all calls of an unrecorded step have been seen to end."""
        ...

    def recorded(self, step: StageRun) -> None:
        """Note that the results of a step's calls are not read again."""
