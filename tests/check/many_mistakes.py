# mypy: ignore-errors
"""A program with a dozen mistakes: each is reported once, and what depends on a broken value is not."""

import hfdsl as hf
from tests.check.programs.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reference,
    Reward,
    Rollout,
    Scores,
)

GROUP = 8


class Lengths(hf.Batch):
    length: hf.i32[B]


@hf.function(rows=hf.Grouped(GROUP))
def advantages_of(scores: Scores, rollout: Rollout) -> Advantages: ...


@hf.function
def lengths_of(mask: hf.bool_[B, R]) -> Lengths: ...


@hf.function
def clipped(length: hf.i64[B]) -> Lengths: ...


@hf.function
def untyped(rollout): ...  # HF104


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, GROUP))
    lengths = lengths_of(rollout.response_maks)  # HF201
    first = clipped(lengths.length)  # HF220
    scores = reward.score(rolout=rollout)  # HF202
    if scores.reward:  # HF207
        scores = reward.scores(rollout)  # HF202
    ref = reference.log_probs(prompts)  # HF204
    again = actor.update(rollout, ref, untyped(scores))  # nothing: a broken value fits everywhere
    baseline = reward.score(actor.generate(prompts))  # HF310: 64 rows over 3 ranks
    advantages = advantages_of(baseline, rollout)  # HF212
    last = Advantages(advantages=advantages.advantages - 1.0)  # HF208
    for part in hf.minibatches(rollout, 0):  # HF304
        actor.update(part, ref, last)
    for part in hf.minibatches(rollout, 2):
        actor.update(part)  # HF203, once
    return again, first, {scores}  # HF603


train = hf.ResourcePool([4, 4], name="train")
deployment = hf.Deployment(  # HF507
    actor=hf.place(Actor, PolicyConfig(), pool=train, mesh=hf.Mesh(dp=2, tp=2)),  # HF501
    refrence=hf.place(Reference, PolicyConfig(), pool=train),
    reward=hf.place(Reward, 0.5, pool=hf.ResourcePool([3])),  # HF516
)


def report() -> hf.Report:
    return program.check(deployment, dims={B: 64, P: 32, R: 0})  # HF302
