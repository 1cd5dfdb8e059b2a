# mypy: disable-error-code="empty-body"
"""A batch of 256 rows is split over 7 ranks with micro-batches of 2.

Seen: https://github.com/OpenRLHF/OpenRLHF/issues/346
Elsewhere: DeepSpeed asserts the product 256 != 2 * 18 * 7 when the actor's engine is initialized, on the workers.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Actor, ActorMetrics, Advantages, B, P, PolicyConfig, Prompts, R, Rollout, Scores


class RewardModel(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, rollout: Rollout) -> Scores: ...


@hf.function(rows=hf.Whole)
def normalized(scores: Scores, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def reinforce(prompts: Prompts, actor: Actor, reward: RewardModel) -> ActorMetrics:
    rollout = actor.generate(prompts)  # <- HF310
    return actor.update(rollout, normalized(reward.score(rollout), rollout))


train, score = hf.ResourcePool([8]).split([7, 1])
experiment = hf.Experiment(
    reinforce,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(mini_batch=2), pool=train), reward=hf.place(RewardModel, pool=score)
    ),
    dims={B: 256, P: 1024, R: 1024},
)
