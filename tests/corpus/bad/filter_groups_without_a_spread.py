# mypy: disable-error-code="empty-body"
"""Groups that are all right or all wrong are dropped, and the rest is split over 16 ranks regardless.

Seen: https://github.com/areal-project/AReaL/issues/450
Elsewhere: the batch of each update has another size; users ask whether it is filled up, and how this affects accuracy.
"""

import hfdsl as hf
from hfdsl import bool_
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
)

GROUP = 8


class Judged(Rollout, Advantages):
    informative: bool_[B]


@hf.function(rows=hf.Grouped(GROUP))
def judged(rollout: Rollout, scores: Scores) -> Judged: ...


@hf.dataflow
def dapo(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, GROUP))
    batch = judged(rollout, reward.score(rollout))
    kept = hf.filter(batch, batch.informative, group=GROUP)
    return actor.update(kept, kept)  # <- HF321


pool = hf.ResourcePool([8, 8])
experiment = hf.Experiment(
    dapo,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 128, P: 1024, R: 8192},
)
