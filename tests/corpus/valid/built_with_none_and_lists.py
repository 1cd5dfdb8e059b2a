"""An optional field that is None, and a list of text."""

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
        actor=hf.place(Learner, LearnerConfig(optimizer=Optimizer(warmup=None)), tags=["a", "b"], pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
