"""A dataflow that scores sequences is given rollouts: it sees the columns of its own record only."""

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
    Scores,
    Sequences,
    prompts_of,
)


@hf.dataflow
def scored(sequences: Sequences, reward: Reward, *, rounds: int = 1) -> list[Scores]:
    return [reward.score(sequences) for _ in range(rounds)]


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> tuple[ActorMetrics, Scores]:
    rollout = actor.generate(prompts)
    first, second = scored(rollout, reward, rounds=2)
    return actor.update(rollout, gained(first, rollout)), second


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
