"""Losses beside engines that are not the trainer's: which updates are reported, on every way to the loss."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.protocols import role_facts
from hfdsl.rl import workers as w
from hfdsl.rl.batches import ActorMetrics, Advantages, B, Experience, P, Prompts, R, Rollout
from hfdsl.rl.functions import group_advantages, with_log_probs
from hfdsl.rl.losses import Clip, PolicyLoss, Reinforce, SequenceClip

MODEL = w.ModelConfig(path="model")
GENERATION = w.GenerationConfig(8)
POOL = hf.ResourcePool([4], name="pool")
NONE: dict[str, Any] = {"correction": None}


class Learner(w.Actor):
    """An actor whose own generation is that of another engine, and which gives the log-probs of both."""

    samples_with = staticmethod(lambda config: "vllm")


class Engine(w.Sampler):
    samples_with = staticmethod(lambda config: "vllm")


class Other(w.Sampler):
    """A frozen policy behind another engine, whose weights are nobody's."""

    samples_with = staticmethod(lambda config: "vllm")

    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts, *, greedy: bool = False) -> Rollout: ...  # type: ignore[empty-body]


@hf.function(rows=hf.GroupedBy("group"))
def weighted_advantages(rollout: Rollout, *, group: int) -> Advantages: ...  # type: ignore[empty-body]  # reads engine_log_probs


@hf.dataflow
def of_a_sampler(
    prompts: Prompts,
    actor: w.Actor,
    sampler: w.Sampler,
    reward: w.Reward,
    *,
    recomputed: bool = True,
    synced: bool = True,
    own: bool = False,
    loss: PolicyLoss = Clip(),
) -> ActorMetrics:
    if synced:
        hf.sync(actor, sampler)
    questions = hf.repeat(prompts, 4)
    rollout = sampler.generate(questions)
    trained = with_log_probs(rollout, actor.log_probs(rollout)) if recomputed else rollout
    if own:
        advantages = weighted_advantages(trained, group=4)
    else:
        advantages = group_advantages(rollout, reward.score(questions, rollout), group=4)
    parts = hf.minibatches(hf.merge(Experience, trained, advantages), 2)
    return [actor.update(part, loss=loss) for part in parts][-1]


@hf.dataflow
def of_the_actor(prompts: Prompts, actor: w.Actor, reward: w.Reward, *, loss: PolicyLoss = Clip()) -> ActorMetrics:
    questions = hf.repeat(prompts, 4)
    rollout = actor.generate(questions)
    advantages = group_advantages(rollout, reward.score(questions, rollout), group=4)
    return actor.update(hf.merge(Experience, rollout, advantages), loss=loss)


def is_reported(flow: Any, **kinds: type[hf.Worker]) -> bool:
    configs: dict[type[hf.Worker], Any] = {
        w.Actor: w.ActorConfig(MODEL, GENERATION),
        w.Sampler: w.SamplerConfig(MODEL, GENERATION),
        w.Verifier: w.VerifierConfig(function="math:fsum"),
    }
    places: dict[str, Any] = {
        role: hf.place(kind, next(config for base, config in configs.items() if issubclass(kind, base)), pool=POOL)
        for role, kind in {"actor": w.Actor, "reward": w.Verifier, **kinds}.items()
    }
    return "HF943" in flow.check(hf.Deployment(**places), {B: 64, P: 8, R: 8}).codes


@pytest.mark.parametrize("loss", [Clip(), SequenceClip(), Reinforce()])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("recomputed", [False, True])
def test_an_update_is_reported_where_neither_ratio_nor_correction_sees_the_engine(
    loss: PolicyLoss, corrected: bool, recomputed: bool
) -> None:
    loss = loss if corrected else type(loss)(**NONE)
    accounted = corrected if recomputed else not isinstance(loss, Reinforce)
    assert is_reported(of_a_sampler.given(loss=loss, recomputed=recomputed), sampler=Engine) is not accounted
    assert not is_reported(of_a_sampler.given(loss=loss, recomputed=recomputed), sampler=w.Sampler)


@pytest.mark.parametrize("loss", [Clip(), SequenceClip(), Reinforce()])
def test_an_actor_that_samples_with_another_engine_needs_a_correction(loss: PolicyLoss) -> None:
    assert is_reported(of_the_actor.given(loss=type(loss)(**NONE)), actor=Learner)
    assert not is_reported(of_the_actor.given(loss=loss), actor=Learner)
    assert not is_reported(of_the_actor.given(loss=type(loss)(**NONE)), actor=w.Actor)


def test_ambiguous_programs_are_silent() -> None:
    uncorrected = Clip(**NONE)
    frozen = of_a_sampler.given(loss=uncorrected, synced=False)
    assert not is_reported(frozen, sampler=Other)  # data of another policy
    assert not is_reported(of_a_sampler.given(loss=uncorrected, own=True), sampler=Engine)  # a correction of one's own
    assert "HF943" not in of_a_sampler.given(loss=uncorrected).check().codes  # no deployment, so no engine is known


@pytest.mark.parametrize("engine", get_args(get_type_hints(w.GenerationConfig)["engine"]))
def test_ready_roles_declare_every_engine_that_is_not_the_trainers(engine: Any) -> None:
    generation = w.GenerationConfig(8, engine=engine)
    expected = engine if engine == "vllm" else None
    pool = hf.ResourcePool([1])
    actor = hf.place(w.Actor, w.ActorConfig(MODEL, generation), pool=pool)
    sampler = hf.place(w.Sampler, w.SamplerConfig(MODEL, generation), pool=pool)
    assert role_facts.samples_with.of(actor) == role_facts.samples_with.of(sampler) == expected
