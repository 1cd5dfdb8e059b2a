"""Log-probs of the current policy for the rollout of an older one: two versions, one sample."""

import hfdsl as hf
from tests.corpus.advantages import gained, less_divergence
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reference, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> tuple[ActorMetrics, ActorMetrics]:
    rollout = actor.generate(prompts)
    now = reference.log_probs(rollout)
    first = actor.update(rollout, gained(reward.score(rollout), rollout))
    return first, actor.update(rollout, less_divergence(rollout, now, reward.score(rollout)))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reference=hf.place(Reference, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
