"""Runs of NeMo-RL as runs of hfdsl: their rows against a simulation, and their dataflows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.interop.lowering_runs import WITH_OTHER_POOLS, assert_the_same, of_nemo_rl, plan_of, rows_of_steps
from tests.nightly import examples

GENERATION, COLOCATED = "policy__generation__", "policy__generation__colocated__"


@settings(max_examples=examples(10), deadline=None)
@given(
    parts=st.integers(1, 3),
    batch=st.integers(1, 3),
    samples=st.sampled_from([2, 4]),
    width=st.sampled_from([1, 2, 4]),
    engine=st.sampled_from([1, 2, 4]),
    apart=st.booleans(),
    penalty=st.sampled_from([0, 0.01]),
    normalized=st.booleans(),
    backend=st.sampled_from(["dtensor", "megatron"]),
    queued=st.booleans(),
)
def test_the_rows_of_nemo_rl_are_those_of_the_plan(
    tmp_path_factory: pytest.TempPathFactory,
    parts: int,
    batch: int,
    samples: int,
    width: int,
    engine: int,
    apart: bool,
    penalty: float,
    normalized: bool,
    backend: str,
    queued: bool,
) -> None:
    prompts, megatron = 16 * parts * batch, backend == "megatron"
    run = of_nemo_rl(
        cluster__num_nodes=2,
        grpo__num_prompts_per_step=prompts,
        grpo__num_generations_per_prompt=samples,
        grpo__adv_estimator__use_leave_one_out_baseline=apart,
        grpo__adv_estimator__normalize_rewards=normalized,
        grpo__async_grpo__enabled=queued,
        loss_fn__use_importance_sampling_correction=queued,
        loss_fn__reference_policy_kl_penalty=penalty,
        policy__train_global_batch_size=16 * batch * samples,
        policy__train_micro_batch_size=1,
        policy__megatron_cfg__enabled=megatron,
        policy__dtensor_cfg__enabled=not megatron,
        policy__dtensor_cfg__tensor_parallel_size=1 if megatron else width,
        policy__megatron_cfg__tensor_model_parallel_size=width,
        policy__generation__vllm_cfg__tensor_parallel_size=engine,
        policy__generation__vllm_cfg__async_engine=queued,
        policy__generation__colocated__enabled=not queued,
        policy__generation__colocated__resources__num_nodes=1,
        policy__generation__colocated__resources__gpus_per_node=8,
    )
    rows = [(prompt, sample) for prompt in range(prompts) for sample in range(samples)]
    steps = [rows[start : start + 16 * batch * samples] for start in range(0, len(rows), 16 * batch * samples)]
    plan = plan_of(run)
    assert rows_of_steps(plan) == len(steps)
    mesh, gpus = plan.mesh("actor"), 8 if queued else 16
    assert (mesh.world_size, mesh.dp, mesh.tp) == (gpus, gpus // width, width)
    roles = {role for group in plan.groups for role in group.roles}
    others = {"reference": penalty > 0, "sampler": queued}
    assert roles == {"actor", "reward", *(role for role, is_there in others.items() if is_there)}
    if queued:
        assert plan.mesh("sampler").dp * engine == 8
    assert_the_same(run, tmp_path_factory.mktemp("run"))


READY_OF_NEMO_RL: dict[str, tuple[dict[str, object], str]] = {
    "the library's own": ({}, "policy_gradient:without_critic"),
    "a baseline with the response itself": (
        {"grpo__adv_estimator__use_leave_one_out_baseline": "false"}, "grpo:grpo"),
    "no reference": (
        {"grpo__adv_estimator__use_leave_one_out_baseline": "false", "loss_fn__reference_policy_kl_penalty": 0},
        "grpo:grpo_without_reference"),
    "scores above the mean": (
        {"grpo__adv_estimator__use_leave_one_out_baseline": "false", "grpo__adv_estimator__normalize_rewards": "false",
         "loss_fn__reference_policy_kl_penalty": 0}, "dr_grpo:dr_grpo"),
    "ratios of sequences": (
        {"grpo__adv_estimator__use_leave_one_out_baseline": "false", "loss_fn__reference_policy_kl_penalty": 0,
         "loss_fn__sequence_level_importance_ratios": "true", "loss_fn__token_level_loss": "false"}, "gspo:gspo"),
    "clipped weights": ({"loss_fn__use_cispo": "true"}, "policy_gradient:without_critic"),
    "GPUs for sampling": (
        {f"{COLOCATED}enabled": "false", f"{COLOCATED}resources__gpus_per_node": 4}, "policy_gradient:without_critic"),
    "a reward model": (
        {"data__default__env_name": "reward_model", "++env__reward_model__model_name": "my/reward",
         "++env__reward_model__resources__gpus_per_node": 2, "++env__reward_model__resources__num_nodes": 1,
         "policy__dtensor_cfg__tensor_parallel_size": 3, "policy__train_global_batch_size": 512},
        "policy_gradient:without_critic"),
}  # fmt: skip


@pytest.mark.parametrize("name", READY_OF_NEMO_RL)
def test_the_dataflow_of_nemo_rl_is_the_ready_one_where_it_fits(name: str, tmp_path: Path) -> None:
    changes, dataflow = READY_OF_NEMO_RL[name]
    run = of_nemo_rl(**changes)
    assert run.fields["algorithm"].value.endswith(dataflow)
    if name in WITH_OTHER_POOLS:
        assert_the_same(run, tmp_path)


def test_keys_with_the_values_of_the_library_are_not_listed() -> None:
    run = of_nemo_rl(grpo__seed=42, logger__log_dir="logs", policy__megatron_cfg__freeze_moe_router="false")
    assert {setting.key for setting in run.left_out} == {
        "data.train.dataset_name", "loss_fn.use_importance_sampling_correction"
    }  # fmt: skip  # the table of Megatron is switched off
