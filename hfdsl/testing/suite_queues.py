"""The programs with queues of the conformance suite.

Numbers are whole, and small by a modulus, so that any order of additions gives the same bits. A model computes them in
plain Python from the decisions of the queue (``stream_model``).
"""

from __future__ import annotations

from typing import Any, Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, bool_, i64, register
from hfdsl.protocols.queueing import Late
from hfdsl.rl.batches import B, R

TOKENS = 4
"""The most tokens of an answer."""

MODULUS = 1009

FIRST_WEIGHT = 1
"""The learner's weight before its first update."""

UNSENT = -999
"""The weight of a sampler that was sent none."""


def next_token(token: int, weight: int) -> int:
    """The token after another one, or after the number of the question."""
    return (3 * token + weight) % MODULUS


def next_weight(weight: int, tokens: int) -> int:
    """The weight after an update on tokens of this sum."""
    return (weight + tokens) % MODULUS


def length_of(number: int) -> int:
    """The tokens of the answer to a question."""
    return TOKENS - number % 3


def is_kept(number: int) -> bool:
    """Whether the filter keeps the answers to a question."""
    return number % 3 != 1


class Questions(hf.Batch):
    """Questions by number."""

    number: i64[B]
    name: hf.Obj[str, B]


class Answers(hf.Batch):
    """An answer in a row, and the version of the weights that each token was sampled with."""

    number: i64[B]
    name: hf.Obj[str, B]
    tokens: i64[B, hf.Ragged[R]]
    versions: i64[B, hf.Ragged[R]]
    response_mask: bool_[B, hf.Ragged[R]]


class SuiteLearned(hf.Batch):
    """The rows of an update, with their versions and its own, as the call says them."""

    number: i64[B]
    name: hf.Obj[str, B]
    tokens: i64[B, hf.Ragged[R]]
    versions: i64[B, hf.Ragged[R]]
    unmasked: i64[B]
    from_version: i64[B]
    update: i64[B]


class SuiteWeights(hf.Batch):
    """The weight, and the number of updates behind it."""

    weight: hf.Metric[int, Literal["max"]]
    updates: hf.Metric[int, Literal["max"]]


class SuiteSampler(hf.Worker):
    """Samples with a copy of the weight, and takes another one between two tokens."""

    def __init__(self) -> None:
        self.weight, self.version = UNSENT, UNSENT

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, questions: Questions) -> Answers:
        """An answer to each question."""
        call, numbers = hf.current_call(), questions.number.tensor.tolist()
        last, versions = list(numbers), list[int]()
        tokens: list[list[int]] = [[] for _ in numbers]
        for step in range(TOKENS):
            call.take_weights(step, of=TOKENS)
            versions.append(self.version)
            last = [next_token(token, self.weight) for token in last]
            for row, token in zip(tokens, last, strict=True):
                row.append(token)
        lengths = list(map(length_of, numbers))
        return Answers(
            number=questions.number,
            name=questions.name,
            tokens=i64([torch.tensor(row[:length]) for row, length in zip(tokens, lengths, strict=True)]),
            versions=i64([torch.tensor(versions[:length]) for length in lengths]),
            response_mask=bool_([torch.ones(length, dtype=torch.bool) for length in lengths]),
        )

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", during="generate")
    def load(self, weights: SuiteWeights) -> None:
        """Take another weight."""
        self.weight, self.version = weights.weight.value, weights.updates.value

    def state(self) -> dict[str, int]:
        """The weight, and its version."""
        return {"weight": self.weight, "version": self.version}

    def load_state(self, state: dict[str, int]) -> None:
        """Load both."""
        self.weight, self.version = state["weight"], state["version"]


class SuiteLearner(hf.Worker):
    """Learns from unmasked tokens, those of all ranks; has a weight for each program, as all run on its processes."""

    def __init__(self) -> None:
        self.weight_of: dict[str, int] = {}
        self.updates_of: dict[str, int] = {}

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=4)
    def update(self, batch: Answers) -> SuiteLearned:
        """An update."""
        call, masks = hf.current_call(), batch.response_mask.rows
        learned = sum(int((row * mask).sum()) for row, mask in zip(batch.tokens.rows, masks, strict=True))
        total = int(self.axis("dp").all_reduce(torch.tensor(learned)))
        weight = self.weight_of.get(call.dataflow, FIRST_WEIGHT)
        self.weight_of[call.dataflow] = next_weight(weight, total)
        self.updates_of[call.dataflow] = self.updates_of.get(call.dataflow, 0) + 1
        row_versions = call.row_versions or (call.rows_version,) * len(batch)
        return SuiteLearned(
            number=batch.number,
            name=batch.name,
            tokens=batch.tokens,
            versions=batch.versions,
            unmasked=torch.tensor([int(mask.sum()) for mask in masks]),
            from_version=torch.tensor(row_versions),
            update=torch.full((len(batch),), call.version),
        )

    @register(Dispatch.ONE_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> SuiteWeights:
        """The weight for samplers."""
        program = hf.current_call().dataflow
        return SuiteWeights(weight=self.weight_of.get(program, FIRST_WEIGHT), updates=self.updates_of.get(program, 0))

    def state(self) -> dict[str, dict[str, int]]:
        """The weights, and the numbers of updates."""
        return {"weights": dict(self.weight_of), "updates": dict(self.updates_of)}

    def load_state(self, state: dict[str, dict[str, int]]) -> None:
        """Load both."""
        self.weight_of, self.updates_of = dict(state["weights"]), dict(state["updates"])


@hf.function
def solvable(answers: Answers) -> bool_[B]:
    """Whether the filter keeps a row."""
    return bool_(torch.tensor([is_kept(number) for number in answers.number.tensor.tolist()]))


def _trained(questions: Questions, sampler: SuiteSampler, learner: SuiteLearner, lag: int, late: Late) -> SuiteLearned:
    """Two answers to each question, which form a group, and a queue between the roles."""
    answers = sampler.generate(hf.repeat(questions, 2))
    learned = learner.update(hf.queue(answers, group=2, lag=lag, late=late))
    hf.sync(learner, sampler)
    return learned


@hf.dataflow
def lagged(questions: Questions, sampler: SuiteSampler, learner: SuiteLearner) -> SuiteLearned:
    """Whole steps wait in the queue."""
    return _trained(questions, sampler, learner, 2, "wait")


@hf.dataflow
def dropping(questions: Questions, sampler: SuiteSampler, learner: SuiteLearner) -> SuiteLearned:
    """Late groups are dropped."""
    return _trained(questions, sampler, learner, 1, "drop")


@hf.dataflow
def refilling(questions: Questions, sampler: SuiteSampler, learner: SuiteLearner) -> SuiteLearned:
    """Questions of late groups are dispatched again."""
    return _trained(questions, sampler, learner, 1, "refill")


@hf.dataflow
def masking(questions: Questions, sampler: SuiteSampler, learner: SuiteLearner) -> SuiteLearned:
    """Late groups are masked."""
    return _trained(questions, sampler, learner, 1, "mask")


@hf.dataflow
def filtering(questions: Questions, sampler: SuiteSampler, learner: SuiteLearner) -> SuiteLearned:
    """A filter of groups in front of the queue."""
    answers = sampler.generate(hf.repeat(questions, 2))
    kept = hf.filter(answers, solvable(answers), group=2)
    learned = learner.update(hf.queue(kept, group=2, lag=1, late="refill"))
    hf.sync(learner, sampler)
    return learned


@hf.dataflow
def arriving(questions: Questions, sampler: SuiteSampler, learner: SuiteLearner) -> SuiteLearned:
    """Weights arrive while answers are sampled."""
    answers = sampler.generate(hf.repeat(questions, 2))
    learned = learner.update(hf.queue(answers, group=2, lag=2, late="wait"))
    hf.sync(learner, sampler, during="generate")
    return learned


@hf.dataflow
def resuming(questions: Questions, sampler: SuiteSampler, learner: SuiteLearner) -> SuiteLearned:
    """As ``lagged``, to be saved with steps in the queue."""
    return _trained(questions, sampler, learner, 2, "wait")


@hf.dataflow
def resuming_groups(questions: Questions, sampler: SuiteSampler, learner: SuiteLearner) -> SuiteLearned:
    """As ``refilling``, to be saved with groups in the queue."""
    return _trained(questions, sampler, learner, 1, "refill")


def questions(step: int, count: int) -> Questions:
    """The batch of a step."""
    numbers = range(step * count, (step + 1) * count)
    return Questions(number=torch.tensor(list(numbers)), name=[f"question {number}" for number in numbers])


def learned(rows: list[dict[str, Any]]) -> SuiteLearned:
    """A result with these rows."""
    columns = {name: [row[name] for row in rows] for name in ("name", "tokens", "versions")}
    counts = {name: [row[name] for row in rows] for name in ("number", "unmasked", "from_version", "update")}
    return SuiteLearned(
        name=columns["name"],
        tokens=i64([torch.tensor(tokens) for tokens in columns["tokens"]]),
        versions=i64([torch.tensor(versions) for versions in columns["versions"]]),
        **{name: torch.tensor(numbers) for name, numbers in counts.items()},
    )
