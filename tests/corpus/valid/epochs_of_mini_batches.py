"""PPO epochs over mini-batches: merged before they are cut, so that rows stay together; metrics in a list of lists."""

import hfdsl as hf
from hfdsl import f32
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

EPOCHS, PARTS = 2, 3


class Experience(Rollout):
    advantages: f32[B, R]


@hf.function(rows=hf.Whole)
def centered(scores: Scores, rollout: Rollout) -> Advantages:
    values = scores.reward.tensor - scores.reward.tensor.mean()
    return Advantages(advantages=values[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> list[list[ActorMetrics]]:
    rollout = actor.generate(prompts)
    experience = hf.merge(Experience, rollout, centered(reward.score(rollout), rollout))
    return [
        [actor.update(part, Advantages(advantages=part.advantages)) for part in hf.minibatches(experience, PARTS)]
        for _ in range(EPOCHS)
    ]


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(mini_batch=4), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 12, P: 3, R: 4},
    batches=prompts_of(12),
)
