"""The workers of a rank's process: one per role, their construction, and their states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from hfdsl.deploy.deployment import Deployment, Placement
from hfdsl.errors import HfError
from hfdsl.plan.plan import Step
from hfdsl.protocols.call import Call, seeded
from hfdsl.protocols.collectives import Collectives
from hfdsl.protocols.state import only_loads, only_reads
from hfdsl.protocols.worker import RankContext, current_rank
from hfdsl.runtime.rank.offloader import Offloader
from hfdsl.runtime.rank.role_errors import role_error
from hfdsl.runtime.saving.state_files import (
    FlatState,
    StateWriter,
    keeps_state,
    load_worker,
    unflatten_state,
    worker_state,
)
from hfdsl.runtime.verification.verified_syncs import states

REMEMBERED_SAVES = 16
"""The number of earlier save folders whose files a process remembers."""


def construction_call(role: str, roles: Iterable[str], seed: int) -> Call:
    """The call from which the random streams of a role's constructor derive.

    It is the same on every rank, so the replicas of a model start out equal. A role that wants them to differ can use
    its rank.
    """
    return Call(seed, 0, -1 - sorted(roles).index(role), 0)


def build_worker(placement: Placement[Any], start: Call, context: RankContext) -> Any:
    """Build the worker of a role, for a rank."""
    token = current_rank.set(context)
    try:
        with seeded(start):
            return placement.role(*placement.args, **placement.kwargs)
    finally:
        current_rank.reset(token)


class RoleWorkers:
    """The worker of each role in one process, by the role's name.

    Its methods take one role at a time: each is a call with a deadline of its own, and may wait for peers.
    """

    def __init__(
        self, deployment: Deployment, context: RankContext, seed: int, collectives: Collectives | None
    ) -> None:
        self.offloader = Offloader(context.rank)
        self._deployment, self._context, self._seed, self._collectives = deployment, context, seed, collectives
        self._workers: dict[str, Any] = {}
        self._keeps_state: dict[str, bool] = {}
        self._taken: dict[str, FlatState | None] = {}
        self._failures: dict[str, HfError] = {}  # of roles whose state could not be taken
        self._writers: dict[str, StateWriter] = {}

    def __getitem__(self, role: str) -> Any:
        return self._workers[role]

    def construct(self, role: str) -> bool:
        """Build the worker of a role; return whether it keeps a state.

        Raises:
            RoleError: HF806 if its constructor raises.
        """
        placement = self._deployment[role]
        offloads = self.offloader.moves(role)
        context = replace(self._context, mesh=placement.mesh, offloads=offloads, collectives=self._collectives)
        try:
            worker = build_worker(placement, construction_call(role, self._deployment, self._seed), context)
        except BaseException as error:  # noqa: BLE001  # the user's code may raise anything
            constructor = f"{role}.__init__ ({placement.role.__name__})"
            raise role_error(constructor, self._context.rank, None, error) from None
        self._workers[role] = worker
        self.offloader.built(role, worker)  # before the next worker needs the memory
        self._keeps_state[role] = keeps_state(worker)
        return self._keeps_state[role]

    def may_change(self, role: str, method: str, first: bool) -> bool:
        """Whether a method may change what the role's calls in this step read if the step is repeated.

        A method that only reads does not. Nor does a load that is the ``first`` call of the role: it would come first
        again.
        """
        body = getattr(self._workers[role], method)
        return self._keeps_state[role] and not only_reads(body) and not (first and only_loads(body))

    def take_state(self, role: str, copies: bool) -> None:
        """Keep a worker's state for ``save`` or ``copy_states``; with ``copies`` it does not change while steps run.

        Raises:
            RoleError: HF806 if ``state()`` raises.
            CheckpointError: HF908 if a role that trains has no state, or one that cannot be saved.
        """
        self._failures.pop(role, None)
        try:
            self._taken[role] = self.call(role, "state", worker_state, copies)
        except HfError as error:
            self._failures[role] = error
            raise

    def copy_states(self) -> dict[str, FlatState]:
        """The kept states; their tensors may be the workers' own, so copy them before the next call.

        Raises:
            HfError: the error of ``take_state``, since a copy without the state of a role would count as complete.
        """
        (states, self._taken), (failures, self._failures) = (self._taken, {}), (self._failures, {})
        for failure in failures.values():
            raise failure
        return {role: state for role, state in states.items() if state is not None}

    def save(self, folder: str) -> None:
        """Begin to write the kept states into a folder."""
        self._writers = dict(list(self._writers.items())[-REMEMBERED_SAVES:])
        self._writers[folder] = StateWriter(folder, self.copy_states())

    def saved(self, folder: str, wait: float) -> dict[str, dict[str, str]] | None:
        """The file of each role's state in a folder; None for one that is not written within ``wait`` seconds.

        Raises:
            CheckpointError: HF906 if a file cannot be written.
        """
        return self._writers[folder].files(wait)

    def load(self, role: str, folder: str, file: Mapping[str, str] | None) -> None:
        """Load a worker's state from a file.

        Raises:
            RoleError: HF806 if ``load_state()`` raises.
            CheckpointError: HF905 if the state is missing, HF906 if the file is damaged.
        """
        self.call(role, "load_state", load_worker, folder, file)

    def restore(self, role: str, state: FlatState) -> None:
        """Load a copy of a worker's state; HF806 if ``load_state()`` raises."""
        self.call(role, "load_state", _load_state, state)

    def held_weights(self, step: Step) -> list[Any] | None:
        """The held weights of the states that a step exports; None if they are not copied, or not known."""
        role, copied = step.role or "", step.exports is not None and step.exports.copied
        if not copied or not hasattr(self._workers[role], "held_weights"):
            return None
        return [
            self.call(role, "held_weights", lambda _, worker, state: worker.held_weights(state), state)
            for state in states(step, "exports")
        ]

    def call(self, role: str, method: str, function: Callable[..., Any], *args: Any) -> Any:
        """Return ``function(role, worker, *args)``; if the role has ``method``, all of its parts are loaded."""
        worker = self._workers[role]
        try:
            with self.offloader.all_of(role) if hasattr(worker, method) else nullcontext():
                return function(role, worker, *args)
        except HfError:
            raise
        except BaseException as error:  # noqa: BLE001  # the user's code may raise anything
            raise role_error(f"{role}.{method} ({type(worker).__name__})", self._context.rank, None, error) from None


def _load_state(_: str, worker: Any, state: FlatState) -> None:
    worker.load_state(unflatten_state(state))
