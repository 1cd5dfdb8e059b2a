"""Two rewards are blended with a weight of 1.2, and the second one counts negatively."""

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


@hf.function
def blended(first: Scores, second: Scores, weight: Share) -> Scores:
    return Scores(reward=weight * first.reward.tensor + (1 - weight) * second.reward.tensor)


@hf.function
def gained(scores: Scores, rollout: Rollout) -> Advantages:
    return Advantages(advantages=scores.reward.tensor[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    scores = reward.score(rollout)
    return actor.update(rollout, gained(blended(scores, scores, 1.2), rollout))  # <- HF940


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
