# mypy: disable-error-code="empty-body"
"""KL has coefficient 0, so no step reads the reference, but it is still loaded next to the policy.

Seen: https://github.com/huggingface/trl/pull/2806
Elsewhere: silent: a second copy of the model takes memory on every GPU.
"""

import hfdsl as hf
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reference,
    Reward,
    Rollout,
    Scores,
)


@hf.function(rows=hf.Grouped(8))
def group_advantages(scores: Scores, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def grpo(prompts: Prompts, policy: Actor, reward: Reward) -> ActorMetrics:
    rollout = policy.generate(hf.repeat(prompts, 8))
    return policy.update(rollout, group_advantages(reward.score(rollout), rollout))


pool, config = hf.ResourcePool([4]), PolicyConfig()
experiment = hf.Experiment(
    grpo,
    hf.Deployment(
        policy=hf.place(Actor, config, pool=pool),
        reward=hf.place(Reward, pool=pool),
        reference=hf.place(Reference, config, pool=pool),  # <- HF508
    ),
    dims={B: 64, P: 512, R: 256},
)
