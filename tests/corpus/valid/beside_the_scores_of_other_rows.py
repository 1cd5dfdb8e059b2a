"""The baseline of a response is the score of another one: a Whole function gives it under another name."""

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


class Baseline(hf.Batch):
    baseline: f32[B]


@hf.function(rows=hf.Whole)
def score_of_the_next(scores: Scores) -> Baseline:
    return Baseline(baseline=scores.reward.tensor.roll(-1, 0))


@hf.function
def above_the_next(scores: Scores, baseline: Baseline, rollout: Rollout) -> Advantages:
    gains = scores.reward.tensor - baseline.baseline.tensor
    return Advantages(advantages=gains[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    scores = reward.score(rollout)
    return actor.update(rollout, above_the_next(scores, score_of_the_next(scores), rollout))


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
