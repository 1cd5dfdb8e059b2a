"""Dataflows with a queue: clean, stale by no more than their lag, and they learn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.plan.plan import StageOf
from hfdsl.protocols.queueing import DISCIPLINES, Late
from hfdsl.rl import workers as w
from hfdsl.rl.batches import ActorMetrics, B, Experience, Outcome, Prompts, ScoredRollout
from hfdsl.rl.dataflows.asynchronous import async_cispo, async_dapo, async_dapo_rounds, async_grpo, async_ppo
from hfdsl.rl.functions import group_advantages, length_penalized_scores, mixed, outcome, versions
from hfdsl.rl.losses import Clip
from hfdsl.rl.sampling import with_proximal
from hfdsl.runtime.decisions import from_lines
from hfdsl.testing.compare import first_difference
from tests.rl.dataflows.programs import ROLES, ROWS, SIZES
from tests.rl.workers.tiny import FIXED, GENERATION, MODEL, RESPONSE, prompts
from tests.runtime.stage_programs import GivenSeconds

FLOWS: dict[str, hf.Dataflow[..., Any]] = {
    "grpo": async_grpo.given(group=4),
    "ppo": async_ppo,
    "dapo": async_dapo.given(group=4, rows=16, updates=2, longest=RESPONSE, buffer=2),
    "cispo": async_cispo.given(group=4, updates=2),
}
ROUNDS = async_dapo_rounds.given(group=4, rows=16, updates=2, longest=RESPONSE, buffer=2)
SAMPLER = w.SamplerConfig(replace(MODEL, seed=77), GENERATION, batching=FIXED)  # begins with weights of its own
STEPS = {"grpo": 16, "ppo": 24, "dapo": 40, "cispo": 16}


def placed(flow: hf.Dataflow[..., Any], ranks: int = 1) -> hf.Deployment:
    trained, engines = (hf.ResourcePool([ranks], use_gpu=False, name=name) for name in ("trained", "engines"))
    roles = [role for role in flow.trace().roles if role != "sampler"]
    pools = {role: engines if role == "reward" else trained for role in roles}
    places = {role: hf.place(ROLES[role][0], *ROLES[role][1], pool=pools[role]) for role in roles}
    return hf.Deployment(**places, sampler=hf.place(w.Sampler, SAMPLER, pool=engines))


def stream(flow: hf.Dataflow[..., Any], steps: int) -> list[tuple[Any, ...]]:
    torch.set_num_threads(1)
    with flow.compile(placed(flow), SIZES).launch("local") as running:
        return list(running.stream(prompts(ROWS, step) for step in range(steps)))


@pytest.mark.parametrize("late", DISCIPLINES)
@pytest.mark.parametrize("name", FLOWS)
def test_checked_clean(name: str, late: Late) -> None:
    for decoupled in (True, False):
        flow = FLOWS[name].given(lag=8, late=late, decoupled=decoupled)
        report = flow.check(placed(flow, ranks=2), SIZES)
        if (name, late) == ("dapo", "refill"):  # hf.fill moves groups away from their prompts; dapo_rounds refills
            assert report.codes == ("HF765",)
            continue
        assert report.codes == ()
        assert [(queue.worst, queue.states) for queue in report.queues] == [(8, (("actor.policy", 8),))]
        assert flow.given(lag=9).check(placed(flow, ranks=2), SIZES).codes == ("HF749",)


def test_dapo_rounds_are_checked_clean() -> None:
    for decoupled in (True, False):
        flow = ROUNDS.given(lag=8, decoupled=decoupled)
        report = flow.check(placed(flow, ranks=2), SIZES)
        assert report.codes == ()
        assert [(queue.worst, queue.states) for queue in report.queues] == [(8, (("actor.policy", 8),))]
        assert flow.given(lag=9).check(placed(flow, ranks=2), SIZES).codes == ("HF749",)
        assert flow.given(lag=1).check(placed(flow, ranks=2), SIZES).codes == ("HF745",), "groups leave one by one"


@pytest.mark.parametrize("name", ["grpo", pytest.param("ppo", marks=pytest.mark.nightly)])
def test_a_step_is_sampled_as_many_updates_ago_as_the_lag(name: str) -> None:
    """The sampler has the actor's kernels, so that a gap between their log-probs is one of weights.

    It begins with other weights, and samples with the actor's from the first step on.
    """
    flow = FLOWS[name].given(lag=2)
    gaps = [_metrics(step).engine_gap.value for step in stream(flow, 4)]
    assert gaps[0] == 0
    assert all(gap > 0 for gap in gaps[2:])


@pytest.mark.parametrize("decoupled", [True, False])
def test_a_loss_without_a_correction_needs_the_ratio_to_the_sampler(decoupled: bool) -> None:
    flow = FLOWS["grpo"].given(decoupled=decoupled, loss=Clip(0.2, correction=None))
    report = flow.check(placed(flow), SIZES)
    assert report.codes == (("HF750",) if decoupled else ())
    assert ("the loss Clip does not weight by the log-probs of sampling" in str(report)) == decoupled


@hf.corrects("policy", lag=8)
@dataclass(frozen=True, slots=True)
class OnlyAsLate(Clip):
    """Learns from the rows that are so many updates old, and from no others."""

    updates: int = 0

    def staleness_weights(self, staleness: torch.Tensor) -> torch.Tensor:
        return (staleness == self.updates).float()


@hf.dataflow
def versioned(
    prompts: Prompts,
    actor: w.Actor,
    reward: w.Reward,
    sampler: w.Sampler,
    *,
    lag: int | None = 2,
    late: Late | None = "wait",
    updates: int = 0,
    columns: bool = True,
) -> ActorMetrics:
    """GRPO on the versions of its rows."""
    questions = hf.repeat(prompts, 4)
    rollout = sampler.generate(questions)
    batch = hf.queue(hf.merge(ScoredRollout, rollout, reward.score(questions, rollout)), group=4, lag=lag, late=late)
    more = [versions(batch)] if columns else []
    experience = hf.merge(Experience, batch, group_advantages(batch, batch, group=4), *more)
    metrics = actor.update(experience, loss=OnlyAsLate(0.2, updates=updates))
    hf.sync(actor, sampler)
    return metrics


@pytest.mark.parametrize(("updates", "columns"), [(0, True), (2, True), (2, False)])
def test_a_loss_reads_the_staleness_of_its_rows(updates: int, columns: bool) -> None:
    with versioned.given(updates=updates, columns=columns).compile(placed(versioned), SIZES).launch("local") as running:
        metrics = list(running.stream(prompts(ROWS, step) for step in range(4)))
    norms = [step.grad_norm.value for step in metrics]
    assert [norm > 0 for norm in norms] == [updates == min(step, 2) for step in range(4)]


def _metrics(step: tuple[Any, ...]) -> ActorMetrics:
    [metrics] = [record for record in step if isinstance(record, ActorMetrics)]
    return metrics


@pytest.mark.nightly
@pytest.mark.parametrize("lag", [1, 8])
@pytest.mark.parametrize("name", FLOWS)
def test_the_score_rises(name: str, lag: int) -> None:
    steps = stream(FLOWS[name].given(lag=lag), STEPS[name])
    scores = [record.score.value for step in steps for record in step if isinstance(record, Outcome)]
    assert sum(scores[-2:]) / 2 > scores[0] + 0.1


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "late"), [("grpo", "drop"), ("grpo", "refill"), ("grpo", "mask"), ("ppo", "refill"), ("cispo", "drop")]
)
def test_the_score_rises_although_groups_are_late(name: str, late: Late, tmp_path: Path) -> None:
    """One rank of the sampler takes twice as long as the other, and no actor waits for it in a sync."""
    torch.set_num_threads(1)
    flow = FLOWS[name].given(lag=2, late=late)
    plan = flow.compile(placed(flow, ranks=2), SIZES, optimize=hf.Optimize(direct=False))
    seconds: dict[str, Any] = {"sampler.generate": GivenSeconds([(4.0, 2.0)])}
    seconds |= {step.label: 0.5 for step in plan.steps if step.label.startswith("actor.update")}
    batches = (prompts(ROWS, step) for step in range(2 * STEPS[name]))
    with plan.launch("local") as running:
        steps = list(running.stream(batches, log=tmp_path / "log", seconds=seconds))
    scores = [record.score.value for step in steps for record in step if isinstance(record, Outcome)]
    assert sum(scores[-2:]) / 2 > scores[0] + 0.1
    decisions = from_lines((tmp_path / "log").read_text())
    assert any(decision.kind == "drop" or decision.masked for decision in decisions)


@hf.dataflow
def dapo_sampling(
    prompts: Prompts, actor: w.Actor, reward: w.Reward, sampler: w.Sampler, *, group: int = 4
) -> ScoredRollout:
    """One round of dynamic sampling."""
    questions = hf.repeat(prompts, group)
    rollout = sampler.generate(questions)
    sampled = hf.merge(ScoredRollout, rollout, reward.score(questions, rollout))
    return hf.filter(sampled, mixed(sampled, group=group).keep, group=group)


@hf.dataflow
def dapo_learning(
    batch: ScoredRollout, actor: w.Actor, sampler: w.Sampler, *, group: int = 4, updates: int = 2
) -> tuple[ActorMetrics, Outcome]:
    """The updates on a full batch."""
    shaped = length_penalized_scores(batch, batch, longest=RESPONSE, buffer=2)
    experience = hf.merge(Experience, with_proximal(batch, actor), group_advantages(batch, shaped, group=group))
    loss = Clip(0.2, 0.28, aggregation="token-mean")
    metrics = [actor.update(part, loss=loss) for part in hf.minibatches(experience, updates)]
    hf.sync(actor, sampler)
    return metrics[-1], outcome(batch, batch)


def test_dapo_rounds_without_a_lag_are_rounds_and_updates_in_turn() -> None:
    """One prompt a dispatch, so that as many are dispatched for an update as a loop of rounds samples."""
    torch.set_num_threads(1)
    flow = async_dapo_rounds.given(group=4, rows=8, updates=2, longest=RESPONSE, buffer=2, lag=0)
    pool, batches = hf.ResourcePool([1], use_gpu=False, name="all"), [prompts(1, step) for step in range(12)]
    roles = {role: hf.place(ROLES[role][0], *ROLES[role][1], pool=pool) for role in ("actor", "reward")}
    deployment = hf.Deployment(**roles, sampler=hf.place(w.Sampler, replace(SAMPLER, model=MODEL), pool=pool))
    with flow.compile(deployment, SIZES | {B: 1}).launch("local") as running:
        results = list(running.stream(batches))
    expected, selected, empty = list[Any](), list[ScoredRollout](), 0
    sampling = dapo_sampling.compile(deployment, SIZES | {B: 1})
    sampling = replace(sampling, stage_of=StageOf(flow.trace().name, 0, 0))  # the random streams of the dataflow
    with sampling.launch("local") as running, running.also(dapo_learning.compile(deployment, SIZES | {B: 8})) as update:
        for batch in batches:
            selected.append(running.step(batch))
            empty += not len(selected[-1])
            if sum(map(len, selected)) == 8:
                expected.append(update.step(ScoredRollout.__hf_concat__(selected)))
                selected = []
    assert len(results) > 1
    assert empty, "some groups are dropped"
    assert first_difference(expected, results) is None


@pytest.mark.nightly
def test_dapo_rounds_learn_from_batches_of_other_versions() -> None:
    steps = stream(ROUNDS.given(lag=8), 120)
    scores = [record.score.value for step in steps for record in step if isinstance(record, Outcome)]
    assert sum(scores[-2:]) / 2 > scores[0] + 0.1
