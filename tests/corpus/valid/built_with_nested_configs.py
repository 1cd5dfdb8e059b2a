"""Configs within configs, by position and by name, with an integer where a float is taken."""

from dataclasses import dataclass, field

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@dataclass(frozen=True)
class Optimizer:
    betas: tuple[float, float] = (0.9, 0.95)
    warmup: int | None = None


@dataclass(frozen=True)
class LearnerConfig(PolicyConfig):
    optimizer: Optimizer = field(default_factory=Optimizer)


class Learner(Actor):
    def __init__(self, config: LearnerConfig, tags: list[str] | None = None) -> None:
        super().__init__(config)
        self.tags = tags or []


@hf.dataflow
def program(prompts: Prompts, actor: Learner, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Learner, LearnerConfig(4, 1, 1, optimizer=Optimizer(betas=(0, 1))), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
