"""45 ranks: dp=3, pp=3, tp=5, numbered tp first; the reference on another odd mesh of the same pool."""

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
    Rollout,
    prompts_of,
)


@hf.function
def closer(rollout: Rollout, ref: RefLogProbs) -> Advantages:
    return Advantages(advantages=ref.ref_log_probs.tensor - rollout.log_probs.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reference: Reference) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(rollout, closer(rollout, reference.log_probs(rollout)))


pool = hf.ResourcePool([9] * 5)
config = PolicyConfig(mini_batch=5)
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, config, pool=pool, mesh=hf.Mesh(pp=3, dp=3, tp=5, order=("tp", "dp", "pp"))),
        reference=hf.place(Reference, config, pool=pool, mesh=hf.Mesh(pp=1, dp=5, tp=9, order=("dp", "tp", "pp"))),
    ),
    dims={B: 15, P: 3, R: 4},
    batches=prompts_of(15),
)
