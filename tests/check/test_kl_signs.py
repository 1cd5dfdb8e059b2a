"""Signs of the KL to a reference on the way to a policy's advantages, on the ready functions."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check.repair.edits import apply
from hfdsl.check.rules.learning.kl_signs import KL_SIGNS, SIGNS
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl import functions
from hfdsl.rl.batches import (
    ActorMetrics,
    AdvantagesAndReturns,
    B,
    Costs,
    CriticMetrics,
    Experience,
    P,
    Prompts,
    R,
    ReferenceLogProbs,
    Rewards,
    Rollout,
    Scores,
    ValueExperience,
    Values,
)
from hfdsl.rl.dataflows.safe_rlhf import safe_rlhf
from hfdsl.rl.functions import (
    advantages_over,
    generalized_advantages,
    kl_penalized_costs,
    kl_penalized_rewards,
    normalized_returns,
    safe_advantages,
)
from hfdsl.rl.lagrangian import Multiplier
from hfdsl.rl.losses import Clip, ClippedValue
from hfdsl.rl.workers import Actor, Critic, LagrangeMultiplier, Reference, RewardModel
from tests.check.test_ready_roles import check, places

Kind = Literal["reward", "cost"]


def codes(flow: Dataflow[..., Any]) -> tuple[str, ...]:
    return report(flow).codes


def report(flow: Dataflow[..., Any]) -> hf.Report:
    roles = places()
    multiplier = hf.place(LagrangeMultiplier, Multiplier(), pool=hf.ResourcePool([1], name="multiplier"))
    roles |= {"cost": roles["reward"], "cost_critic": roles["critic"], "multiplier": multiplier}
    return check(flow, roles).without("HF602")  # a variant need not read all scores


@hf.function
def turned(rewards: Rewards) -> Rewards:
    return Rewards(rewards=-rewards.rewards.tensor)


@hf.dataflow
def without_critic(
    prompts: Prompts,
    actor: Actor,
    reference: Reference,
    reward: RewardModel,
    *,
    by: Literal["returns", "baseline"] = "returns",
    kind: Kind = "cost",
    kl: float = 0.05,
    turns: bool = False,
) -> ActorMetrics:
    rollout = actor.generate(prompts)
    ref, scores = reference.log_probs(rollout), reward.score(prompts, rollout)
    if kind == "reward":
        rewards = kl_penalized_rewards(rollout, ref, scores, kl=kl)
    else:
        rewards = kl_penalized_costs(rollout, ref, reward.cost(prompts, rollout), kl=kl)
    rewards = turned(rewards) if turns else rewards
    gains = normalized_returns(rollout, rewards) if by == "returns" else advantages_over(rollout, rewards, scores)
    return actor.update(hf.merge(Experience, rollout, gains), loss=Clip())


@pytest.mark.parametrize("by", ["returns", "baseline"])
def test_a_policy_does_not_learn_costs(by: Literal["returns", "baseline"]) -> None:
    [finding] = report(without_critic.given(by=by)).findings
    assert finding.code == "HF353"
    assert finding.message == (
        "'actor.update' learns to raise what 'kl_penalized_costs' returns: the policy is rewarded for its cost and for "
        "leaving the reference"
    )


@pytest.mark.parametrize("changes", [{"kind": "reward"}, {"kl": 0.0}, {"turns": True}], ids=str)
def test_rewards_and_costs_that_are_meant(changes: dict[str, Any]) -> None:
    assert codes(without_critic.given(**changes)) == ()


@hf.dataflow
def safe(
    prompts: Prompts,
    actor: Actor,
    critic: Critic,
    cost_critic: Critic,
    reference: Reference,
    reward: RewardModel,
    *,
    gains: Kind = "reward",
    harms: Kind = "cost",
) -> tuple[ActorMetrics, CriticMetrics, CriticMetrics]:
    rollout = actor.generate(prompts)
    ref, scores, costs = reference.log_probs(rollout), reward.score(prompts, rollout), reward.cost(prompts, rollout)
    values, cost_values = critic.values(rollout), cost_critic.values(rollout)
    advantages: dict[Kind, Any] = {
        "reward": generalized_advantages(rollout, kl_penalized_rewards(rollout, ref, scores), values),
        "cost": generalized_advantages(rollout, kl_penalized_costs(rollout, ref, costs), cost_values),
    }
    both = safe_advantages(advantages[gains], advantages[harms], 0.5)
    return (
        actor.update(hf.merge(Experience, rollout, both), loss=Clip()),
        critic.update(hf.merge(ValueExperience, rollout, values, advantages["reward"]), loss=ClippedValue()),
        cost_critic.update(hf.merge(ValueExperience, rollout, cost_values, advantages["cost"]), loss=ClippedValue()),
    )


def test_gains_and_harms_are_not_exchanged() -> None:
    assert codes(safe) == ()
    [crossed] = report(safe.given(gains="cost", harms="reward")).findings
    assert crossed.message == (
        "'safe_advantages' takes advantages of rewards for its 'harms' and those of costs for its 'gains': "
        "'actor.update' learns to raise the cost and the KL to the reference"
    )


@pytest.mark.parametrize("kind", ["reward", "cost"])
def test_beside_a_kl_of_the_right_sign_nothing_is_claimed(kind: Kind) -> None:
    """A multiplier below 1 leaves the sum of both with the sign of the gains' KL."""
    assert codes(safe.given(gains=kind, harms=kind)) == ()


@hf.dataflow
def charged_once(
    rollout: Rollout,
    ref: ReferenceLogProbs,
    scores: Scores,
    costs: Costs,
    before: Values,
    other: AdvantagesAndReturns,
    actor: Actor,
    *,
    as_gains: bool = True,
) -> ActorMetrics:
    """One KL in all, in the gains or in the harms."""
    if as_gains:
        gains, harms = generalized_advantages(rollout, kl_penalized_costs(rollout, ref, costs), before), other
    else:
        gains, harms = other, generalized_advantages(rollout, kl_penalized_rewards(rollout, ref, scores), before)
    return actor.update(hf.merge(Experience, rollout, safe_advantages(gains, harms, 0.5)), loss=Clip())


def test_the_only_kl_has_the_wrong_sign() -> None:
    [gains] = report(charged_once).findings
    assert gains.message == (
        "'actor.update' learns to raise what 'kl_penalized_costs' returns: the policy is rewarded for its cost and for "
        "leaving the reference"
    )
    [harms] = report(charged_once.given(as_gains=False)).findings
    assert harms.message == (
        "'actor.update' learns to lower what 'kl_penalized_rewards' returns: the policy is rewarded for leaving the "
        "reference"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered(Clip):
    """A loss of the user's, which may lower the advantages."""


class OwnActor(Actor):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy", ratio="log_probs")
    def avoid(self, experience: Experience) -> ActorMetrics:
        raise NotImplementedError


@hf.dataflow
def avoided(rollout: Rollout, ref: ReferenceLogProbs, costs: Costs, actor: OwnActor) -> ActorMetrics:
    harms = normalized_returns(rollout, kl_penalized_costs(rollout, ref, costs))
    return actor.avoid(hf.merge(Experience, rollout, harms))


@hf.dataflow
def avoided_by_a_loss(rollout: Rollout, ref: ReferenceLogProbs, costs: Costs, actor: Actor) -> ActorMetrics:
    harms = normalized_returns(rollout, kl_penalized_costs(rollout, ref, costs))
    return actor.update(hf.merge(Experience, rollout, harms), loss=Lowered())


@pytest.mark.parametrize("flow", [avoided, avoided_by_a_loss], ids=lambda flow: flow.__name__)
def test_updates_and_losses_of_the_user_may_turn_the_sign(flow: Dataflow[..., Any]) -> None:
    assert flow.check(None, {B: 8, P: 4, R: 4}).codes == ()


def test_safe_rlhf_is_safe() -> None:
    assert codes(safe_rlhf) == ()


@hf.dataflow
def crossed(
    prompts: Prompts, before: Values, actor: Actor, reference: Reference, reward: RewardModel
) -> tuple[ActorMetrics, AdvantagesAndReturns]:
    rollout = actor.generate(prompts)
    ref = reference.log_probs(rollout)
    first = generalized_advantages(rollout, kl_penalized_rewards(rollout, ref, reward.score(prompts, rollout)), before)
    second = generalized_advantages(rollout, kl_penalized_costs(rollout, ref, reward.cost(prompts, rollout)), before)
    both = safe_advantages(harms=first, gains=second, multiplier=0.5)
    return actor.update(hf.merge(Experience, rollout, both), loss=Clip()), both


def test_the_order_that_is_meant_is_an_edit() -> None:
    [finding] = report(crossed).findings
    [fix] = finding.fixes
    assert finding.help == ("swap what is wired to 'gains' and 'harms'",)
    text = apply(Path(__file__).read_text("utf-8"), fix.edits)
    assert "    both = safe_advantages(harms=second, gains=first, multiplier=0.5)\n" in text


# -- the signs themselves


MASK = torch.ones(2, 3, dtype=torch.bool)
IDS = torch.ones(2, 5, dtype=torch.int64)


def rollout_of(log_probs: torch.Tensor) -> Rollout:
    return Rollout(ids=IDS, mask=IDS > 0, response_mask=MASK, log_probs=log_probs)


@pytest.mark.parametrize("name", KL_SIGNS)
def test_a_penalty_moves_with_the_kl_as_stated(name: str) -> None:
    ref = ReferenceLogProbs(ref_log_probs=torch.zeros(2, 3))
    scores: Any = Scores(score=torch.ones(2)) if "rewards" in name else Costs(cost=torch.ones(2))
    near, far = (
        getattr(functions, name)(rollout_of(torch.full((2, 3), kl)), ref, scores, kl=0.5).rewards.tensor.sum()
        for kl in (0.0, 1.0)
    )
    assert (far - near).sign() == KL_SIGNS[name]


@pytest.mark.parametrize(("name", "port"), [(name, port) for name, ports in SIGNS.items() for port in ports])
def test_advantages_move_with_a_port_as_stated(name: str, port: str) -> None:
    def advantage(raised: float) -> torch.Tensor:
        """The advantage of the last token of the first response, where what the port takes is ``raised`` there."""
        rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0]])
        rewards[0, 2] += raised
        estimates = {
            other: AdvantagesAndReturns(advantage=rewards if other == port else MASK.float(), returns=MASK.float())
            for other in ("gains", "harms")
        }
        given: dict[str, Any] = {
            "sequences": rollout_of(torch.zeros(2, 3)),
            "rewards": Rewards(rewards=rewards),
            "values": Values(values=torch.zeros(2, 3)),
            "baseline": Scores(score=torch.zeros(2)),
            "multiplier": 0.5,
            "group": 2,
            **estimates,
        }
        function = getattr(functions, name)
        result = function(
            **{parameter: given[parameter] for parameter in signature(function).parameters if parameter in given}
        )
        tensor: torch.Tensor = result.advantage.tensor
        return tensor[0, -1]

    assert (advantage(0.5) - advantage(0.0)).sign() == SIGNS[name][port]


def test_every_ready_function_from_rewards_to_advantages_has_its_sign() -> None:
    takes = {
        name
        for name, function in vars(functions).items()
        if getattr(function, "__module__", "") == functions.__name__
        and "Rewards" in map(str, function.__annotations__.values())
        and function.__annotations__["return"] in ("Advantages", "AdvantagesAndReturns")
    }
    assert takes | {"safe_advantages"} == SIGNS.keys()
