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
from hfdsl.interop.lowered_runs import load, to_toml
from hfdsl.interop.lowering import Lowered, NotLowered
from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.reading import Inputs
from hfdsl.interop.text import SourceText
from hfdsl.interop.trl.reading import from_script as trl_script
from hfdsl.interop.verl.reading import from_script as verl_script
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.rl.training import config
from hfdsl.rl.training.check import ConfigCheck
from tests.interop.test_trl import command
from tests.interop.test_verl import ACTOR, ROLLOUT, VALID, lists_of, script
from tests.nightly import examples


def lowered(library: str, text: str) -> Lowered:
    read = {"verl": verl_script, "trl": trl_script}[library]
    [reading] = read(SourceText("run.sh", text), Inputs("run.sh"))
    lower = LIBRARIES[library].lower
    assert lower is not None
    return lower(reading.configuration)


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
    left_out = {left.key: left.why for left in run.left_out}
    used = {key for entry in run.fields.values() for key in entry.keys}
    differing = {key for key in VALID if key not in ("algorithm.adv_estimator", "data.max_prompt_length")}
    assert differing <= used | left_out.keys() | {f"{ACTOR}.use_kl_loss", f"{ROLLOUT}.name"}
    assert left_out["trainer.test_freq"].startswith("[evaluation] of hfdsl takes")
    assert left_out["trainer.balance_batch"].startswith("hfdsl sorts rows by length")
    assert f"{ROLLOUT}.gpu_memory_utilization" in left_out
    text = to_toml(run)
    assert all(f"{left.key} = {left.value}" in text for left in run.left_out)


def test_a_setting_with_the_default_of_the_library_is_not_listed() -> None:
    run = of_verl(**{"trainer.balance_batch": True, f"{ROLLOUT}.free_cache_engine": True})
    assert not {"trainer.balance_batch", f"{ROLLOUT}.free_cache_engine"} & {left.key for left in run.left_out}


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
    "padded rows": ({"data.train_batch_size": 100}, "HF981", "800 rows are no whole mini-batches of 512"),
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
        "algorithm.adv_estimator = opo has no counterpart in hfdsl" in left for left in result.coverage.not_judged
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
        ({"steps_per_generation": 2}, "2 micro-batches of a generation are no whole optimizer steps of 4"),
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


# -- any values

NUMBERS = [0, -1, 3, 2**70, 10**25, 1.5, float("inf"), float("nan")]
OTHERS = [True, None, "x", "$x", "", "???", "a\nb", "\0", [1, 2], {"a": 1}]
RUNS = {"verl": script(), "trl": command()}


@settings(max_examples=examples(60), deadline=None)
@given(library=st.sampled_from(sorted(RUNS)), data=st.data(), value=st.sampled_from([*NUMBERS, *OTHERS]))
def test_any_value_is_lowered_or_refused_with_a_code(library: str, data: st.DataObject, value: object) -> None:
    read = {"verl": verl_script, "trl": trl_script}[library]
    [reading] = read(SourceText("run.sh", RUNS[library]), Inputs("run.sh"))
    whole = reading.configuration
    changed = whole.with_value(data.draw(st.sampled_from(sorted({*whole.given, *whole.defaults}))), value)
    lower = LIBRARIES[library].lower
    assert lower is not None
    code = None
    try:
        load(lower(changed))
    except HfError as error:
        code = error.code
    assert code is None or code in CODES


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


def test_the_tables_are_there() -> None:
    assert min(len(rows_of("migrate-verl.md")), len(rows_of("migrate-trl.md"))) > 35
