"""A function of all rows takes the best of each column, which are rows of different questions."""

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

GROUP = 4


@hf.function(rows=hf.Whole)
def compared(scores: Scores, rollout: Rollout) -> Advantages:
    reward = scores.reward.tensor.view(GROUP, -1)
    gained = (reward == reward.amax(0)).float()  # <- HF338
    return Advantages(advantages=gained.flatten()[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, GROUP))
    return actor.update(rollout, compared(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
