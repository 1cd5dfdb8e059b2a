"""The view makes rows of equal places, where groups are consecutive rows."""

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


@hf.function(rows=hf.GroupedBy("group"))
def compared(scores: Scores, rollout: Rollout, *, group: int) -> Advantages:
    reward = scores.reward.tensor.view(group, -1)
    gained = reward - reward.mean(0, keepdim=True)  # <- HF338
    return Advantages(advantages=gained.flatten()[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, 4))
    return actor.update(rollout, compared(reward.score(rollout), rollout, group=4))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
