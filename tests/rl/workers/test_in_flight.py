"""Weights between tokens: a sampler against a loop in plain Python over an explicit list of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import WiringError
from hfdsl.protocols.call import Call, WeightLoads, in_call
from hfdsl.protocols.state import not_in_flight
from hfdsl.rl import workers as w
from hfdsl.rl.batches import (
    ActorMetrics,
    Experience,
    Outcome,
    Prompts,
    VersionedScoredRollout,
)
from hfdsl.rl.functions import group_advantages, outcome
from hfdsl.rl.losses import Clip
from hfdsl.rl.models.generation import sample
from hfdsl.tools.plan_json import plan_as_dict
from hfdsl.tools.scene import scene
from tests.nightly import examples
from tests.rl.dataflows.programs import ROLES, ROWS, SIZES
from tests.rl.workers.tiny import FIXED, GENERATION, MODEL, PROMPT, RESPONSE, prompts

PLAIN = replace(GENERATION, engine="plain")
SAMPLER = w.SamplerConfig(replace(MODEL, seed=77), PLAIN, batching=FIXED)
WEIGHTS = [
    {
        name: weight.clone()
        for name, weight in w.Actor(w.ActorConfig(replace(MODEL, seed=seed), PLAIN)).weights().items()
    }
    for seed in (5, 6, 7, 8)
]
CALL = Call(seed=1, step=0, node=0, rank=0, row_count=3, dataflow="test")


class Given:
    """Weights that arrive before given decode steps."""

    def __init__(self, sampler: w.InFlightSampler, versions: Sequence[int]) -> None:
        self.sampler, self.versions, self.loaded = sampler, versions, -1

    def before(self, step: int, steps: int, beside: Sequence[tuple[WeightLoads, int]] = ()) -> int:
        assert steps == len(self.versions)
        if self.versions[step] != self.loaded:
            self.loaded = self.versions[step]
            self.sampler.load(WEIGHTS[self.loaded])
        return self.loaded

    def note(self, step: int, version: int) -> None:
        raise AssertionError("it is alone")


@cache
def _policies() -> list[w.Sampler]:
    policies = [w.Sampler(SAMPLER) for _ in WEIGHTS]
    for policy, weights in zip(policies, WEIGHTS, strict=True):
        policy.load(weights)
    return policies


def decoded(given_versions: Sequence[int], questions: Prompts) -> Mapping[str, torch.Tensor]:
    """The columns of the responses: each token by a pass of its own weights over all tokens before it."""
    policies = _policies()
    with in_call(replace(CALL)):
        uniforms = hf.current_call().uniforms(RESPONSE)
    rows = len(questions)
    tokens, versions = torch.zeros(rows, RESPONSE).long(), torch.zeros(rows, RESPONSE).long()
    real, log_probs = torch.zeros(rows, RESPONSE).bool(), torch.zeros(rows, RESPONSE)
    for row in range(rows):
        prompt = questions.ids.tensor[row][questions.mask.tensor[row]].tolist()
        ended = False
        for r in range(RESPONSE):
            version = given_versions[(row // 2) * RESPONSE + r]
            if ended:
                continue
            copy: Any = policies[version].copy
            ids = torch.tensor([[*prompt, *tokens[row, :r].tolist()]])
            with torch.no_grad():
                logits, _ = copy.policy.next_logits(ids, torch.ones_like(ids), torch.arange(ids.shape[1])[None], None)
            token = int(sample(logits, uniforms[row : row + 1, r]))
            tokens[row, r], versions[row, r], real[row, r] = token, version, True
            log_probs[row, r] = logits[0, token] - logits[0].logsumexp(-1)
            ended = token in (MODEL.end_tokens or ())
    return {"tokens": tokens, "versions": versions, "real": real, "log_probs": log_probs}


@settings(max_examples=examples(4), deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2 * RESPONSE, max_size=2 * RESPONSE).map(sorted), st.integers(0, 9))
def test_every_token_is_sampled_by_the_weights_that_had_arrived(versions: list[int], seed: int) -> None:
    sampler, questions = w.InFlightSampler(SAMPLER), prompts(3, seed)
    with in_call(replace(CALL, loads=Given(sampler, versions))):
        rollout = sampler.generate(questions)
    expected = decoded(versions, questions)
    real = rollout.response_mask.tensor
    assert torch.equal(real, expected["real"])
    assert torch.equal(rollout.ids.tensor[:, PROMPT:] * real, expected["tokens"])
    assert torch.equal(rollout.token_versions.tensor[real], expected["versions"][real])
    torch.testing.assert_close(rollout.log_probs.tensor, expected["log_probs"], rtol=0, atol=2e-6)


def test_without_weights_in_flight_responses_are_those_of_a_sampler() -> None:
    rollouts = list[Any]()
    for role in (w.Sampler, w.InFlightSampler):
        sampler = role(SAMPLER)
        sampler.load(WEIGHTS[0])
        with in_call(replace(CALL, version=4)):
            rollouts.append(sampler.generate(prompts(3)))
    between, in_flight = rollouts
    assert torch.equal(in_flight.ids.tensor, between.ids.tensor)
    assert in_flight.token_versions.tensor.eq(4).all()
    torch.testing.assert_close(in_flight.log_probs.tensor, between.log_probs.tensor, rtol=0, atol=2e-6)


def test_an_engine_that_samples_whole_responses_is_refused() -> None:
    with pytest.raises(WiringError, match='HF753: InFlightSampler: engine="captured" samples whole responses'):
        w.InFlightSampler(replace(SAMPLER, generation=replace(PLAIN, engine="captured")))


def test_a_sampler_of_whole_responses_leads_to_the_one_that_takes_weights_in_flight() -> None:
    why = "its 'load' does not declare that it may run between the tokens of 'generate'"
    assert not_in_flight(w.Sampler, "load", "generate") == f"{why}; that of its subclass InFlightSampler does"
    assert not_in_flight(w.InFlightSampler, "load", "generate") is None


def test_an_engine_of_several_ranks_or_with_an_adapter_apart_is_refused() -> None:
    vllm = replace(SAMPLER, generation=replace(PLAIN, engine="vllm"))
    assert w.InFlightSampler.in_flight_obstacle(vllm) is None
    shared = replace(vllm, generation=replace(vllm.generation, engine_tp=2))
    assert "engine_tp=2 makes ranks share an engine" in str(w.InFlightSampler.in_flight_obstacle(shared))
    adapted = replace(vllm, lora=w.Lora(rank=2))
    assert 'adapter="merged" sends all weights' in str(w.InFlightSampler.in_flight_obstacle(adapted))
    merged = replace(adapted, generation=replace(vllm.generation, adapter="merged"))
    assert w.InFlightSampler.in_flight_obstacle(merged) is None


@hf.dataflow
def grpo_in_flight(
    prompts: Prompts, actor: w.Actor, reward: w.Reward, sampler: w.InFlightSampler, *, lag: int = 2
) -> tuple[ActorMetrics, Outcome]:
    """GRPO with weights that reach the sampler between tokens."""
    questions = hf.repeat(prompts, 4)
    rollout = sampler.generate(questions)
    sampled = hf.merge(VersionedScoredRollout, rollout, reward.score(questions, rollout))
    batch = hf.queue(sampled, group=4, lag=lag, late="wait")
    experience = hf.merge(Experience, batch, group_advantages(batch, batch, group=4))
    metrics = actor.update(experience, loss=Clip(0.2))
    hf.sync(actor, sampler, during="generate")
    return metrics, outcome(batch, batch)


def placed(config: w.SamplerConfig = SAMPLER, mesh: hf.Mesh | None = None, ranks: int = 1) -> hf.Deployment:
    trained, engines = hf.ResourcePool([1], use_gpu=False), hf.ResourcePool([ranks], use_gpu=False, name="engines")
    scored = hf.ResourcePool([1], use_gpu=False, name="scored")
    return hf.Deployment(
        actor=hf.place(ROLES["actor"][0], *ROLES["actor"][1], pool=trained),
        reward=hf.place(ROLES["reward"][0], *ROLES["reward"][1], pool=scored),
        sampler=hf.place(w.InFlightSampler, config, pool=engines, mesh=mesh),
    )


def test_the_check_takes_a_sampler_between_tokens_where_it_can() -> None:
    report = grpo_in_flight.check(placed(), dims=SIZES)
    assert report.codes == ()
    assert [queue.states for queue in report.queues] == [(("actor.policy", 2),)]
    assert grpo_in_flight.given(lag=9).check(placed(), dims=SIZES).codes == ("HF749",)
    captured = replace(SAMPLER, generation=replace(PLAIN, engine="captured"))
    refused = grpo_in_flight.check(placed(captured), dims=SIZES)
    assert "role 'sampler' cannot take weights during 'generate': engine=\"captured\" samples whole" in str(refused)
    assert "HF753" in refused.codes
    assert "HF753" in grpo_in_flight.check(placed(mesh=hf.Mesh(tp=2), ranks=2), dims=SIZES).codes
    wider = replace(MODEL, config={**(MODEL.config or {}), "intermediate_size": 96})
    assert "HF732" in grpo_in_flight.check(placed(replace(SAMPLER, model=wider)), dims=SIZES).codes


def test_a_plan_says_which_values_have_versions_per_token() -> None:
    plan = grpo_in_flight.compile(placed(), SIZES)
    for text in (str(plan), str(scene(plan))):
        assert "policy@[v-2, v] per token" in text
        assert ", during generate" in text
    described = plan_as_dict(plan)
    assert [step["label"] for step in described["steps"] if step.get("during") == "generate"] == ["sampler.load"]
    labels = {step["node"]: step["label"] for step in described["steps"]}
    assert {labels[edge["source"]] for edge in described["edges"] if edge.get("versions_per_token")} == {
        "sampler.generate"
    }


@hf.corrects("policy", lag=8)
@dataclass(frozen=True, slots=True)
class NewTokens(Clip):
    """Learns from tokens of the newest weights alone."""

    def staleness_weights(self, staleness: torch.Tensor) -> torch.Tensor:
        return (staleness == 0).float()


def run(lag: int, steps: int, **seconds: float) -> list[tuple[float, float]]:
    torch.set_num_threads(1)
    with grpo_in_flight.given(lag=lag).compile(placed(), SIZES).launch("local") as running:
        results = running.stream((prompts(ROWS, step) for step in range(steps)), seconds=seconds)
        return [(metrics.grad_norm.value, scores.score.value) for metrics, scores in results]


def test_a_loss_reads_the_versions_of_tokens() -> None:
    loss = NewTokens(0.2)
    experience = {name: torch.randn(2, 3) for name in ("log_probs", "old_log_probs", "advantages")}
    mask = torch.ones(2, 3, dtype=torch.bool)
    staleness = torch.tensor([[1, 1, 0], [2, 0, 0]])
    terms = loss(**experience, mask=mask, staleness=staleness)
    assert (terms.loss != 0).tolist() == (staleness == 0).tolist()


@pytest.mark.nightly
@pytest.mark.parametrize("lag", [1, 4])
def test_it_learns_with_weights_in_flight(lag: int) -> None:
    seconds = {"sampler.generate": 5.0, "actor.update": 2.0}
    scores = [score for _, score in run(lag, 16, **seconds)]
    assert sum(scores[-2:]) / 2 > scores[0] + 0.1
