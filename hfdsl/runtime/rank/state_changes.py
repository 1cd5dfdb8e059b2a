"""State changes: the last step of a process that may have changed what repeating it would read.

A worked example, with the roles of one process in a step that is lost::

    reward.score       reads               no change: the step can be repeated as it is
    sampler.load       loads, first call   no change: a repetition begins with the same load
    sampler.generate   reads               no change
    actor.update       writes              a change: the states have to be restored first
"""

from __future__ import annotations

from hfdsl.runtime.rank.role_workers import RoleWorkers


class StateChanges:
    """The last step with a call that may have changed a state here; a step is the name of its plan, and a number."""

    def __init__(self, workers: RoleWorkers) -> None:
        self._workers = workers
        self._changed_in: tuple[str, int] | None = None
        self._called_in: dict[str, tuple[str, int]] = {}  # by role, the last step with a call of it

    def note(self, role: str, method: str, step: tuple[str, int]) -> None:
        """Note a call before it begins."""
        first = self._called_in.get(role) != step
        self._called_in[role] = step
        if self._workers.may_change(role, method, first):
            self._changed_in = step

    def may_be_of(self, step: tuple[str, int]) -> bool:
        """Whether a step may have changed a state."""
        return self._changed_in == step

    def forget(self) -> None:
        """Forget the calls, before their step is repeated."""
        self._changed_in = None
        self._called_in.clear()
