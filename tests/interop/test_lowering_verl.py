"""Runs of verl as runs of hfdsl: their rows against a simulation, and the TOML file against the lowering."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.check.report import Report
from hfdsl.interop.checking import report_on
from hfdsl.interop.lowered_runs import load, to_toml
from hfdsl.interop.lowering import NotLowered
from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.reading import Inputs
from hfdsl.interop.text import SourceText
from hfdsl.interop.verl.reading import from_script as verl_script
from tests.interop.lowering_runs import assert_the_same, in_hfdsl, lowered, of_verl, plan_of
from tests.interop.test_verl import ACTOR, ROLLOUT, VALID, lists_of, script
from tests.nightly import examples

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
