"""The data has two paraphrases of each question, which are repeated and compared as one group."""

import hfdsl as hf
from tests.corpus.advantages import Verdicts, centered
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.function(rows=hf.Grouped(2))
def short(prompts: Prompts) -> Verdicts:
    import torch

    return Verdicts(keep=torch.ones(len(prompts.ids.tensor), dtype=torch.bool))


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    kept = hf.fill(hf.filter(prompts, short(prompts).keep, group=2), 8)
    rollout = actor.generate(hf.repeat(kept, 4))
    return actor.update(rollout, centered(reward.score(rollout), rollout, group=8))


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
