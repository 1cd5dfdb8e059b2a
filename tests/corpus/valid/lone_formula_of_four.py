"""Groups of four in the formula of GRPO."""

from typing import Annotated

import hfdsl as hf
from hfdsl.rl.advantages import group_normalized
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
    gains = group_normalized(scores.reward.tensor, group)
    return Advantages(advantages=gains[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward, *, group: int = 4) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, group))
    return actor.update(rollout, compared(reward.score(rollout), rollout, group=group))


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
