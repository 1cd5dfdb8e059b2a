"""What a check says of configurations of NeMo-RL: against a simulation of its batches, and one mistake at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.check.codes import CODES
from hfdsl.check.report import Report
from hfdsl.interop.checking import report_on
from hfdsl.interop.library_tables import table
from hfdsl.interop.nemo_rl.reading import from_script, read
from hfdsl.interop.pages import page
from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.reading import Inputs, RunReading
from hfdsl.interop.reporting import judge
from hfdsl.interop.settings import NotKnown
from hfdsl.interop.text import COMMAND_LINE, ReadError, SourceText
from tests.nightly import examples

RUN = "uv run examples/run_grpo.py"
BATCHES = {
    "cluster.gpus_per_node": 8,
    "policy.sequence_packing.enabled": "false",
    "policy.dtensor_cfg.tensor_parallel_size": 2,
}
"""The library's default run on 4 ranks: 32 x 16 = 512 rows, 128 on a rank, 32 micro-batches of 4."""


def command(**changes: Any) -> str:
    """That run with overrides, one a line; '__' stands for a dot, and None leaves an override out."""
    named = {key.replace("__", "."): value for key, value in changes.items()}
    overrides = {key: value for key, value in (BATCHES | named).items() if value is not None}
    return " \\\n    ".join([RUN, *(f"{key}={value}" for key, value in overrides.items())]) + "\n"


def reading_of(text: str) -> RunReading:
    [reading] = from_script(SourceText("run.sh", text), Inputs("run.sh"))
    return reading


def report(text: str) -> Report:
    return report_on(LIBRARIES["nemo-rl"], reading_of(text), "run.sh")


def errors(text: str) -> set[str]:
    """The errors of the reader and of the library's rules."""
    reading = reading_of(text)
    judged = judge(reading.configuration, LIBRARIES["nemo-rl"].rules)
    findings = (*reading.findings, *judged.findings)
    return {finding.code for finding in findings if CODES[finding.code].severity == "error"}


@pytest.mark.parametrize("name", table("nemo-rl").engines)
def test_the_librarys_own_configurations_are_right(name: str) -> None:
    result = report(f"python run_grpo.py --config {name}.yaml")
    wrong = {f.message for f in result}
    # A mistake of NeMo-RL 0.7, which its own check refuses: the multiplier of a parent that samples dynamically.
    assert wrong == ({"grpo.batch_multiplier = 1.5 needs grpo.use_dynamic_sampling"} if "prorlv2_1" in name else set())


def test_a_valid_run_has_no_finding() -> None:
    assert not list(report(command()))
    assert not report(command()).coverage.not_judged


LOSS, GENERATION = "loss_fn__", "policy__generation__"
ASYNC = {
    "grpo__async_grpo__enabled": "true",
    f"{LOSS}use_importance_sampling_correction": "true",
    f"{GENERATION}vllm_cfg__async_engine": "true",
    f"{GENERATION}colocated__enabled": "false",
    f"{GENERATION}colocated__resources__gpus_per_node": 4,
}
MEGATRON = {
    "policy__megatron_cfg__enabled": "true",
    "policy__dtensor_cfg__enabled": "false",
    "policy__dtensor_cfg__tensor_parallel_size": None,
}
MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "a typo": ({"grpo__num_prompts_per_stp": 32}, "HF971", "did you mean grpo.num_prompts_per_step?"),
    "an addition": ({"+grpo__seed": 1}, "HF971", "already there"),
    "a list of runs": ({"grpo__seed": "1,2"}, "HF972", "several runs"),
    "no integer": ({"grpo__num_prompts_per_step": "many"}, "HF972", "is not an integer"),
    "no switch": ({"checkpointing__enabled": "maybe"}, "HF972", "is not a switch"),
    "nothing": ({"grpo__num_prompts_per_step": "null"}, "HF972", "= null is not an integer"),
    "a zero": ({"policy__train_micro_batch_size": 0}, "HF972", "is not positive"),
    "no step": ({"grpo__max_num_steps": 0}, "HF979", "no step is ever made"),
    "an engine's size": ({f"{GENERATION}vllm_cfg__tensor_parallel_size": "[1]"}, "HF972", "is not an integer"),
    "a backend": ({f"{GENERATION}backend": "vlm"}, "HF972", "set policy.generation.backend to vllm"),
    "an estimator": ({"grpo__adv_estimator__name": "gropo"}, "HF972", "not one of grpo, gdpo, opd"),
    "a share": ({f"{GENERATION}top_p": 0}, "HF972", "not above 0"),
    "a dual clip": ({f"{LOSS}ratio_clip_c": 0.9}, "HF972", "is not above 1"),
    "a metric": ({"checkpointing__metric_name": "val_reward"}, "HF972", "to val:reward"),
    "two backends": ({"policy__megatron_cfg__enabled": "true"}, "HF974", "exclude each other"),
    "no backend": ({"policy__dtensor_cfg__enabled": "false"}, "HF974", "nothing trains"),
    "two kinds of batches": (
        {"policy__dynamic_batching__enabled": "true", "policy__sequence_packing__enabled": "true"},
        "HF974",
        "exclude each other",
    ),
    "dynamic batches in a pipeline": (
        MEGATRON
        | {"policy__dynamic_batching__enabled": "true", "policy__megatron_cfg__pipeline_model_parallel_size": 2},
        "HF974",
        "pipeline_model_parallel_size = 1, not 2",
    ),
    "context without packing": (MEGATRON | {"policy__megatron_cfg__context_parallel_size": 2}, "HF974", "packing"),
    "context with packing": (
        {"policy__dtensor_cfg__context_parallel_size": 2, "policy__sequence_packing__enabled": "true"},
        "HF974",
        "exclude each other",
    ),
    "batches of two sizes": (
        {"policy__dtensor_cfg__tensor_parallel_size": 4, "policy__logprob_batch_size": 8},
        "HF974",
        "they are 8 and 4",
    ),
    "a multiplier": ({"grpo__batch_multiplier": 2}, "HF974", "needs grpo.use_dynamic_sampling"),
    "an age of the loss": ({f"{LOSS}sequence_level_importance_ratios": "true"}, "HF974", "for a loss of sequences"),
    "a loss without its ratio": ({f"{LOSS}use_cispo": "true", f"{LOSS}disable_ppo_ratio": "true"}, "HF974", "exclude"),
    "truncation": ({f"{LOSS}truncated_importance_sampling_type": "tis"}, "HF974", "needs loss_fn.use_importance"),
    "a forced ratio": (
        {f"{LOSS}force_on_policy_ratio": "true", "policy__train_global_batch_size": 256},
        "HF974",
        "needs one optimizer step a step",
    ),
    "a reference": ({"++grpo__skip_reference_policy_logprobs_calculation": "true"}, "HF974", "= 0, not 0.01"),
    "asynchrony without an engine": (
        ASYNC | {f"{GENERATION}vllm_cfg__async_engine": "false"},
        "HF974",
        "policy.generation.vllm_cfg.async_engine",
    ),
    "asynchrony without a correction": (
        ASYNC | {f"{LOSS}use_importance_sampling_correction": "false"},
        "HF974",
        "rows are of older weights",
    ),
    "asynchrony on the same GPUs": (
        ASYNC | {f"{GENERATION}colocated__enabled": "true"},
        "HF974",
        "GPUs of its own for generation",
    ),
    "asynchrony with filters": (ASYNC | {"grpo__use_dynamic_sampling": "true"}, "HF974", "exclude each other"),
    "an age without updates": (
        ASYNC | {"grpo__async_grpo__max_trajectory_age_steps": 4},
        "HF979",
        "generation waits for each update",
    ),
    "generation without GPUs": ({f"{GENERATION}colocated__enabled": "false"}, "HF974", "the GPUs of generation"),
    "training without GPUs": (
        ASYNC | {f"{GENERATION}colocated__resources__gpus_per_node": 8},
        "HF974",
        "leaves no GPUs for training",
    ),
    "a pipeline of an engine": ({f"{GENERATION}vllm_cfg__pipeline_parallel_size": 2}, "HF974", "async_engine to true"),
    "a gym without a server": ({"++env__should_use_nemo_gym": "true"}, "HF974", "async_engine = True"),
    "a filter of one": (
        {
            "grpo__use_dynamic_sampling": "true",
            "grpo__num_generations_per_prompt": 1,
            "policy__train_global_batch_size": 32,
        },
        "HF974",
        "no step is ever full",
    ),
    "FP8": ({f"{GENERATION}vllm_cfg__precision": "fp8"}, "HF974", "needs loss_fn.use_importance"),
    "global batches": ({"policy__train_global_batch_size": 384}, "HF976", "512 % 384 = 128"),
    "ranks": ({"cluster__gpus_per_node": 6}, "HF976", "512 rows do not divide over 3 data-parallel ranks"),
    "micro-batches": ({"policy__train_micro_batch_size": 3}, "HF976", "128 % 3 = 2"),
    "log-probs": ({"policy__logprob_batch_size": 5}, "HF976", "128 % 5 = 3"),
    "tensor parallelism": ({"policy__dtensor_cfg__tensor_parallel_size": 3}, "HF977", "the 8 GPUs of training"),
    "engines": ({f"{GENERATION}vllm_cfg__tensor_parallel_size": 3}, "HF977", "not a whole number of engines"),
    "experts": (
        {f"{GENERATION}vllm_cfg__tensor_parallel_size": 2, f"{GENERATION}vllm_cfg__expert_parallel_size": 3},
        "HF977",
        "not a multiple of",
    ),
    "a budget": (
        {"policy__sequence_packing__enabled": "true", "policy__sequence_packing__train_mb_tokens": 256},
        "HF978",
        "longer than the budget",
    ),
    "a context": ({f"{GENERATION}vllm_cfg__max_model_len": 256}, "HF978", "fewer than a response may have"),
    "a group of one": (
        {"grpo__num_generations_per_prompt": 1, "policy__train_global_batch_size": 32},
        "HF979",
        "all advantages are 0",
    ),
    "validation": ({"grpo__max_val_samples": 100}, "HF979", "validation has no batch"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_at_its_key(name: str) -> None:
    changes, code, words = MISTAKES[name]
    text = command(**changes)
    findings = [finding for finding in report(text) if finding.code == code]
    assert any(words in " ".join((f.message, *f.help, *f.notes)) for f in findings), list(report(text))
    keys = [key.replace("__", ".") for key, value in changes.items() if value is not None]
    lines = {n for n, line in enumerate(text.splitlines(), 1) if any(f"{key}=" in line for key in keys)}
    places_found = [{f.primary.span.line, *(r.span.line for r in f.related)} for f in findings]
    assert any(lines & places for places in places_found)


def test_asynchronous_runs_are_right() -> None:
    assert not list(report(command(**ASYNC)))


SIZE = st.integers(1, 6)


@settings(max_examples=examples(60))
@given(
    prompts=SIZE, group=st.integers(2, 5), batch=st.integers(1, 24), micro=SIZE, ranks=SIZE, tensor=st.integers(1, 3)
)
def test_batches_are_blamed_as_a_simulation_says(
    prompts: int, group: int, batch: int, micro: int, ranks: int, tensor: int
) -> None:
    """Rows fill global batches, a global batch's rows fill ranks, and a rank's rows micro-batches; nothing is left."""
    rows = list(range(prompts * group))
    batches = [rows[i : i + batch] for i in range(0, len(rows), batch)]
    hands = [part[rank::ranks] for part in batches for rank in range(ranks)]
    whole = all(len(part) == batch for part in batches)
    even = all(len(hand) == len(hands[0]) and len(hand) > 0 and len(hand) % micro == 0 for hand in hands)
    text = command(
        grpo__num_prompts_per_step=prompts,
        grpo__num_generations_per_prompt=group,
        policy__train_global_batch_size=batch,
        policy__train_micro_batch_size=micro,
        policy__logprob_batch_size=1,
        policy__dtensor_cfg__tensor_parallel_size=tensor,
        cluster__gpus_per_node=ranks * tensor,
    )
    assert (not errors(text)) == (whole and even)


def test_a_page_counts_as_the_worked_example() -> None:
    text = " ".join(str(page("run.sh", LIBRARIES["nemo-rl"].outline, reading_of(command()).configuration)).split())
    for words in (
        "32 prompts (grpo.num_prompts_per_step) and samples 16 responses to each",
        "1 optimizer step, 512 rows / 512 rows of a global batch",
        "128 rows on each of 4 data-parallel ranks",
        "gradients add up over 128 / 4 = 32 micro-batches",
        "4 data-parallel ranks of 2 GPUs (tensor_parallel_size 2)",
        "vLLM generates on the same GPUs, by turns: 8 engines of 1 GPU each",
        "Training is on-policy",
    ):
        assert words in text, text


# -- files


def written(folder: Path, **files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content), "utf-8")
    return folder


def values(folder: Path, name: str, *overrides: str) -> dict[str, Any]:
    arguments = SourceText(COMMAND_LINE, " ".join(overrides)) if overrides else None
    [reading] = read(Inputs(str(folder / f"{name}.yaml"), arguments))
    configuration = reading.configuration
    return {key: configuration.value(key) for key in (*configuration.explicit, *configuration.defaults)}


def test_files_are_merged_after_their_ancestors(tmp_path: Path) -> None:
    written(
        tmp_path,
        first={"grpo": {"seed": 1, "kept": 2}, "env": {"math": {"workers": 1}}, "extra": {"a": 1}, "gone": {"x": 1}},
        second={"grpo": {"seed": 3}, "other": 4},
        child={
            "defaults": ["first.yaml", "second.yaml"],
            "grpo": {"own": "${mul:${grpo.seed},2}", "half": "${div:${.own},4}", "most": "${max:${..other},${.seed}}"},
            "env": {"_override_": True, "code": 5},
            "extra": {},
            "gone": None,
        },
    )
    merged = values(tmp_path, "child", "grpo.seed=7", "++grpo.new=8", "+list=[1,2]")
    assert merged == {
        "grpo.seed": 7,
        "grpo.kept": 2,
        "grpo.own": 14,
        "grpo.half": 3.5,
        "grpo.most": 7,
        "grpo.new": 8,
        "env.code": 5,
        "extra.a": 1,
        "gone": None,
        "other": 4,
        "list": [1, 2],
    }


def test_an_ancestor_of_the_library_is_known_without_its_file(tmp_path: Path) -> None:
    written(tmp_path, child={"defaults": "../configs/grpo_math_8B.yaml", "policy": {"train_global_batch_size": 500}})
    [reading] = read(Inputs(str(tmp_path / "child.yaml")))
    result = report_on(LIBRARIES["nemo-rl"], reading, "child.yaml")
    assert {finding.code for finding in result} == {"HF976"}
    assert any("taken as that of NeMo-RL" in line for line in result.coverage.not_judged)


def test_an_ancestor_that_is_not_there_leaves_what_it_may_say_open(tmp_path: Path) -> None:
    written(
        tmp_path,
        child={"defaults": "mine.yaml", "grpo": {"num_prompts_per_step": 7, "num_generations_per_prompt": 3}},
    )
    [reading] = read(Inputs(str(tmp_path / "child.yaml")))
    result = report_on(LIBRARIES["nemo-rl"], reading, "child.yaml")
    assert not list(result)
    assert any("'mine.yaml' is not there to be read" in line for line in result.coverage.not_judged)
    with pytest.raises(NotKnown):
        reading.configuration.value("policy.train_global_batch_size")


def test_keys_that_are_missing_or_misspelled(tmp_path: Path) -> None:
    written(tmp_path, child={"grpo": {"num_prompts_per_stepp": 7, "num_generations_per_prompt": 3}, "policy": {}})
    [reading] = read(Inputs(str(tmp_path / "child.yaml")))
    findings = list(report_on(LIBRARIES["nemo-rl"], reading, "child.yaml"))
    assert {finding.code for finding in findings} == {"HF973", "HF974"}
    assert any("cluster" in finding.message for finding in findings)
    assert any("did you mean num_prompts_per_step?" in finding.notes for finding in findings)


def test_a_switch_that_is_on_needs_the_keys_of_its_table(tmp_path: Path) -> None:
    tables = {"megatron_cfg": {"enabled": True}, "dtensor_cfg": {"enabled": False}}
    written(tmp_path, child={"defaults": "grpo_math_1B.yaml", "policy": tables})
    [reading] = read(Inputs(str(tmp_path / "child.yaml")))
    assert not [f for f in report_on(LIBRARIES["nemo-rl"], reading, "child.yaml") if "has no" in f.message]
    dropped = "~policy.megatron_cfg.moe_per_layer_logging"
    for on, count in (("true", 1), ("false", 0)):
        text = f"{RUN} policy.megatron_cfg.enabled={on} policy.dtensor_cfg.enabled={count == 0} {dropped}"
        messages = [finding.message for finding in report(text) if "has no" in finding.message]
        assert messages == ["'policy.megatron_cfg' has no moe_per_layer_logging"] * count


def test_a_script_names_its_file_and_its_environment(tmp_path: Path) -> None:
    sizes = {"train_micro_batch_size": 1, "logprob_batch_size": 4, "dtensor_cfg": {"tensor_parallel_size": 4}}
    written(tmp_path, child={"defaults": "grpo_math_1B.yaml", "policy": sizes, "cluster": {"gpus_per_node": 4}})
    script = tmp_path / "run.sh"
    for text, codes in (
        (f"{RUN} --config child.yaml", {"HF974"}),
        (f"NRL_IGNORE_TP_ACCURACY_CHECK=1 {RUN} --config=child.yaml", set()),
        (f"export NRL_IGNORE_TP_ACCURACY_CHECK=1\n{RUN} --config child.yaml grpo.seed=1 2>&1 | tee log", set()),
        (f"{RUN} --config child.yaml policy.logprob_batch_size=1", set()),
        (f"{RUN} --config $(pwd)/child.yaml", set()),
    ):
        script.write_text(text, "utf-8")
        [reading] = read(Inputs(str(script)))
        assert {f.code for f in report_on(LIBRARIES["nemo-rl"], reading, "run.sh")} == codes, text


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("run.sh", "uv run examples/run_sft.py", "the script starts run_sft.py"),
        ("run.sh", "echo", "starts none of run_grpo.py"),
        ("sft.yaml", "sft: {max_num_steps: 1}", "configures 'sft'"),
        ("other.yaml", "a: 1", "it has no 'grpo'"),
        ("list.yaml", "[1]", "not a table"),
        ("broken.yaml", "grpo: [", "no YAML"),
        ("loop.yaml", "defaults: loop.yaml\ngrpo: {}", "among its own defaults"),
        ("large.yaml", "grpo: {a: '" + "x" * 70_000 + "'}", "bytes"),
    ],
)
def test_what_is_no_run_of_grpo(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(ReadError, match=words):
        read(Inputs(str(tmp_path / name)))


LEAF = st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["${a}", "${mul:${grpo.b},x}", "???", "${", ""])
TREE = st.recursive(LEAF, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8)


@settings(max_examples=examples(60))
@given(content=st.dictionaries(st.sampled_from(["grpo", "policy", "cluster", "data", "loss_fn"]), TREE, max_size=4))
def test_any_file_is_read_or_refused(content: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = written(tmp_path_factory.mktemp("run"), child={"defaults": "grpo_math_1B.yaml", **content})
    try:
        [reading] = read(Inputs(str(folder / "child.yaml")))
    except ReadError:
        return
    assert all(finding.code in CODES for finding in report_on(LIBRARIES["nemo-rl"], reading, "child.yaml"))
    assert str(page("child.yaml", LIBRARIES["nemo-rl"].outline, reading.configuration))


def test_a_misspelled_key_is_named_where_an_ancestor_has_the_right_one(tmp_path: Path) -> None:
    file = tmp_path / "grpo.yaml"
    file.write_text("defaults: grpo_math_1B.yaml\ngrpo:\n  num_prompts_per_stp: 32\n")
    [reading] = read(Inputs(str(file)))
    [finding] = reading.findings
    assert (finding.code, finding.primary.span.line) == ("HF973", 3)
    [edit] = finding.fixes[0].edits
    assert (edit.span.column, edit.span.end_column, edit.text) == (2, 21, "num_prompts_per_step")
