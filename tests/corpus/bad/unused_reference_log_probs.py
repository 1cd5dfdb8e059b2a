# mypy: disable-error-code="empty-body"
"""The reference's log-probabilities are computed in every step, although the loss has no KL term.

Seen: https://github.com/NVIDIA-NeMo/RL/pull/3771
Elsewhere: silent: a forward pass over the whole rollout for nothing, unless another flag is set as well.
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


@hf.function(rows=hf.Grouped(16))
def group_advantages(scores: Scores, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def grpo(prompts: Prompts, policy: Actor, reference: Reference, reward: Reward) -> ActorMetrics:
    rollout = policy.generate(hf.repeat(prompts, 16))
    reference.log_probs(rollout)  # <- HF602
    return policy.update(rollout, group_advantages(reward.score(rollout), rollout))


pool, config = hf.ResourcePool([8]), PolicyConfig()
experiment = hf.Experiment(
    grpo,
    hf.Deployment(
        policy=hf.place(Actor, config, pool=pool),
        reference=hf.place(Reference, config, pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 32, P: 512, R: 512},
)
