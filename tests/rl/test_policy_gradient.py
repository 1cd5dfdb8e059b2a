"""Policy gradients with an optional reference: the numbers of the ready-made dataflows that are the same step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import pytest

import hfdsl as hf
from hfdsl.rl.dataflows.asynchronous import async_grpo
from hfdsl.rl.losses import Clip, ClippedValue, SequenceClip
from hfdsl.rl.policy_gradient import AdvantageName, async_without_critic, with_critic, without_critic
from hfdsl.rl.workers import Reference
from tests.nightly import NIGHTLY
from tests.rl.dataflows.programs import PROGRAMS, SIZES, Program, colocated, run
from tests.rl.dataflows.test_asynchronous import placed


@dataclass(frozen=True)
class General(Program):
    """One of the two general dataflows, with the options and roles of a ready one."""

    @property
    def general(self) -> hf.Dataflow[..., Any]:
        """The dataflow without a reference."""
        return with_critic if "critic" in self.roles else without_critic

    @property
    def plain(self) -> hf.Dataflow[..., Any]:
        """With its own options."""
        return self.general.given(reference=Reference) if "reference" in self.roles else self.general


OPTIONS: dict[str, dict[str, Any]] = {
    "grpo": {"group": 4, "updates": 2, "loss": Clip(0.2, kl=0.04, aggregation="sequence-mean-token-mean")},
    "gspo": {"group": 4, "updates": 2, "loss": SequenceClip(3e-4, 4e-4)},
    "dr_grpo": {**PROGRAMS["dr_grpo"].options, "updates": 2, "advantages": "centered"},
    "reinforce_plus_plus": {"group": 1, "updates": 2, "advantages": "returns", "kl": 0.01},
    "ppo": {
        "mini_batches": 2, "epochs": 2, "critic_mini_batches": 2, "critic_epochs": 2, "lam": 0.95, "kl": 0.05,
        "value_loss": ClippedValue(0.2),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS if NIGHTLY else ("ppo",))
def test_the_numbers_are_those_of_the_ready_dataflow(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = PROGRAMS[name]
    general = General(name, OPTIONS[name], ready.roles)
    monkeypatch.setattr(general.general.body, "__name__", name)  # random streams go by the name of the dataflow
    assert run(general, colocated(general), steps=1) == run(ready, colocated(ready), steps=1)


@pytest.mark.parametrize("advantages", get_args(AdvantageName))
def test_advantages_by_name(advantages: str) -> None:
    general = General("rloo", {"group": 4, "advantages": advantages}, ("actor", "reward"))
    assert not list(general.flow.check(colocated(general), SIZES))


@pytest.mark.parametrize("name", OPTIONS)
def test_the_plan_is_clean(name: str) -> None:
    general = General(name, OPTIONS[name], PROGRAMS[name].roles)
    assert not list(general.flow.check(colocated(general), SIZES))


def test_a_mini_batch_of_the_critic_may_have_another_size() -> None:
    options = {**OPTIONS["ppo"], "critic_mini_batches": 4, "critic_epochs": 1}
    general = General("ppo", options, PROGRAMS["ppo"].roles)
    labels = [node.label for node in general.flow.trace().nodes]
    assert [sum(label.startswith(f"{role}.update") for label in labels) for role in ("actor", "critic")] == [4, 4]


def test_with_a_queue_it_is_the_ready_dataflow_with_one() -> None:
    options: dict[str, Any] = {"group": 4, "updates": 2, "lag": 2, "loss": OPTIONS["grpo"]["loss"]}
    general, ready = async_without_critic.given(reference=Reference, **options), async_grpo.given(**options)
    labels = [sorted(node.label for node in flow.trace().nodes) for flow in (general, ready)]
    assert labels[0] == labels[1]
    assert not list(general.check(placed(general), SIZES))


def test_rewards_without_a_reference_are_scores() -> None:
    """RLOO without a KL term runs, and its first update is on-policy: nothing is clipped."""
    options = {"group": 4, "advantages": "leave-one-out", "loss": Clip(0.2)}
    general = General("rloo", options, ("actor", "reward"))
    [metrics] = run(general, colocated(general), steps=1)
    assert all(number == number for number in metrics)  # noqa: PLR0124  # not NaN
