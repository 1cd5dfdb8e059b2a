# mypy: disable-error-code="arg-type"
"""Student and teacher are given to a dataflow that is written once for several pairs, one of them a wrong class."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    Actor,
    B,
    Critic,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reference,
    RefLogProbs,
    Rollout,
    prompts_of,
)


@hf.dataflow
def graded(rollout: Rollout, teacher: Reference) -> RefLogProbs:
    return teacher.log_probs(rollout)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, first: Reference, second: Critic) -> tuple[RefLogProbs, RefLogProbs]:
    rollout = actor.generate(prompts)
    return graded(rollout, first), graded(rollout, teacher=second)  # <- HF240


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        first=hf.place(Reference, PolicyConfig(), pool=pool),
        second=hf.place(Critic, PolicyConfig(), pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
