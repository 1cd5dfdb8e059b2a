"""REINFORCE++: a token-level KL penalty, and advantages normalized over the whole batch in a function."""

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
    RefLogProbs,
    Reward,
    Rollout,
    Scores,
    prompts_of,
)


@hf.function
def penalized(rollout: Rollout, ref: RefLogProbs, scores: Scores, kl: float = 0.01) -> Advantages:
    rewards = -kl * (rollout.log_probs.tensor - ref.ref_log_probs.tensor)
    rewards[:, -1] += scores.reward.tensor
    return Advantages(advantages=rewards.flip(1).cumsum(1).flip(1))


@hf.function(rows=hf.Whole)
def normalized(advantages: Advantages) -> Advantages:
    values = advantages.advantages.tensor
    return Advantages(advantages=(values - values.mean()) / (values.std() + 1e-6))


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    advantages = penalized(rollout, reference.log_probs(rollout), reward.score(rollout), kl=0.05)
    return actor.update(rollout, normalized(advantages))


pool, config = hf.ResourcePool([3]), PolicyConfig()
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, config, pool=pool),
        reference=hf.place(Reference, config, pool=pool, mesh=hf.Mesh(tp=3)),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 9, P: 3, R: 4},
    batches=prompts_of(9),
)
