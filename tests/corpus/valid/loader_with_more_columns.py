"""The loader gives records with a column that the dataflow does not take."""

from collections.abc import Iterator

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    prompts_of,
)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(rollout, gained(reward.score(rollout), rollout))


class Tagged(Prompts):
    source: hf.Obj[str, B]


def tagged() -> Iterator[Tagged]:
    for prompts in prompts_of(8)():
        yield Tagged(ids=prompts.ids, answer=prompts.answer, source=["web"] * 8)


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=tagged,
)
