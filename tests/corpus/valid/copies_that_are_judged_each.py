"""A judge gives each copy of a response a score of its own, and each copy takes the mean of the judgments."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Scores,
    prompts_of,
)


@hf.function(rows=hf.GroupedBy("group"))
def agreed(scores: Scores, *, group: int) -> Scores:
    return Scores(reward=scores.reward.tensor.view(-1, group).mean(1).repeat_interleave(group))


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = hf.repeat(actor.generate(prompts), 4)
    return actor.update(rollout, gained(agreed(reward.score(rollout), group=4), rollout))


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
