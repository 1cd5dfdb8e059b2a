# mypy: disable-error-code="empty-body"
"""The records, roles and functions of the programs on provenance."""

from __future__ import annotations

from typing import Literal

import hfdsl as hf
from hfdsl import Add, Dispatch, Div, Mul, bool_, f32, i64, register


class B(hf.Dim): ...


class N(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


class S(hf.Dim): ...


T = Add[P, R]


class Prompts(hf.Batch):
    ids: i64[B, P]


class Sequences(hf.Batch):
    ids: i64[B, T]
    mask: bool_[B, R]


class Rollout(Sequences):
    log_probs: f32[B, R]


class Ref(hf.Batch):
    ref_log_probs: f32[B, R]


class Values(hf.Batch):
    values: f32[B, R]


class Scores(hf.Batch):
    score: f32[B]


class Choice(hf.Batch):
    keep: bool_[B]
    good: bool_[B]


class Chosen(hf.Batch):
    ids: i64[B, P]
    keep: bool_[B]


class Advantages(hf.Batch):
    advantages: f32[B, R]


class Experience(Rollout):
    advantages: f32[B, R]


class Judged(Rollout):
    score: f32[B]


class Pairs(hf.Batch):
    chosen: i64[B, T]
    rejected: i64[B, T]


class Steps(hf.Batch):
    steps: f32[B, S]


class Ends(hf.Batch):
    ends: i64[B, S]


class Best(hf.Batch):
    best: i64[Div[B, Literal[4]], T]


class Actor(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts, greedy: bool = False) -> Rollout: ...

    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, sequences: Sequences) -> Ref: ...

    @register(Dispatch.THREE_D_PROTO)
    def values(self, sequences: Sequences) -> Values: ...

    @register(Dispatch.THREE_D_PROTO)
    def score(self, sequences: Sequences) -> Scores: ...

    @register(Dispatch.THREE_D_PROTO)
    def grade(self, sequences: Sequences) -> Steps: ...

    @register(Dispatch.THREE_D_PROTO)
    def segment(self, sequences: Sequences) -> Ends: ...

    @register(Dispatch.THREE_D_PROTO)
    def update(self, rollout: Rollout, advantages: Advantages) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    def learn(self, experience: Experience) -> None: ...

    @register(Dispatch.THREE_D_PROTO, rows=hf.Grouped(2))
    def prefer(self, rollout: Rollout) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    def dpo(self, chosen: Sequences, rejected: Sequences) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    def train(self, pairs: Pairs) -> None: ...

    @register(Dispatch.ONE_TO_ALL, rows=hf.Whole)
    def contrast(self, good: Rollout, bad: Rollout) -> None: ...


@hf.function(rows=hf.GroupedBy("group"))
def grouped(rollout: Sequences, scores: Scores, *, group: int = 4) -> Advantages: ...


@hf.function(rows=hf.Grouped(4))
def best_of_four(rollout: Rollout) -> Best: ...


@hf.function(rows=hf.GroupedBy("group"))
def spread(scores: Scores, *, group: int) -> Choice: ...


@hf.function
def keeping(scores: Scores) -> Choice: ...


@hf.function(rows=hf.Whole)
def keeping_two_questions(scores: Scores) -> Choice: ...


@hf.function
def over(rollout: Sequences, scores: Scores, baseline: Scores) -> Advantages: ...


@hf.function
def gae(rollout: Rollout, values: Values, scores: Scores) -> Advantages: ...


@hf.function
def divergence(log_probs: f32[B, R], ref_log_probs: f32[B, R]) -> f32[B, R]: ...


@hf.function
def spread_steps(steps: Steps, ends: Ends, rollout: Rollout) -> Advantages: ...


@hf.function
def won(mine: Scores, theirs: Scores, rollout: Rollout) -> Advantages: ...


@hf.function(rows=hf.Whole)
def shuffled(prompts: Prompts) -> Prompts: ...


@hf.function(rows=hf.Whole)
def paired(rollout: Rollout, scores: Scores) -> Advantages: ...


@hf.function
def joined(left: Rollout, right: Rollout) -> f32[Mul[B, Literal[2]], R]: ...


@hf.function
def gained(scores: Scores, rollout: Rollout) -> Advantages: ...


def pieces(prompts: Prompts, actor: Actor, times: int = 4) -> tuple[Rollout, Scores, Advantages]:
    rollout = actor.generate(hf.repeat(prompts, times))
    scores = actor.score(rollout)
    return rollout, scores, gained(scores, rollout)
