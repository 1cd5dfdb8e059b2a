# mypy: disable-error-code="arg-type"
"""The update of a mini-batch is a dataflow of its own; it is given the scores where it takes the advantages."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    prompts_of,
)


@hf.dataflow
def learned(rollout: Rollout, advantages: Advantages, actor: Actor) -> ActorMetrics:
    return actor.update(rollout, advantages)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> tuple[ActorMetrics, ActorMetrics]:
    rollout = actor.generate(prompts)
    scores = reward.score(rollout)
    first = learned(rollout, gained(scores, rollout), actor)
    return first, learned(rollout, scores, actor)  # <- HF204


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
