# mypy: disable-error-code="valid-type"
"""Functions for any dims: type variables, loose columns in and out, a column in another record under another name."""

from typing import TypeVar

import hfdsl as hf
from hfdsl import bool_, f32
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    Critic,
    P,
    PolicyConfig,
    Prompts,
    R,
    Scores,
    Values,
    prompts_of,
)

b, t = TypeVar("b"), TypeVar("t")


@hf.function(rows=hf.Whole)
def whiten(x: f32[b, t]) -> f32[b, t]:
    return f32((x.tensor - x.tensor.mean()) / (x.tensor.std() + 1e-6))


@hf.function
def masked(x: f32[b, t], mask: bool_[b, t]) -> f32[b, t]:
    return f32(x.tensor * mask.tensor)


@hf.function
def row_mean(x: f32[b, t]) -> f32[b]:
    return f32(x.tensor.mean(1))


@hf.dataflow
def program(prompts: Prompts, actor: Actor, critic: Critic) -> tuple[ActorMetrics, Scores]:
    rollout = actor.generate(hf.repeat(prompts, 2))
    values: Values = critic.values(rollout)
    white = masked(whiten(values.values), mask=rollout.response_mask)
    scores = Scores(reward=row_mean(whiten(rollout.log_probs)))
    return actor.update(rollout, Advantages(advantages=white)), scores


pool, config = hf.ResourcePool([2]), PolicyConfig()
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, config, pool=pool), critic=hf.place(Critic, config, pool=pool)),
    dims={B: 5, P: 3, R: 4},
    batches=prompts_of(5),
)
