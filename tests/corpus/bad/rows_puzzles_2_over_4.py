# mypy: disable-error-code="empty-body"
"""REINFORCE on a batch of 2 puzzles, split over the 4 workers of the actor.

Seen: https://github.com/Unakar/Logic-RL/issues/13
Elsewhere: an assertion on equal chunks inside the trainer's loop, after the workers have been built.
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
    Reference,
    RefLogProbs,
    Reward,
    Rollout,
    Scores,
)


@hf.function(rows=hf.Whole)
def normalized(rollout: Rollout, scores: Scores, ref: RefLogProbs) -> Advantages: ...


@hf.dataflow
def reinforce(puzzles: Prompts, actor: Actor, reference: Reference, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(puzzles)  # <- HF310
    advantages = normalized(rollout, reward.score(rollout), reference.log_probs(rollout))
    return actor.update(rollout, advantages)


pool, config = hf.ResourcePool([4]), PolicyConfig()
experiment = hf.Experiment(
    reinforce,
    hf.Deployment(
        actor=hf.place(Actor, config, pool=pool),
        reference=hf.place(Reference, config, pool=pool),
        reward=hf.place(Reward, pool=hf.ResourcePool([1], use_gpu=False)),
    ),
    dims={B: 2, P: 400, R: 2048},
)
