# mypy: disable-error-code="empty-body"
"""Each of 4 engines returns one endpoint, and each of 8 actor ranks needs one.

Seen: https://github.com/TideDra/lmm-r1/issues/10
Elsewhere: a RuntimeError in fit of a Ray actor; it works with equal numbers of engines and actor ranks.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import ActorMetrics, B, P, R, Rollout


class Engine(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    def endpoint(self) -> str: ...


class Actor(hf.Worker):
    @register(Dispatch.ALL_TO_ALL)
    def connect(self, endpoint: str) -> None: ...

    @register(Dispatch.DP_PROTO)
    def fit(self, rollout: Rollout) -> ActorMetrics: ...


@hf.dataflow
def ppo(rollout: Rollout, engines: Engine, actor: Actor) -> ActorMetrics:
    actor.connect(engines.endpoint())  # <- HF402
    return actor.fit(rollout)


experiment = hf.Experiment(
    ppo,
    hf.Deployment(
        engines=hf.place(Engine, pool=hf.ResourcePool([4])), actor=hf.place(Actor, pool=hf.ResourcePool([8]))
    ),
    dims={B: 128, P: 1024, R: 1024},
)
