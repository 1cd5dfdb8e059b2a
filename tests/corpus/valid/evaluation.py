"""An evaluation: pass@k in a function over the whole set, no training, two metrics and the rows themselves."""

from typing import Literal

import hfdsl as hf
from hfdsl import Metric
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Reward, Rollout, Scores, prompts_of

K = 4


class PassRates(hf.Batch):
    pass_at_1: Metric[float, Literal["mean"]]
    pass_at_k: Metric[float, Literal["mean"]]


@hf.function(rows=hf.Whole)
def pass_rates(scores: Scores, threshold: float = 0.5) -> PassRates:
    passed = (scores.reward.tensor >= threshold).view(-1, K)
    return PassRates(pass_at_1=float(passed.float().mean()), pass_at_k=float(passed.any(1).float().mean()))


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> tuple[PassRates, Rollout]:
    rollout = actor.generate(hf.repeat(prompts, K))
    return pass_rates(reward.score(rollout), threshold=0.25), rollout


experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([3])),
        reward=hf.place(Reward, pool=hf.ResourcePool([2], use_gpu=False)),
    ),
    dims={B: 3, P: 3, R: 4},
    batches=prompts_of(3),
)
