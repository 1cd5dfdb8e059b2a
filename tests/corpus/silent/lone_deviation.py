"""One response per prompt was left over from a debug run: the standard deviation is NaN."""

from typing import Annotated

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
    Reward,
    Rollout,
    Scores,
    prompts_of,
)

Share = Annotated[float, hf.Within(at_least=0, at_most=1)]


@hf.function(rows=hf.GroupedBy("group"))
def compared(scores: Scores, rollout: Rollout, *, group: int) -> Advantages:
    groups = scores.reward.tensor.view(-1, group)
    gains = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    return Advantages(advantages=gains.flatten()[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward, *, group: int = 1) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, group))
    return actor.update(rollout, compared(reward.score(rollout), rollout, group=group))  # <- HF314


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
