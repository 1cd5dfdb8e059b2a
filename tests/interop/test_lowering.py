"""Runs of other libraries as runs of hfdsl: their rows against a simulation, and the TOML file against the lowering."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.check.codes import CODES
from hfdsl.check.report import Report
from hfdsl.errors import HfError
from hfdsl.interop.checking import report_on
from hfdsl.interop.lowered_parts import MOST_LAG
from hfdsl.interop.lowered_runs import load, to_toml
from hfdsl.interop.lowering import Lowered, NotLowered
from hfdsl.interop.nemo_rl.reading import from_script as nemo_rl_script
from hfdsl.interop.openrlhf.reading import from_script as openrlhf_script
from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.reading import Inputs, RunReading
from hfdsl.interop.settings import Configuration
from hfdsl.interop.text import SourceText
from hfdsl.interop.trl.reading import from_script as trl_script
from hfdsl.interop.verl.reading import from_script as verl_script
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.rl.training import config
from hfdsl.rl.training.check import ConfigCheck
from tests.interop import test_nemo_rl, test_openrlhf
from tests.interop.test_trl import command
from tests.interop.test_verl import ACTOR, ROLLOUT, VALID, lists_of, script
from tests.nightly import examples

READERS = {"verl": verl_script, "trl": trl_script, "nemo-rl": nemo_rl_script, "openrlhf": openrlhf_script}


def lowered(library: str, text: str) -> Lowered:
    return LIBRARIES[library].lower(reading_of(library, text).configuration)


def reading_of(library: str, text: str) -> RunReading:
    [reading] = READERS[library](SourceText("run.sh", text), Inputs("run.sh"))
    return reading


def of_verl(**changes: object) -> Lowered:
    return lowered("verl", script(**{lists_of(key): str(value) for key, value in changes.items()}))


def plan_of(run: Lowered) -> CompiledPlan:
    return load(run).experiment().compile()


def in_hfdsl(run: Lowered, folder: Path) -> config.Loaded:
    """The run of the TOML file that ``convert`` writes."""
    file = folder / "experiment.toml"
    file.write_text(to_toml(run, "a run"), "utf-8")
    return config.load(file)


def assert_the_same(run: Lowered, folder: Path) -> None:
    """The TOML file describes the run of the lowering, and a check of it on another machine finds nothing."""
    ours, theirs = load(run), in_hfdsl(run, folder)
    first, second = ours.experiment(), theirs.experiment()
    assert first.deployment.placements == second.deployment.placements
    assert first.dims == second.dims
    assert str(first.compile()) == str(second.compile())  # steps with what they read, processes, bytes
    assert all(not report.errors for report in ConfigCheck(elsewhere=True).reports(theirs))


# -- verl


RUNS_OF_VERL = {
    "parts": st.integers(1, 4),
    "per_rank": st.integers(1, 3),
    "samples": st.integers(2, 4),
    "epochs": st.integers(1, 2),
    "estimator": st.sampled_from(["grpo", "rloo", "reinforce_plus_plus", "gae"]),
    "kl": st.sampled_from(["", "loss", "rewards"]),
    "width": st.sampled_from([1, 2, 4]),
    "engine": st.sampled_from([1, 2, 4]),
    "normalized": st.booleans(),
}


@settings(max_examples=examples(12), deadline=None)
@given(**RUNS_OF_VERL)
def test_the_rows_of_verl_are_those_of_the_plan(
    tmp_path_factory: pytest.TempPathFactory,
    parts: int,
    per_rank: int,
    samples: int,
    epochs: int,
    estimator: str,
    kl: str,
    width: int,
    engine: int,
    normalized: bool,
) -> None:
    mini = 16 * per_rank
    run = of_verl(
        **{
            "algorithm.adv_estimator": estimator,
            "algorithm.norm_adv_by_std_in_grpo": normalized,
            "algorithm.use_kl_in_reward": kl == "rewards",
            "critic.ppo_micro_batch_size_per_gpu": 1,
            "data.train_batch_size": mini * parts,
            f"{ACTOR}.use_kl_loss": kl == "loss",
            f"{ACTOR}.ppo_mini_batch_size": mini,
            f"{ACTOR}.ppo_epochs": epochs,
            f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1,
            f"{ACTOR}.ulysses_sequence_parallel_size": width,
            f"{ROLLOUT}.n": samples,
            f"{ROLLOUT}.tensor_model_parallel_size": engine,
        }
    )
    rows = [sample for _ in range(mini * parts) for sample in range(samples)]
    batches = [rows[start : start + mini * samples] for start in range(0, len(rows), mini * samples)]
    plan = plan_of(run)
    updates = [step for step in plan.steps if step.label.startswith("actor.update")]
    assert len(updates) == len(batches) * epochs
    mesh = plan.mesh("actor")
    assert (mesh.world_size, len(batches[0][:: mesh.dp])) == (16, len(batches[0]) // (16 // width))
    roles = {name for group in plan.groups for name in group.roles}
    has_reference = kl == "loss" or (kl == "rewards" and estimator != "grpo")
    others = {"critic": estimator == "gae", "reference": has_reference}
    assert roles == {"actor", "reward", *(name for name, is_there in others.items() if is_there)}
    assert_the_same(run, tmp_path_factory.mktemp("run"))


def test_every_setting_is_lowered_or_listed() -> None:
    run = of_verl(**{"trainer.balance_batch": False, "trainer.test_freq": 5, f"{ROLLOUT}.gpu_memory_utilization": 0.4})
    left_out = {setting.key: setting.why for setting in run.left_out}
    used = {key for entry in run.fields.values() for key in entry.keys}
    differing = {key for key in VALID if key not in ("algorithm.adv_estimator", "data.max_prompt_length")}
    assert differing <= used | left_out.keys() | {f"{ACTOR}.use_kl_loss", f"{ROLLOUT}.name"}
    assert left_out["trainer.test_freq"].startswith("[evaluation] of hfdsl takes")
    assert left_out["trainer.balance_batch"].startswith("hfdsl sorts rows by length")
    assert f"{ROLLOUT}.gpu_memory_utilization" in left_out
    text = to_toml(run)
    assert all(f"{setting.key} = {setting.value}" in text for setting in run.left_out)


def test_a_setting_with_the_default_of_the_library_is_not_listed() -> None:
    run = of_verl(**{"trainer.balance_batch": True, f"{ROLLOUT}.free_cache_engine": True})
    assert not {"trainer.balance_batch", f"{ROLLOUT}.free_cache_engine"} & {setting.key for setting in run.left_out}


@pytest.mark.parametrize(
    ("former", "present"),
    [
        ({"custom_reward_function.path": "my.py", "custom_reward_function.name": "score"},
         {"reward.custom_reward_function.path": "my.py", "reward.custom_reward_function.name": "score"}),
        ({"reward_model.enable": True, "reward_model.model.path": "org/rm", "reward_model.rollout.name": "vllm"},
         {"reward.reward_model.enable": True, "reward.reward_model.model_path": "org/rm",
          "reward.reward_model.rollout.name": "vllm"}),
        ({"reward_model.reward_manager": "dapo", "sandbox_fusion.url": "http://sandbox", "reward_model.num_workers": 2},
         {"reward.reward_manager.name": "dapo", "reward.sandbox_fusion.url": "http://sandbox",
          "reward.num_workers": 2}),
    ],
)  # fmt: skip
def test_former_keys_of_rewards_are_those_that_verl_moves_them_to(
    former: dict[str, object], present: dict[str, object]
) -> None:
    assert to_toml(of_verl(**former)) == to_toml(of_verl(**present)) != to_toml(of_verl())


def test_a_former_key_of_rewards_wins_and_null_does_not() -> None:
    former, present = "reward_model.enable", "reward.reward_model.enable"
    for value, enabled in ((False, False), ("null", True)):
        run = of_verl(**{present: True, "reward.reward_model.model_path": "org/rm", former: value})
        assert run.configuration.value(present) is enabled


READY: dict[str, tuple[dict[str, object], str]] = {
    "a KL term in the loss": ({}, "grpo:grpo"),
    "no reference": ({f"{ACTOR}.use_kl_loss": False}, "grpo:grpo_without_reference"),
    "several epochs": ({f"{ACTOR}.ppo_epochs": 2}, "policy_gradient:without_critic"),
    "scores above the mean": (
        {f"{ACTOR}.use_kl_loss": False, "algorithm.norm_adv_by_std_in_grpo": False}, "dr_grpo:dr_grpo"),
    "ratios of sequences": (
        {f"{ACTOR}.use_kl_loss": False, f"{ACTOR}.policy_loss.loss_mode": "gspo"}, "gspo:gspo"),
    "a critic": (
        {f"{ACTOR}.use_kl_loss": False, "algorithm.adv_estimator": "gae", "algorithm.use_kl_in_reward": True,
         "critic.ppo_micro_batch_size_per_gpu": 4, f"{ROLLOUT}.n": 1}, "ppo:ppo"),
    "a critic and no reference": (
        {f"{ACTOR}.use_kl_loss": False, "algorithm.adv_estimator": "gae", "critic.ppo_micro_batch_size_per_gpu": 4},
        "policy_gradient:with_critic"),
    "GPUs for sampling": (
        {"trainer.v1.trainer_mode": "separate_async", "trainer.v1.separate_async.parameter_sync_step": 4,
         f"{ROLLOUT}.nnodes": 1, f"{ROLLOUT}.n_gpus_per_node": 8}, "asynchronous:async_grpo"),
}  # fmt: skip


@pytest.mark.parametrize("name", READY)
def test_the_dataflow_is_the_ready_one_where_it_fits(name: str, tmp_path: Path) -> None:
    changes, dataflow = READY[name]
    run = of_verl(**changes)
    assert run.fields["algorithm"].value.endswith(dataflow)
    assert_the_same(run, tmp_path)


NOT_LOWERED: dict[str, tuple[dict[str, object], str, str]] = {
    "advantages": ({"algorithm.adv_estimator": "opo"}, "HF981", "algorithm.adv_estimator = opo has no counterpart"),
    "a loss": ({f"{ACTOR}.policy_loss.loss_mode": "sapo"}, "HF981", "losses for vanilla, gspo, cispo"),
    "turns": ({f"{ROLLOUT}.multi_turn.enable": True}, "HF981", "rollouts have one response"),
    "padded rows": ({"data.train_batch_size": 100}, "HF981", "800 rows are not whole mini-batches of 512"),
    "a missing size": ({f"{ROLLOUT}.n": "$(nproc)"}, "HF982", "only a shell knows"),
}


@pytest.mark.parametrize("name", NOT_LOWERED)
def test_what_has_no_counterpart_is_said_at_its_key(name: str) -> None:
    changes, code, words = NOT_LOWERED[name]
    [key] = changes
    text = script(**{lists_of(key): str(value) for key, value in changes.items()}).replace("'", "")
    with pytest.raises(NotLowered, match=code) as caught:
        lowered("verl", text)
    assert words in str(caught.value)
    line = next(number for number, line in enumerate(text.splitlines(), 1) if f"{key}=" in line)
    assert name == "padded rows" or caught.value.finding.primary.span.line == line


def report(text: str) -> Report:
    [reading] = verl_script(SourceText("run.sh", text), Inputs("run.sh"))
    return report_on(LIBRARIES["verl"], reading, "run.sh")


def test_rules_of_hfdsl_speak_of_the_key_that_decides() -> None:
    key = f"{ACTOR}.fsdp_config.model_dtype"
    text = script(**{lists_of(key): "bf16"})
    [finding] = report(text)
    line = next(number for number, line in enumerate(text.splitlines(), 1) if key in line)
    assert (finding.code, finding.primary.span.line) == ("HF719", line)
    assert finding.primary.text == f"{key} = bf16"


def test_rules_of_hfdsl_are_silent_beside_findings_of_the_library() -> None:
    codes = report(script(**{f"{lists_of(ACTOR)}__fsdp_config__model_dtype": "bf16", "trainer__nnodes": "0"})).codes
    assert "HF719" not in codes


def test_a_run_without_a_counterpart_is_judged_by_the_rules_of_the_library() -> None:
    result = report(script(algorithm__adv_estimator="opo"))
    assert not result.codes
    assert any(
        "algorithm.adv_estimator = opo has no counterpart in hfdsl" in text for text in result.coverage.not_judged
    )


def test_a_value_that_begins_with_a_dollar_is_no_reference(tmp_path: Path) -> None:
    run = of_verl(**{"trainer.default_local_dir": "'$runs/a'", "data.train_files": "'$$x.parquet'"})
    assert in_hfdsl(run, tmp_path).config.output == load(run).config.output


# -- TRL


@settings(max_examples=examples(12), deadline=None)
@given(
    rows=st.integers(1, 4),
    accumulated=st.integers(1, 3),
    updates=st.integers(1, 3),
    iterations=st.integers(1, 2),
    group=st.sampled_from([2, 4, 8]),
    beta=st.sampled_from([0.0, 0.04]),
    loss=st.sampled_from(["grpo", "dapo", "dr_grpo", "bnpo"]),
    scale=st.sampled_from(["group", "none"]),
)
def test_the_completions_of_trl_are_those_of_the_plan(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    accumulated: int,
    updates: int,
    iterations: int,
    group: int,
    beta: float,
    loss: str,
    scale: str,
) -> None:
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": accumulated * updates,
        "num_iterations": iterations,
        "num_generations": group,
        "beta": beta,
        "loss_type": loss,
        "scale_rewards": scale,
    }
    run = lowered("trl", command(**arguments))
    micro_batches = [[process] * rows for _ in range(accumulated * updates) for process in range(8)]
    generation = sum(map(len, micro_batches))
    plan = plan_of(run)
    assert {dim.__name__: size for dim, size in plan.dims.items()}["B"] * group == generation
    calls = [step for step in plan.steps if step.label.startswith("actor.update")]
    assert len(calls) == updates * iterations
    assert any("reference" in other.roles for other in plan.groups) == (beta > 0)
    assert_the_same(run, tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss_type": "sapo"}, "losses for grpo, bnpo"),
        ({"scale_rewards": "batch"}, "scales rewards by those of a group"),
        ({"steps_per_generation": 2}, "2 micro-batches of a generation are not whole optimizer steps of 4"),
    ],
)
def test_what_of_trl_has_no_counterpart(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(NotLowered, match=words):
        lowered("trl", command(**changes))


def test_a_script_of_your_own_may_have_other_defaults() -> None:
    with pytest.raises(NotLowered, match=r"HF982.*'my_grpo.py' may set it"):
        lowered("trl", command("python my_grpo.py"))


def test_rloo(tmp_path: Path) -> None:
    run = lowered("trl", command("trl rloo"))
    assert run.fields["options.advantages"].value == "leave-one-out"
    assert run.fields["options.kl"].value == 0.05
    assert_the_same(run, tmp_path)


# -- NeMo-RL

GENERATION, COLOCATED = "policy__generation__", "policy__generation__colocated__"


def of_nemo_rl(**changes: object) -> Lowered:
    return lowered("nemo-rl", test_nemo_rl.command(**changes))


def rows_of_steps(plan: CompiledPlan) -> int:
    """The optimizer steps of a plan."""
    return sum(step.label.startswith("actor.update") for step in plan.steps)


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


WITH_OTHER_POOLS = ("GPUs for sampling", "a reward model", "a queue", "a critic")
"""Runs whose plans no property draws."""

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


# -- OpenRLHF


def of_openrlhf(**changes: object) -> Lowered:
    return lowered("openrlhf", test_openrlhf.command(**changes))


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


def queued(library: str, lag: int) -> Lowered:
    """A run whose rows may be some steps behind."""
    match library:
        case "verl":
            changes = READY["GPUs for sampling"][0]
            return of_verl(**changes, **{"trainer.v1.sampler.max_off_policy_threshold": lag})
        case "nemo-rl":
            return of_nemo_rl(**test_nemo_rl.ASYNC, grpo__async_grpo__max_trajectory_age_steps=lag)
    return of_openrlhf(**READY_OF_OPENRLHF["a queue"][0], train__async_queue_size=lag)


@pytest.mark.parametrize("library", ["verl", "nemo-rl", "openrlhf"])
def test_a_lag_is_one_that_losses_correct_for(library: str, tmp_path: Path) -> None:
    assert_the_same(queued(library, MOST_LAG), tmp_path)
    with pytest.raises(NotLowered, match=r"HF981.*at most 8 steps ago"):
        queued(library, MOST_LAG + 1)


NOT_LOWERED_OF: list[tuple[str, dict[str, object], str, str]] = [
    ("nemo-rl", {"grpo__max_rollout_turns": 2}, "HF981", "rollouts have one response"),
    ("nemo-rl", {"grpo__adv_estimator__name": "gdpo"}, "HF981", "no dataflow of it has these advantages"),
    ("nemo-rl", {"loss_fn__disable_ppo_ratio": "true"}, "HF981", "have a ratio"),
    ("nemo-rl", {"policy__train_global_batch_size": 96}, "HF981", "512 rows are not whole global batches of 96"),
    ("nemo-rl", {"data__default__processor": "vlm_hf_data_processor"}, "HF981", "prompts are texts"),
    ("nemo-rl", {"policy__dtensor_cfg__lora_cfg__enabled": "true"}, "HF981", "ranks along tp share"),
    ("nemo-rl", {"grpo__num_prompts_per_step": "$(nproc)"}, "HF982", "only a shell knows"),
    ("openrlhf", {"train__agent_func_path": "agent.py"}, "HF981", "no agent"),
    ("openrlhf", {"data__max_images_per_prompt": 1}, "HF981", "prompts are texts"),
    ("openrlhf", {"train__batch_size": 96}, "HF981", "512 samples are not a whole number of optimizer steps of 96"),
    ("openrlhf", {"ref__num_gpus_per_node": 4, "algo__kl__use_loss": ""}, "HF981", "the actor has 8"),
    ("openrlhf", {"rollout__batch_size": "$(nproc)"}, "HF982", "only a shell knows"),
]


@pytest.mark.parametrize(("library", "changes", "code", "words"), NOT_LOWERED_OF)
def test_what_has_no_counterpart_is_refused_at_its_option(
    library: str, changes: dict[str, object], code: str, words: str
) -> None:
    text = {"nemo-rl": test_nemo_rl.command, "openrlhf": test_openrlhf.command}[library](**changes)
    with pytest.raises(NotLowered, match=code) as caught:
        lowered(library, text)
    assert words in str(caught.value)
    key = next(iter(changes)).replace("__", ".")
    line = next(number for number, line in enumerate(text.splitlines(), 1) if key in line)
    assert caught.value.finding.primary.span.line == line


# -- any values

NUMBERS = [0, -1, 3, 2**70, 10**25, 1.5, float("inf"), float("nan")]
OTHERS = [True, None, "x", "$x", "", "???", "a\nb", "\0", [1, 2], {"a": 1}]
RUNS = {
    "verl": script(),
    "trl": command(),
    "nemo-rl": test_nemo_rl.command(),
    "openrlhf": test_openrlhf.command(),
}


def refused_with(library: str, changed: Configuration) -> str | None:
    """The code of the error with which a run is not lowered, if it is not."""
    try:
        load(LIBRARIES[library].lower(changed))
    except HfError as error:
        return error.code
    return None


UNHASHED = {
    "verl": ["actor_rollout_ref.actor.policy_loss.loss_mode"],
    "trl": ["loss_type", "scale_rewards", "seed"],
    "openrlhf": ["actor.policy_loss_type", "algo.advantage.estimator", "train.seed"],
}
"""Options whose values are looked up in a table, or written as they are."""


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}])
@pytest.mark.parametrize(("library", "key"), [(library, key) for library, keys in UNHASHED.items() for key in keys])
def test_lists_and_tables_are_no_names(library: str, key: str, value: object) -> None:
    changed = reading_of(library, RUNS[library]).configuration.with_value(key, value)
    assert refused_with(library, changed) in {None, *CODES}


@settings(max_examples=examples(60), deadline=None)
@given(library=st.sampled_from(sorted(RUNS)), data=st.data(), value=st.sampled_from([*NUMBERS, *OTHERS]))
def test_any_value_is_lowered_or_refused_with_a_code(library: str, data: st.DataObject, value: object) -> None:
    whole = reading_of(library, RUNS[library]).configuration
    changed = whole.with_value(data.draw(st.sampled_from(sorted({*whole.explicit, *whole.defaults}))), value)
    assert refused_with(library, changed) in {None, *CODES}


# -- the tables of the documentation

DOCS = Path(__file__).parents[2] / "docs"


def rows_of(page: str) -> list[tuple[str, str]]:
    """The rows of the table of fields, without their backquotes."""
    table = (DOCS / page).read_text("utf-8").partition("## Fields of a run")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", table, re.MULTILINE)


def assert_has(run: Lowered, field: str) -> None:
    name, _, value = field.partition(" = ")
    expected = tomllib.loads(f"value = {value}")["value"]
    assert run.fields[name].value == expected


@pytest.mark.parametrize(("setting", "field"), rows_of("migrate-verl.md"))
def test_fields_of_verl_are_as_documented(setting: str, field: str) -> None:
    critic = {"critic.ppo_micro_batch_size_per_gpu": "4"} if "=gae" in setting else {}
    changes = dict(pair.split("=", 1) for pair in shlex.split(setting))
    assert_has(of_verl(**{**critic, **changes}), field)


@pytest.mark.parametrize(("setting", "field"), rows_of("migrate-trl.md"))
def test_fields_of_trl_are_as_documented(setting: str, field: str) -> None:
    pairs = [part.partition(" ") for part in re.split(r"(?:^| )--", setting) if part]
    assert_has(lowered("trl", command(**{name: value for name, _, value in pairs})), field)


@pytest.mark.parametrize(("setting", "field"), rows_of("migrate-nemo-rl.md"))
def test_fields_of_nemo_rl_are_as_documented(setting: str, field: str) -> None:
    assert_has(of_nemo_rl(**dict(pair.split("=", 1) for pair in shlex.split(setting))), field)


@pytest.mark.parametrize(("setting", "field"), rows_of("migrate-openrlhf.md"))
def test_fields_of_openrlhf_are_as_documented(setting: str, field: str) -> None:
    pairs = [part.partition(" ") for part in re.split(r"(?:^| )--", setting) if part]
    critic = {"critic.num_gpus_per_node": 8}
    assert_has(of_openrlhf(**{**critic, **{name: value for name, _, value in pairs}}), field)


def test_the_tables_are_there() -> None:
    pages = ("migrate-verl.md", "migrate-trl.md", "migrate-nemo-rl.md", "migrate-openrlhf.md")
    assert min(len(rows_of(page)) for page in pages) > 35
