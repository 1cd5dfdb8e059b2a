# mypy: disable-error-code="empty-body"
"""The KL of all 2048 samples is subtracted from the rewards of a quarter of them.

Seen: https://github.com/modelscope/ms-swift/issues/9916
Elsewhere: a tensor size mismatch (512 against 2048) on every rank, in the advantages after the first rollout.
"""

import hfdsl as hf
from hfdsl import f32
from tests.corpus.vocabulary import (
    Actor,
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
    kl: f32[B]


@hf.function
def kl_of(rollout: Rollout, ref: RefLogProbs) -> Kl: ...


@hf.function(rows=hf.Grouped(8))
def compute_advantages(scores: Scores, kl: Kl, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def grpo(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> list[Advantages]:
    rollout = actor.generate(hf.repeat(prompts, 8))
    kl = kl_of(rollout, reference.log_probs(rollout))
    return [
        compute_advantages(reward.score(part), kl, part)  # <- HF212
        for part in hf.minibatches(rollout, 4)
    ]


pool, config = hf.ResourcePool([8]), PolicyConfig()
experiment = hf.Experiment(
    grpo,
    hf.Deployment(
        actor=hf.place(Actor, config, pool=pool),
        reference=hf.place(Reference, config, pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 256, P: 1024, R: 1024},
)
