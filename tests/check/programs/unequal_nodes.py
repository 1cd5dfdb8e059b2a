# mypy: disable-error-code="empty-body"
"""Unequal nodes, padding, a custom protocol, and a numbering of the ranks that is not the default."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.check.programs.vocabulary import ActorMetrics, B, P, Prompts, R, Rollout, Scores

STRIPES = hf.Protocol("STRIPES", split=("tp", "dp"), collect={"tp": "join", "dp": "join", "pp": "last"})


class Actor(hf.Worker):
    @register(Dispatch.THREE_D_PROTO, pad="repeat_last")
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(STRIPES)
    def score(self, rollout: Rollout) -> Scores: ...

    @register({"dispatch_fn": lambda group, *args: (args, {}), "collect_fn": lambda group, outputs: outputs[0]})
    def update(self, rollout: Rollout, scores: Scores) -> ActorMetrics: ...

    @register(Dispatch.ALL_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    def save(self, path: str) -> None: ...


@hf.dataflow
def program(prompts: Prompts, actor: Actor) -> ActorMetrics:
    rollout = actor.generate(prompts)
    metrics = actor.update(rollout, actor.score(rollout))
    actor.save("last")
    return metrics


pool = hf.ResourcePool([4, 2])
deployment = hf.Deployment(
    actor=hf.place(Actor, pool=pool, mesh=hf.Mesh(pp=1, dp=3, tp=2, order=("tp", "pp", "dp"))),
)
dims = {B: 30, P: 16, R: 16}
