"""A loader that holds its batches, one tuple a step."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(rollout, gained(reward.score(rollout), rollout))


class Held:
    def __call__(self) -> list[tuple[Prompts]]:
        return [(prompts,) for prompts in prompts_of(8)()]


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=Held(),
)
