"""Bodies on a rank: the function that runs a step there, and what it finds while it runs.

Usually the function is the method of the rank's worker. A step that exports a state in parts takes what the worker
holds instead, one that loads a state may receive it while it runs, and a recorded step writes down what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hfdsl.deploy.deployment import Deployment
from hfdsl.plan.plan import Step
from hfdsl.protocols.call import Call, in_call, seed_streams, seeded
from hfdsl.protocols.collectives import Collectives, without_peers
from hfdsl.runtime.rank.role_workers import RoleWorkers
from hfdsl.runtime.saving.recording import Recorder
from hfdsl.runtime.verification.rank_digests import RankDigests
from hfdsl.runtime.weights.syncs import loading

if TYPE_CHECKING:
    from hfdsl.runtime.weights.exchange import ArrivingWeights


@dataclass(slots=True)
class StepBodies:
    """The bodies of one rank; with ``own_process`` no other rank draws random numbers in this process."""

    rank: int
    deployment: Deployment
    workers: RoleWorkers
    collectives: Collectives | None
    digests: RankDigests
    own_process: bool
    recorder: Recorder | None = None

    def function(
        self, step: Step, current: Call, arguments: dict[str, Any]
    ) -> tuple[Callable[..., Any], dict[str, Any], ArrivingWeights | None]:
        """The function that runs a step, its arguments, and the weights among them to digest as they arrive."""
        if step.role is None:
            return self._recorded(step, current, step.signature.body), arguments, None
        worker = self.workers[step.role]
        body = self._recorded(step, current, getattr(worker, step.signature.name))
        if step.parts and hasattr(worker, "held_weights"):
            body = partial(worker.held_weights, step.parts[0].state)  # the method returns whole ones
        if step.sync is None:
            return body, arguments, None
        arriving = self.digests.of_arriving(step, arguments)
        body, arguments = loading(step, worker, body, arguments, in_place=self.recorder is None)
        return body, arguments, arriving

    def _recorded(self, step: Step, current: Call, body: Callable[..., Any]) -> Callable[..., Any]:
        return body if self.recorder is None else self.recorder.around(step.label, current, body)

    @contextmanager
    def calling(self, step: Step, current: Call, *, beside_others: bool) -> Iterator[None]:
        """Within this context, a body has its call, its random streams, and only the peers of its step."""
        peers: AbstractContextManager[None] = nullcontext()
        if self.collectives and step.role and len(step.ranks) < self.deployment[step.role].mesh.world_size:
            peers = without_peers((self.collectives, self.rank), step.label)
        if self.own_process and not beside_others:  # bodies beside each other would draw from the same streams
            seed_streams(current)
        streams = nullcontext() if self.own_process else seeded(current)
        with in_call(current), streams, peers:
            yield
