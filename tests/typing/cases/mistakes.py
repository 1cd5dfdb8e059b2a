"""Wiring mistakes of the field. A type checker must find the one on every marked line, and nothing else."""

from __future__ import annotations

from typing import Literal, TypeVar

import torch

import hfdsl as hf
from hfdsl import Add, Dispatch, bf16, f32, i64, register


class B(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


T = Add[P, R]
b = TypeVar("b")
t = TypeVar("t")


class Prompts(hf.Batch):
    ids: i64[B, P]
    answer: hf.Obj[str, B]


class Rollout(hf.Batch):
    ids: i64[B, T]
    log_probs: f32[B, R]


class LogProbs(hf.Batch):
    log_probs: f32[B, R]


class RefLogProbs(hf.Batch):
    log_probs: f32[B, R]


class Scores(hf.Batch):
    reward: f32[B]
    half: bf16[B, R]
    tokens: f32[B, T]


class Optional(hf.Batch):
    ids: i64[B, T]
    values: f32[B, R] | None = None
    hint: hf.Obj[str, B] | None = None
    late: f32[B] | None


class Packed(hf.Batch):
    ids: i64[B, hf.Ragged[T]]
    log_probs: f32[B, hf.Ragged[R]] | None = None


class Metrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Actor(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        return Rollout(ids=prompts.ids.tensor, log_probs=torch.zeros(1, 1))

    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, rollout: Rollout) -> LogProbs:
        return LogProbs(log_probs=rollout.log_probs)

    @register(Dispatch.THREE_D_PROTO)
    def update(self, rollout: Rollout, old: LogProbs, ref: RefLogProbs, clip: float = 0.2) -> Scores:
        old.log_probs.tensor.mean()
        return Scores(reward=ref.log_probs, half=torch.zeros(1, 1), tokens=torch.zeros(1, 1))  # E: wrong dim in a record

    @register(Dispatch.ONE_TO_ALL)
    def gather(self, rollout: Rollout) -> LogProbs:
        return LogProbs(log_probs=rollout.log_probs)

    @register(Dispatch.THREE_D_PP_ONLY)
    def stages(self, rollout: Rollout) -> RefLogProbs:
        return RefLogProbs()  # E: missing column in a record constructor

    @register(Dispatch.ALL_TO_ALL)
    def scatter(self, log_probs: LogProbs) -> float:
        return log_probs.log_probs.tensor  # E: wrong type from a body

    @register(Dispatch.DP_PROTO)
    def rebuilt(self, rollout: Rollout) -> LogProbs:
        return LogProbs(log_prob=rollout.log_probs.tensor)  # E: misspelled column in a record constructor

    @register(Dispatch.DP_PROTO, pad="last")  # E: no such padding
    def padded(self, rollout: Rollout) -> LogProbs:
        return RefLogProbs(log_probs=rollout.log_probs)  # E: wrong record from a body


class Reference(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, rollout: Rollout) -> RefLogProbs:
        return RefLogProbs(log_probs=rollout.log_probs)


@hf.function
def whiten(x: f32[b, t]) -> f32[b, t]:
    return bf16(x.tensor)  # E: wrong dtype from a body


@hf.function
def difference(x: f32[b, t], y: f32[b, t]) -> f32[b, t]:
    return f32(x.tensor - y.tensor)


@hf.function
def middle(values: f32[B, R] | None) -> f32[B, R]:
    if values is None:
        return f32(values.tensor)  # E: the tensor of what is absent
    return values


@hf.function
def body(record: Optional) -> f32[B, R]:
    record.hint.objects  # E: an optional column without a test
    return f32(record.values.tensor)  # E: an optional column without a test


@hf.function
def rewards(rollout: Rollout, clip: float = 1.0) -> f32[B]:
    return f32(rollout.log_probs)  # E: a column where a tensor is taken


@hf.function(rows=8)  # E: no row dependence
def grouped(rollout: Rollout) -> Rollout:
    return rollout


@hf.dataflow
def mistakes(prompts: Prompts, actor: Actor, reference: Reference, scores: Scores) -> Scores:
    rollout = actor.generate(prompts)
    actor.generate(rollout)  # E: wrong record
    actor.generate()  # E: missing argument
    actor.generate(prompts, rollout)  # E: too many arguments
    actor.generate(prompt=prompts)  # E: misspelled keyword
    actor.generat(prompts)  # E: misspelled method
    actor.generate(prompts.ids.tensor)  # E: a tensor where a record is taken
    actor.generate(torch.zeros(2, 2))  # E: a tensor where a record is taken
    actor.generate({"ids": prompts.ids})  # E: a dictionary where a record is taken

    whiten(scores.half)  # E: bf16 column to f32
    whiten(rollout.ids)  # E: i64 column to f32
    whiten(scores.reward)  # E: wrong number of dims
    difference(rollout.log_probs, scores.tokens)  # E: columns of different dims where they are the same
    rewards(rollout, clip="high")  # E: wrong type of a constant

    rollout.log_prob  # E: misspelled column
    rollout.log_probs.mean()  # E: tensor method in a dataflow
    rollout.log_probs + rollout.log_probs  # E: tensor arithmetic in a dataflow
    -rollout.log_probs  # E: tensor arithmetic in a dataflow
    rollout.log_probs[0]  # E: indexing in a dataflow
    torch.exp(rollout.log_probs)  # E: a torch function in a dataflow
    rollout.log_probs = scores.tokens  # E: wrong dim into a column
    for column in rollout.log_probs:  # E: iteration in a dataflow
        print(column)

    old, ref = actor.log_probs(rollout), reference.log_probs(rollout)
    actor.update(rollout, ref, old)  # E: swapped policy and reference log-probs
    actor.update(rollout, old, ref=old)  # E: wrong record by keyword
    actor.update(rollout, old)  # E: missing argument
    actor.update(rollout, old, ref, "0.2")  # E: wrong type of a constant

    gathered = actor.gather(rollout)
    staged = actor.stages(rollout)
    actor.generate(gathered)  # E: per-rank value into a splitting role
    actor.update(rollout, gathered, ref)  # E: per-rank value into a splitting role
    actor.update(rollout, old, staged)  # E: per-stage value into a splitting role
    actor.scatter(gathered)
    actor.scatter(old)  # E: a whole value where one a rank is taken
    actor.scatter(staged)  # E: per-stage value where one a rank is taken
    gathered.log_probs  # E: a column of a list

    hf.repeat(prompts, "8")  # E: wrong type of a count
    hf.repeat(prompts.ids, 8)  # E: a column where a record is taken
    hf.minibatches(rollout)  # E: missing argument
    hf.merge(LogProbs, rollout.ids)  # E: a column where a record is taken
    return rollout  # E: wrong dataflow result


@hf.dataflow
def nothing(prompts: Prompts, actor: Actor) -> Rollout:
    actor.generate(prompts)  # its result is never returned
    return None  # E: wrong dataflow result


@hf.dataflow
def optional(record: Optional, rollout: Rollout) -> tuple[f32[B, R], Optional]:
    middle(record.values)
    middle(rollout.log_probs)
    middle(record.hint)  # E: objects to a column
    whiten(record.values)  # E: an optional column where one is needed
    whiten(hf.present(record.values))
    middle(hf.present(record.late))  # E: another shape
    hf.present(record)  # E: a record where a column is taken
    hf.present(record.values).tensor.mean()
    RefLogProbs(log_probs=record.values)  # E: an optional column into a record that needs it
    RefLogProbs(log_probs=hf.present(record.values))
    Optional(ids=record.ids)  # E: an optional column without a default must be given
    Optional(ids=record.ids, late=None, values=record.values, hint=None)
    Optional(ids=None, late=None)  # E: None where a column is always there
    return record.values, Optional(ids=record.ids, late=None)  # E: an optional column where one is promised


@hf.function
def packed_rows(packed: Packed) -> i64[b, hf.Ragged[t]]:
    return i64([row.float() for row in packed.ids.rows[0]])


@hf.dataflow
def ragged(packed: Packed, rollout: Rollout) -> i64[B, T]:
    RefLogProbs(log_probs=hf.present(packed.log_probs))  # E: ragged to dense
    Packed(ids=rollout.ids)  # E: dense to ragged
    Packed(ids=packed.ids, log_probs=packed.log_probs)
    packed.ids.rows[0]
    return packed.ids  # E: ragged to dense


class Sized(hf.Worker):
    def __init__(self, size: int) -> None: ...


def run(prompts: Prompts, rollout: Rollout) -> None:
    pool = hf.ResourcePool([4])
    hf.place(Actor, pool=[4])  # E: no pool
    hf.place(Actor, mesh=hf.Mesh(dp=4))  # E: no pool
    hf.place(Prompts, pool=pool)  # E: no role class
    hf.place(Actor(), pool=pool)  # E: a worker where its class is taken
    hf.place(Actor, pool=pool, mesh=hf.Mesh(ddp=4))  # E: no such axis
    hf.Deployment(actor=Actor)  # E: a class where its place is taken
    deployment = hf.Deployment(actor=hf.place(Actor, pool=pool))
    mistakes.check(deployment, dims={"B": 4})  # E: a name where a dim is taken
    mistakes.compile()  # E: missing deployment
    plan = nothing.compile(deployment, dims={B: 4})
    plan.launch(backend="slurm")  # E: no such backend
    nothing(rollout, Actor())  # E: wrong record to an eager run
    nothing(prompts)  # E: missing role
    Prompts(ids=torch.zeros(1), answer=[1, 2])  # E: wrong objects
    Prompts(torch.zeros(1), ["a"])  # E: positional columns
    prompts[0]  # E: one row
    Metrics(loss="low")  # E: wrong type of a metric
    Metrics(loss=0.5).loss + 1.0  # E: arithmetic on a metric, not on its value
