"""Responses that pass stand beside those that fail: a Whole function pairs them."""

import hfdsl as hf
from tests.corpus.advantages import passed
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


@hf.function(rows=hf.Whole)
def contrasted(better: Rollout, all_rows: Rollout, scores: Scores) -> Advantages:
    gap = better.log_probs.tensor.mean() - all_rows.log_probs.tensor.mean()
    return Advantages(advantages=gap * better.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    scores = reward.score(rollout)
    better = hf.fill(hf.filter(rollout, passed(scores).keep), 8)
    return actor.update(better, contrasted(better, rollout, scores))


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
