"""A rollout is sorted by length, and meets advantages in the order from before."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    gains,
    prompts_of,
)


@hf.function(rows=hf.Whole)
def shortest_first(rollout: Rollout) -> Rollout:
    order = rollout.response_mask.tensor.sum(1).argsort()
    ids, mask, log_probs = rollout.ids.tensor, rollout.response_mask.tensor, rollout.log_probs.tensor
    return Rollout(ids=ids[order], response_mask=mask[order], log_probs=log_probs[order])


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    advantages = gains(reward.score(rollout), rollout)
    return actor.update(shortest_first(rollout), advantages)  # <- HF333


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
