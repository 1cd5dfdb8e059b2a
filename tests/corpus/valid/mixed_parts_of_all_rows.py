"""Four rows of each question, and as many mini-batches of all: the mean of each mini-batch is no mean of groups."""

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
    groups = scores.reward.tensor.view(-1, GROUP)
    gained = (groups - groups.mean(1, keepdim=True)).flatten().view(4, -1)
    scaled = gained - 0.1 * gained.mean(1, keepdim=True)
    return Advantages(advantages=scaled.flatten()[:, None] * rollout.response_mask.tensor)


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
