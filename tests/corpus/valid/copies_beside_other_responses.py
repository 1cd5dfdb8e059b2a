"""Four responses are compared with copies of the score of another one to the same question."""

import hfdsl as hf
from tests.corpus.advantages import above
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


@hf.function(rows=hf.Grouped(4))
def centered_above(scores: Scores, baseline: Scores, rollout: Rollout) -> Advantages:
    """Scores above the baseline of their question."""
    return above(scores, baseline, rollout)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    other = reward.score(actor.generate(prompts))
    rollout = actor.generate(hf.repeat(prompts, 4))
    gains = centered_above(reward.score(rollout), hf.repeat(other, 4), rollout)
    return actor.update(rollout, gains)


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
