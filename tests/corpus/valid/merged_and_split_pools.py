"""One pool is split in three; two parts are merged again for a role that runs over both."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    Critic,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reference,
    RefLogProbs,
    Rollout,
    Values,
    prompts_of,
)


@hf.function
def difference(values: Values, ref: RefLogProbs) -> Advantages:
    return Advantages(advantages=values.values.tensor - ref.ref_log_probs.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, critic: Critic, reference: Reference) -> tuple[ActorMetrics, Rollout]:
    rollout = actor.generate(prompts)
    advantages = difference(critic.values(rollout), reference.log_probs(rollout))
    return actor.update(rollout, advantages), rollout


first, second, third = hf.ResourcePool([4, 4]).split([2, 4, 2])
config = PolicyConfig()
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, config, pool=first.merge(second), mesh=hf.Mesh(dp=3, tp=2)),
        critic=hf.place(Critic, config, pool=second, mesh=hf.Mesh(dp=2, tp=2)),
        reference=hf.place(Reference, config, pool=third),
    ),
    dims={B: 12, P: 3, R: 4},
    batches=prompts_of(12),
)
