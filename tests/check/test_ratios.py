"""Ratios: what a check says of random programs, against the log-probs that their updates get when they run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, Execute, f32, i64, register
from hfdsl.errors import DefinitionError
from hfdsl.rl.losses import Clip, PolicyLoss, Reinforce

ROWS, TOKENS = 4, 2
STRIDE = 100


class B(hf.Dim): ...


class R(hf.Dim): ...


class Prompts(hf.Batch):
    number: i64[B]


class Sequences(hf.Batch):
    ids: i64[B, R]


class Rollout(Sequences):
    log_probs: f32[B, R]


class LogProbs(hf.Batch):
    log_probs: f32[B, R]


class Policy(hf.Worker):
    """Its log-probs are its own number and how often it was updated; tokens are the number of their row."""

    rows = 0

    def __init__(self, number: int) -> None:
        self.number, self.updates, self.wrong = number, 0, False
        self.first: dict[int, int] = {}

    def _log_probs(self) -> torch.Tensor:
        return torch.full((ROWS, TOKENS), float(STRIDE * self.number + self.updates))

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def sample(self, prompts: Prompts) -> Rollout:
        Policy.rows += ROWS
        ids = (Policy.rows + torch.arange(ROWS))[:, None].expand(ROWS, TOKENS)
        return Rollout(ids=ids, log_probs=self._log_probs())

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def score(self, sequences: Sequences) -> LogProbs:
        return LogProbs(log_probs=self._log_probs()[: len(sequences.ids.tensor)])

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy", ratio="log_probs")
    def update(self, rollout: Rollout) -> None:
        for row, old in zip(rollout.ids.tensor[:, 0].tolist(), rollout.log_probs.tensor[:, 0].tolist(), strict=True):
            (number, version), first = divmod(int(old), STRIDE), self.first.setdefault(row, self.updates)
            generated = row >= 0
            self.wrong |= generated and number != self.number
            self.wrong |= number == self.number and version > first
        self.updates += 1


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["sample", "score", "part", "update"]), st.integers(0, 1), st.integers(0, 9)),
    min_size=1,
    max_size=10,
)


def steps(operations: list[tuple[str, int, int]]) -> Any:
    """A dataflow of operations, each on one of the values so far."""

    def body(prompts: Prompts, data: Rollout, white: Policy, black: Policy) -> None:
        values = [data, white.sample(prompts)]
        for name, role, pick in operations:
            policy, value = (white, black)[role], values[pick % len(values)]
            if name == "sample":
                values.append(policy.sample(prompts))
            elif name == "score":
                values.append(Rollout(ids=value.ids, log_probs=policy.score(value).log_probs))
            elif name == "part":
                values.append(hf.minibatches(value, 2)[pick // 5])
            else:
                policy.update(value)

    return hf.dataflow(body)


@given(operations=OPERATIONS)
def test_a_finding_is_what_an_update_sees(operations: list[tuple[str, int, int]]) -> None:
    def halves(operations: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
        """A part of a part would have one row, of which there is no half."""
        parts = [index for index, (name, *_) in enumerate(operations) if name == "part"]
        return [operation for index, operation in enumerate(operations) if index not in parts[2:]]

    program, white, black = steps(halves(operations)), Policy(1), Policy(2)
    tokens = -1 - torch.arange(ROWS)[:, None].expand(ROWS, TOKENS)
    data = Rollout(ids=tokens, log_probs=torch.full((ROWS, TOKENS), 9.0 * STRIDE))
    program(Prompts(number=torch.arange(ROWS)), data, white, black)
    codes = program.check(dims={B: ROWS, R: TOKENS}).codes
    assert ("HF335" in codes) == (white.wrong or black.wrong), codes
    assert set(codes) <= {"HF335", "HF602"}  # results that nothing reads


class Relay(hf.Worker):
    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    def averaged(self, weights: dict[str, float]) -> dict[str, float]:
        return weights


class Learner(Policy):
    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    def weights(self) -> dict[str, float]:
        return {}

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy", ratio="log_probs")
    def improve(self, rollout: Rollout, *, loss: PolicyLoss) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def polished(self, rollout: Rollout) -> Rollout:
        return rollout


class Teacher(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    def follow(self, weights: dict[str, float]) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("teacher")
    def score(self, sequences: Sequences) -> LogProbs: ...  # type: ignore[empty-body]  # never run

    @register(Dispatch.THREE_D_PROTO)
    def undeclared(self, sequences: Sequences) -> LogProbs: ...  # type: ignore[empty-body]  # never run


def given_to_the_teacher(prompts: Prompts, learner: Learner, teacher: Teacher, relay: Relay) -> None:
    rollout = learner.sample(prompts)
    learner.update(Rollout(ids=rollout.ids, log_probs=teacher.score(rollout).log_probs))
    teacher.follow(relay.averaged(learner.weights()))


def of_a_role_that_declares_nothing(prompts: Prompts, learner: Learner, teacher: Teacher, relay: Relay) -> None:
    rollout = learner.sample(prompts)
    learner.update(Rollout(ids=rollout.ids, log_probs=teacher.undeclared(rollout).log_probs))
    relay.averaged({})


def handed_on(prompts: Prompts, learner: Learner, other: Learner) -> None:
    rollout = learner.sample(prompts)
    learner.update(other.polished(rollout))


def without_a_ratio(prompts: Prompts, learner: Learner, other: Learner) -> None:
    learner.improve(other.sample(prompts), loss=Reinforce())


def with_a_ratio(prompts: Prompts, learner: Learner, other: Learner) -> None:
    learner.improve(other.sample(prompts), loss=Clip())


def by_a_call_that_is_not_there(prompts: Prompts, learner: Learner, other: Learner) -> None:
    learner.improve(other.sample(prompts), loss=Clip())
    other.follow(learner.weights())  # type: ignore[attr-defined]  # the mistake


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        (given_to_the_teacher, False),
        (of_a_role_that_declares_nothing, False),
        (handed_on, False),
        (without_a_ratio, False),
        (with_a_ratio, True),
        (by_a_call_that_is_not_there, False),
    ],
)
def test_a_ratio_is_reported_where_it_is_certain(body: Any, reported: bool) -> None:
    assert ("HF335" in hf.dataflow(body).check(dims={B: ROWS, R: TOKENS}).codes) is reported


def test_an_update_in_a_loop_is_reported_once() -> None:
    def body(prompts: Prompts, learner: Learner, other: Learner) -> None:
        for part in hf.minibatches(other.sample(prompts), 4) * 2:
            learner.update(part)

    assert hf.dataflow(body).check(dims={B: ROWS, R: TOKENS}).codes == ("HF335",)


@pytest.mark.parametrize("ratio", ["", 3, False])
def test_a_ratio_has_a_name(ratio: Any) -> None:
    with pytest.raises(DefinitionError, match=rf"HF120: writes\('policy'\): ratio= is a column, .* got {ratio!r}$"):
        hf.writes("policy", ratio=ratio)
