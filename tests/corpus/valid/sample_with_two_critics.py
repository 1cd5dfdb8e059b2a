"""A reference, a critic and two rewards of one rollout, which they all read."""

import hfdsl as hf
from tests.corpus.advantages import less_divergence, less_values
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    Critic,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reference,
    Reward,
    prompts_of,
)


@hf.dataflow
def program(
    prompts: Prompts, actor: Actor, reference: Reference, critic: Critic, reward: Reward
) -> tuple[ActorMetrics, ActorMetrics]:
    rollout = actor.generate(prompts)
    gains = less_divergence(rollout, reference.log_probs(rollout), reward.score(rollout))
    base = less_values(rollout, critic.values(rollout), reward.score(rollout))
    return actor.update(rollout, gains), actor.update(rollout, base)


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reference=hf.place(Reference, PolicyConfig(), pool=pool),
        critic=hf.place(Critic, PolicyConfig(), 1, pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
