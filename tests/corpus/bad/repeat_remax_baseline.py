# mypy: disable-error-code="empty-body"
"""ReMax with 4 samples per prompt: the greedy baseline has 1024 rows, the sampled responses 4096.

Seen: https://github.com/verl-project/verl/issues/3408
Elsewhere: union asserts identical batch sizes (1024 and 4096) in the driver, after both generations.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Advantages, B, P, Prompts, R, Reward, Rollout, Scores


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts, do_sample: bool = True) -> Rollout: ...

    @register(Dispatch.DP_PROTO)
    def update(self, rollout: Rollout, advantages: Advantages) -> None: ...


@hf.function
def above_baseline(scores: Scores, baseline: Scores, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def remax(prompts: Prompts, actor: Actor, reward: Reward) -> Advantages:
    rollout = actor.generate(hf.repeat(prompts, 4))
    greedy = actor.generate(prompts, do_sample=False)
    advantages = above_baseline(reward.score(rollout), reward.score(greedy), rollout)  # <- HF212
    actor.update(rollout, advantages)
    return advantages


pool = hf.ResourcePool([8])
experiment = hf.Experiment(
    remax,
    hf.Deployment(actor=hf.place(Actor, pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 1024, P: 512, R: 1024},
)
