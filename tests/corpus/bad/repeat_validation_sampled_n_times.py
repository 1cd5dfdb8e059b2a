# mypy: disable-error-code="empty-body"
"""Validation samples 4 responses per prompt, but the prompts that they are joined with are not repeated.

Seen: https://github.com/verl-project/verl/issues/148
Elsewhere: union asserts equal batch sizes in the driver, after generation.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, Scores


class RewardManager(hf.Worker):
    @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    def score(self, prompts: Prompts, rollout: Rollout) -> Scores: ...


@hf.dataflow
def validate(prompts: Prompts, actor: Actor, reward: RewardManager) -> Scores:
    rollout = actor.generate(hf.repeat(prompts, 4))
    return reward.score(prompts, rollout)  # <- HF212


experiment = hf.Experiment(
    validate,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([8])),
        reward=hf.place(RewardManager, pool=hf.ResourcePool([1], use_gpu=False)),
    ),
    dims={B: 64, P: 512, R: 1024},
)
