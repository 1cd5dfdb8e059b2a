# mypy: disable-error-code="empty-body"
"""7 training processes with one completion each cannot make groups of 8.

Seen: https://github.com/huggingface/open-r1/issues/249
Elsewhere: a ValueError (7 x 1 against 8) from the trainer's constructor, on every rank.
"""

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
)


@hf.function(rows=hf.Grouped(8))
def group_advantages(scores: Scores, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def grpo(completions: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(completions)
    advantages = group_advantages(reward.score(rollout), rollout)  # <- HF313
    return actor.update(rollout, advantages)


train, serve = hf.ResourcePool([8]).split([7, 1])
experiment = hf.Experiment(
    grpo,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=train), reward=hf.place(Reward, pool=serve)),
    dims={B: 7, P: 512, R: 1024},
)
