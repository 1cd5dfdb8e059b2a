"""Runs of OpenRLHF as runs of hfdsl: their samples against a simulation, and their dataflows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.interop.lowered_runs import to_toml
from tests.interop.lowering_runs import WITH_OTHER_POOLS, assert_the_same, of_openrlhf, plan_of, rows_of_steps
from tests.nightly import examples


@settings(max_examples=examples(10), deadline=None)
@given(
    parts=st.integers(1, 3),
    batch=st.integers(1, 3),
    group=st.sampled_from([2, 4]),
    epochs=st.integers(1, 2),
    ring=st.sampled_from([1, 2]),
    engine=st.sampled_from([1, 2, 4]),
    name=st.sampled_from(["gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo"]),
    where=st.sampled_from(["", "loss", "rewards"]),
    shared=st.booleans(),
    loss=st.sampled_from(["ppo", "gspo"]),
)
def test_the_samples_of_openrlhf_are_those_of_the_plan(
    tmp_path_factory: pytest.TempPathFactory,
    parts: int,
    batch: int,
    group: int,
    epochs: int,
    ring: int,
    engine: int,
    name: str,
    where: str,
    shared: bool,
    loss: str,
) -> None:
    prompts = 8 * parts * batch
    run = of_openrlhf(
        algo__advantage__estimator=name,
        algo__kl__init_coef=0.01 if where else 0,
        algo__kl__use_loss="" if where == "loss" else None,
        actor__policy_loss_type=loss,
        ds__ring_attn_size=ring,
        rollout__batch_size=prompts,
        rollout__n_samples_per_prompt=group,
        rollout__micro_batch_size=1,
        train__batch_size=8 * batch * group,
        train__micro_batch_size=1,
        train__max_epochs=epochs,
        train__colocate_all="" if shared else None,
        train__colocate_actor_ref="",
        vllm__num_engines=8 // engine,
        vllm__tensor_parallel_size=engine,
    )
    samples = [(prompt, sample) for prompt in range(prompts) for sample in range(group)]
    batches = [samples[start : start + 8 * batch * group] for start in range(0, len(samples), 8 * batch * group)]
    plan = plan_of(run)
    assert rows_of_steps(plan) == len(batches) * epochs
    assert (plan.mesh("actor").dp, plan.mesh("actor").tp) == (8 // ring, ring)
    roles = {role for group in plan.groups for role in group.roles}
    of_rewards = name in ("gae", "reinforce", "reinforce_baseline")
    others = {"critic": name == "gae", "reference": where == "loss" or (where == "rewards" and of_rewards),
              "sampler": not shared}  # fmt: skip
    assert roles == {"actor", "reward", *(role for role, is_there in others.items() if is_there)}
    assert_the_same(run, tmp_path_factory.mktemp("run"))


READY_OF_OPENRLHF: dict[str, tuple[dict[str, object], str]] = {
    "a KL term in the loss": ({"algo__kl__use_loss": ""}, "grpo:grpo"),
    "no reference": ({"algo__kl__init_coef": 0}, "grpo:grpo_without_reference"),
    "scores above the mean": (
        {"algo__kl__init_coef": 0, "algo__advantage__estimator": "dr_grpo"}, "dr_grpo:dr_grpo"),
    "a critic": (
        {"algo__advantage__estimator": "gae", "rollout__n_samples_per_prompt": 1, "rollout__batch_size": 512},
        "ppo:ppo"),
    "a reward model": (
        {"reward__remote_url": None, "reward__model_name_or_path": "my/reward"}, "grpo:grpo_without_reference"),
    "a queue": (
        {"algo__kl__use_loss": "", "train__async_enable": "", "train__colocate_all": None,
         "train__colocate_actor_ref": ""}, "asynchronous:async_grpo"),
    "dynamic batches": ({"train__dynamic_batch_enable": "", "algo__kl__use_loss": ""}, "grpo:grpo"),
}  # fmt: skip


@pytest.mark.parametrize("name", READY_OF_OPENRLHF)
def test_the_dataflow_of_openrlhf_is_the_ready_one_where_it_fits(name: str, tmp_path: Path) -> None:
    changes, dataflow = READY_OF_OPENRLHF[name]
    run = of_openrlhf(**changes)
    assert run.fields["algorithm"].value.endswith(dataflow)
    if name in WITH_OTHER_POOLS:
        assert_the_same(run, tmp_path)


def test_a_key_of_a_service_is_written_nowhere() -> None:
    text = to_toml(of_openrlhf(logger__wandb__key="0123secret"), "a run")
    assert "wandb" in text
    assert "secret" not in text
