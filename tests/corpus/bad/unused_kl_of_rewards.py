# mypy: disable-error-code="empty-body"
"""A KL coefficient is set, the KL is computed, but the returns of GRPO do not use it.

Seen: https://github.com/THUDM/slime/issues/397
Elsewhere: silent: the coefficient has no effect.
"""

import hfdsl as hf
from hfdsl import f32
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
    RefLogProbs,
    Reward,
    Rollout,
    Scores,
)


class Kl(hf.Batch):
    kl: f32[B, R]


@hf.function
def compute_approx_kl(rollout: Rollout, ref: RefLogProbs) -> Kl: ...


@hf.function(rows=hf.Grouped(8))
def get_grpo_returns(scores: Scores, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def grpo(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, 8))
    compute_approx_kl(rollout, reference.log_probs(rollout))  # <- HF602
    return actor.update(rollout, get_grpo_returns(reward.score(rollout), rollout))


pool, config = hf.ResourcePool([8]), PolicyConfig()
experiment = hf.Experiment(
    grpo,
    hf.Deployment(
        actor=hf.place(Actor, config, pool=pool),
        reference=hf.place(Reference, config, pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 32, P: 1024, R: 1024},
)
