"""Weights between the decode steps of an engine: a small engine, and vLLM, beside a loop in plain Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.errors import HfError
from hfdsl.protocols.call import Call, WeightLoads, in_call
from hfdsl.rl import workers as w
from hfdsl.rl.batches import Prompts, VersionedRollout
from hfdsl.rl.engines.handle import EngineHandle, Versioned
from hfdsl.rl.models.sharding import full_state_dict
from tests.rl.engines.fake import DIE, VOCABULARY, handle
from tests.rl.engines.test_vllm import LLAMA, TOLERANCE
from tests.rl.workers import tiny

CALL = Call(seed=1, step=0, node=0, rank=0, row_count=4, dataflow="test")
END, LENGTH = 50, 3
"""Of the small engine: the token that ends a response, and the most tokens."""


@pytest.fixture(scope="module")
def small(forked_engines: None) -> Iterator[EngineHandle]:
    engine = handle()
    engine.batch.steps = 1
    yield engine
    engine.process.close()


class Given:
    """Versions by decode step; the weight of each is its number."""

    def __init__(self, versions: Sequence[int], counter: int) -> None:
        self.versions, self.loaded, self.counter = versions, 0, counter

    def before(self, step: int, steps: int, beside: Sequence[tuple[WeightLoads, int]] = ()) -> int:
        if self.versions[step] != self.loaded:
            self.loaded, self.counter = self.versions[step], self.counter + 1
        return self.loaded

    def note(self, step: int, version: int) -> None:
        raise AssertionError("it is alone")

    def weights(self) -> Versioned:
        return Versioned(self.counter, lambda: [("model.weight", torch.tensor([float(self.loaded)]))])


def zero_weights() -> Versioned:
    return Versioned(1, lambda: [("model.weight", torch.zeros(1))])


def by_hand(lasts: Sequence[int], versions: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Token r of a row is its prompt's last one, plus the version that had arrived before step r, plus r."""
    rows, token_versions = list[list[int]](), list[list[int]]()
    for last in lasts:
        tokens = list[int]()
        for step in range(LENGTH):
            tokens.append((last + versions[step] + step) % VOCABULARY)
            if tokens[-1] == END:
                break
        rows.append(tokens)
        token_versions.append([versions[min(step, len(tokens) - 1)] for step in range(LENGTH)])
    return rows, token_versions


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(40, 50), min_size=1, max_size=4),
    st.lists(st.integers(1, 4), min_size=LENGTH, max_size=LENGTH).map(sorted),
)
def test_each_token_is_of_the_weights_that_had_arrived(
    small: EngineHandle, lasts: list[int], versions: list[int]
) -> None:
    loads = Given(versions, small.process.versions.get("weights", 0) + 1)
    ids = torch.tensor(lasts)[:, None]
    with in_call(replace(CALL, loads=loads)):
        sampled = small.sample_in_flight(ids, torch.ones_like(ids).bool(), loads.weights, greedy=True)
    tokens, expected = by_hand(lasts, versions)
    assert [row[real].tolist() for row, real in zip(sampled.response, sampled.mask, strict=True)] == tokens
    assert sampled.versions.tolist() == expected
    assert torch.equal(sampled.log_probs, -(sampled.response * sampled.mask).float())


def test_an_engine_that_dies_between_steps_loses_no_row_in_silence() -> None:
    engine, ids = handle(), torch.tensor([[DIE], [3]])
    try:
        with in_call(CALL), pytest.raises(HfError, match="HF954: engine 'vllm' died in 'step'"):
            engine.sample_in_flight(ids, torch.ones_like(ids).bool(), zero_weights, greedy=True)
    finally:
        engine.process.close()


vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; make vllm installs it")

WIDTH, RESPONSE = 6, 8
MODEL = w.ModelConfig(config=LLAMA, end_tokens=(tiny.END,))
GENERATION = w.GenerationConfig(RESPONSE, temperature=0.7, cache_tokens=4096, engine_deadline=300)
SCHEDULES = ((0, 0, 0, 1, 1, 2, 2, 2), (0, 1, 2, 3, 3, 3, 3, 3), (2, 2, 2, 2, 3, 3, 3, 3))


def questions() -> Prompts:
    ids = torch.randint(4, tiny.VOCABULARY, (4, WIDTH), generator=torch.Generator().manual_seed(3))
    mask = torch.arange(WIDTH) >= torch.tensor([0, 1, 2, 5])[:, None]
    return Prompts(ids=ids * mask, mask=mask, task=[{}] * 4)


@pytest.fixture(scope="module")
def learners() -> list[w.Actor]:
    """A policy of each version, which say different tokens."""
    torch.set_num_threads(1)
    actors = list[w.Actor]()
    for version in range(4):
        actor = w.Actor(w.ActorConfig(MODEL, replace(GENERATION, engine="plain"), tiny.TRAINING, tiny.FIXED))
        draw = torch.Generator().manual_seed(version)
        with torch.no_grad():
            for parameter in actor.policy.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.2 + (parameter.ndim == 1))
        actors.append(actor)
    return actors


@pytest.fixture(scope="module")
def sampler(forked_vllm_engines: None) -> w.InFlightSampler:
    role = w.InFlightSampler(w.SamplerConfig(MODEL, replace(GENERATION, engine="vllm")))
    role.copy.engine.batch.steps = 1  # type: ignore[attr-defined]  # an engine has one
    return role


class Arriving:
    """Weights that arrive before given decode steps."""

    def __init__(self, sampler: w.InFlightSampler, learners: Sequence[w.Actor], versions: Sequence[int]) -> None:
        self.sampler, self.learners, self.versions, self.loaded = sampler, learners, versions, -1

    def before(self, step: int, steps: int, beside: Sequence[tuple[WeightLoads, int]] = ()) -> int:
        if self.versions[step] != self.loaded:
            self.loaded = self.versions[step]
            self.sampler.load(full_state_dict(self.learners[self.loaded].policy))
        return self.loaded

    def note(self, step: int, version: int) -> None:
        raise AssertionError("it is alone")


def logits_of(learner: w.Actor, tokens: list[int]) -> torch.Tensor:
    """The logits of the token after these, by a pass of one version over all of them, without a cache."""
    policy = learner.policy
    ids = torch.tensor([tokens], device=next(policy.parameters()).device)
    with torch.no_grad():
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        logits: Any = policy.next_logits(ids, torch.ones_like(ids), positions, None)[0]
    return torch.as_tensor(logits[0])


@vllm
@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("versions", SCHEDULES)
def test_vllm_goes_on_with_the_weights_that_arrive(
    sampler: w.InFlightSampler, learners: list[w.Actor], versions: tuple[int, ...], greedy: bool
) -> None:
    """Versions are those of the steps, and log-probs those of a pass of that version over all tokens before.

    On a GPU a load waits for a step that has begun with the version before.
    """
    ahead = int(torch.cuda.is_available())
    prompts = questions()
    with in_call(replace(CALL, loads=Arriving(sampler, learners, versions))):
        rollout: VersionedRollout = sampler.generate(prompts, greedy=greedy)
    assert (rollout.token_versions.tensor[rollout.response_mask.tensor] > versions[0]).any()
    for row in range(4):
        tokens = prompts.ids.tensor[row][prompts.mask.tensor[row]].tolist()
        real = rollout.response_mask.tensor[row]
        count = int(real.sum())
        assert real[:count].all()
        token_versions = rollout.token_versions.tensor[row].tolist()
        for r, version in enumerate(token_versions[:count]):
            assert version in versions[max(r - ahead, 0) : r + 1]
        assert token_versions[count:] == [token_versions[count - 1]] * (RESPONSE - count)
        for r, token in enumerate(rollout.ids.tensor[row, WIDTH : WIDTH + count].tolist()):
            logits = logits_of(learners[token_versions[r]], tokens)
            if greedy:
                assert token == int(logits.argmax())
            expected = float(logits[token] - logits.logsumexp(-1))
            assert float(rollout.log_probs.tensor[row, r]) == pytest.approx(expected, abs=TOLERANCE)
            tokens.append(token)
