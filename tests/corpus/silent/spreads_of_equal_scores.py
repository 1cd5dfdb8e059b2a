"""A function divides the gains of a group by its deviation, which is 0 where all are solved."""

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


@hf.function(rows=hf.Grouped(GROUP))
def centered(scores: Scores, rollout: Rollout) -> Advantages:
    groups = scores.reward.tensor.view(-1, GROUP)
    spread = groups.std(1, keepdim=True)
    gained = (groups - groups.mean(1, keepdim=True)) / spread  # <- HF357
    return Advantages(advantages=gained.reshape(-1)[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, GROUP))
    return actor.update(rollout, centered(reward.score(rollout), rollout))


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
