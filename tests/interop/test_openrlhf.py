"""What a check says of runs of OpenRLHF: against a simulation of its ranks, and one mistake at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.check.codes import CODES
from hfdsl.check.report import Report
from hfdsl.interop.checking import report_on
from hfdsl.interop.openrlhf.reading import from_script, read
from hfdsl.interop.pages import page
from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.reading import Inputs
from hfdsl.interop.reporting import judge
from hfdsl.interop.text import ReadError, SourceText
from tests.nightly import examples

VALID: dict[str, Any] = {
    "actor.model_name_or_path": "my/model",
    "data.prompt_dataset": "my/prompts",
    "reward.remote_url": "reward.py",
    "algo.advantage.estimator": "group_norm",
    "actor.num_gpus_per_node": 8,
    "vllm.num_engines": 4,
    "vllm.tensor_parallel_size": 2,
    "train.colocate_all": "",
    "rollout.batch_size": 64,
    "rollout.n_samples_per_prompt": 8,
    "rollout.micro_batch_size": 16,
    "train.batch_size": 128,
    "train.micro_batch_size": 8,
}


def command(**changes: Any) -> str:
    """The valid run with changes, an option per line; '__' stands for a dot, and None leaves an option out."""
    named = {key.replace("__", "."): value for key, value in changes.items()}
    options = {key: value for key, value in (VALID | named).items() if value is not None}
    lines = [f"--{key} {value}".strip() for key, value in options.items()]
    return " \\\n    ".join(["ray job submit -- python3 -m openrlhf.cli.train_ppo_ray", *lines]) + "\n"


def report(text: str) -> Report:
    [reading] = from_script(SourceText("run.sh", text), Inputs("run.sh"))
    return report_on(LIBRARIES["openrlhf"], reading, "run.sh")


def errors(text: str) -> set[str]:
    """The errors of the reader and of the library's rules."""
    [reading] = from_script(SourceText("run.sh", text), Inputs("run.sh"))
    judged = judge(reading.configuration, LIBRARIES["openrlhf"].rules)
    findings = (*reading.findings, *judged.findings)
    return {finding.code for finding in findings if CODES[finding.code].severity == "error"}


def test_a_valid_run_has_no_finding() -> None:
    assert not list(report(command()))
    assert not report(command()).coverage.not_judged


CRITIC = {"algo__advantage__estimator": "gae", "reward__remote_url": None, "reward__model_name_or_path": "my/reward"}
MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "a typo": ({"train__batchsize": 64}, "HF971", "did you mean --train.batch_size?"),
    "words in another order": ({"batch_size_train": 64}, "HF971", "did you mean --train.batch_size?"),
    "a value of a switch": ({"train__colocate_all": "True"}, "HF972", "leave out 'True'"),
    "no integer": ({"train__batch_size": "1e3"}, "HF972", "is not an integer"),
    "two values": ({"train__batch_size": "64 64"}, "HF972", "takes one value, not 2"),
    "one of two values": ({"actor__eps_clip_low_high": "0.2"}, "HF972", "takes 2 values, not 1"),
    "an estimator": ({"algo__advantage__estimator": "group_norms"}, "HF972", "did you mean group_norm?"),
    "no value": ({"train__max_epochs": ""}, "HF972", "needs a value"),
    "a zero": ({"rollout__micro_batch_size": 0}, "HF972", "is not positive"),
    "a period of zero": ({"ckpt__save_steps": 0}, "HF972", "or -1 for never"),
    "a share of memory": ({"vllm__gpu_memory_utilization": 1.5}, "HF972", "above 0 and at most 1"),
    "a dual clip": ({"actor__dual_clip": 0.5}, "HF972", "is not above 1"),
    "groups of one": ({"rollout__n_samples_per_prompt": 1}, "HF972", "compares the samples of a prompt"),
    "a range": (
        {"algo__dynamic_filtering_enable": "", "algo__dynamic_filtering_range": "1 0"},
        "HF972",
        "1 0: the first is not below",
    ),
    "a penalty": ({"reward__stop_properly_penalty_coef": 1.5}, "HF972", "above 1"),
    "a buffer": ({"reward__overlong_buffer_len": 4096}, "HF972", "more than data.max_len = 2048"),
    "no engines": ({"vllm__num_engines": None}, "HF974", "engines of vLLM only"),
    "no model": ({"actor__model_name_or_path": None}, "HF974", "is not given"),
    "no rewards": ({"reward__remote_url": None}, "HF974", "nothing gives rewards"),
    "a filter without scores": (CRITIC | {"algo__dynamic_filtering_enable": ""}, "HF974", "needs --reward.remote_url"),
    "an evaluation": (CRITIC | {"eval__dataset": "my/eval"}, "HF974", "--eval.dataset needs"),
    "partial rollouts": ({"train__partial_rollout_enable": ""}, "HF974", "needs --train.async_enable"),
    "sleeping engines": ({"train__async_enable": "", "vllm__enable_sleep": ""}, "HF974", "exclude each other"),
    "more prompts": ({"rollout__vllm_generate_batch_size": 96}, "HF974", "needs --train.async_enable"),
    "images with a critic": (CRITIC | {"data__max_images_per_prompt": 1}, "HF974", "takes no images"),
    "packed images": ({"data__max_images_per_prompt": 1, "ds__packing_samples": ""}, "HF974", "leave out"),
    "fp16": ({"ds__param_dtype": "fp16", "ds__tensor_parallel_size": 2}, "HF974", "needs ds.param_dtype = bf16"),
    "sample batches": ({"rollout__micro_batch_size": 128}, "HF976", "512 samples are 4 sample batches"),
    "a train batch": ({"train__batch_size": 96}, "HF976", "8 x 8 data-parallel ranks of the actor = 64"),
    "ranks that wait": ({"rollout__batch_size": 65}, "HF976", "waits for the others forever"),
    "no optimizer step": (
        {"train__dynamic_batch_enable": "", "train__batch_size": 1024},
        "HF976",
        "no optimizer step is ever made",
    ),
    "ring attention": ({"ds__ring_attn_size": 3}, "HF977", "does not divide the 8 GPUs of the actor"),
    "engines on the actor's GPUs": ({"vllm__num_engines": 3}, "HF985", "3 x 2 = 6 GPUs are not its 8"),
    "a reference on the actor's GPUs": ({"ref__num_gpus_per_node": 4}, "HF985", "1 x 8, and the reference 1 x 4"),
    "a large critic": (CRITIC | {"critic__num_gpus_per_node": 16}, "HF985", "the critic on the 8 GPUs"),
    "a reward model with the critic": (
        CRITIC | {"train__colocate_critic_reward": "", "reward__num_gpus_per_node": 4},
        "HF985",
        "1 x 8, and the reward model 1 x 4",
    ),
    "a part of a train batch": ({"train__batch_size": 384}, "HF986", "gradients of its last 128 samples"),
    "samples that are left": (
        {"train__dynamic_batch_enable": "", "train__batch_size": 384},
        "HF986",
        "no update uses the other 128",
    ),
    "fewer prompts": ({"rollout__vllm_generate_batch_size": 32}, "HF986", "a step has 32 prompts"),
    "no room": ({"rollout__max_new_tokens": 2048}, "HF978", "no room for a prompt"),
    "a loss without a reference": ({"algo__kl__use_loss": "", "algo__kl__init_coef": 0}, "HF979", "adds nothing"),
    "a critic of another estimator": ({"critic__model_name_or_path": "my/critic"}, "HF979", "has no critic"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_at_its_option(name: str) -> None:
    changes, code, words = MISTAKES[name]
    text = command(**changes)
    findings = [finding for finding in report(text) if finding.code == code]
    assert any(words in " ".join((f.message, *f.help, *f.notes)) for f in findings), list(report(text))
    keys = [key.replace("__", ".") for key, value in changes.items() if value is not None]
    lines = {n for n, line in enumerate(text.splitlines(), 1) if any(f"--{key}" in line for key in keys)}
    places_found = [{f.primary.span.line, *(r.span.line for r in f.related)} for f in findings]
    assert not lines or any(lines & places for places in places_found)


def test_help_names_sizes_that_satisfy_all_rules() -> None:
    [finding] = report(command(train__batch_size=96))
    assert finding.help[0] == "set train.batch_size to 64 or 128"
    assert not errors(command(train__batch_size=64)) | errors(command(train__batch_size=128))


SIZE = st.integers(1, 6)


@settings(max_examples=examples(60))
@given(gpus=SIZE, prompts=st.integers(1, 12), group=SIZE, batch=SIZE, micro=st.integers(1, 3), steps=st.integers(1, 4))
def test_ranks_are_blamed_as_a_simulation_says(
    gpus: int, prompts: int, group: int, batch: int, micro: int, steps: int
) -> None:
    """The driver hands consecutive sample batches to ranks, which train whole micro-batches of what they got."""
    samples = list(range(prompts * group))
    batches = [samples[i : i + batch] for i in range(0, len(samples), batch)]
    per_rank = -(-len(batches) // gpus)
    hands = [[s for part in batches[r * per_rank : (r + 1) * per_rank] for s in part] for r in range(gpus)]
    trained = {len(hand) // micro for hand in hands}
    runs = len(samples) // batch >= gpus and len(trained) == 1
    text = command(
        algo__advantage__estimator="reinforce",
        actor__num_gpus_per_node=gpus,
        ref__num_gpus_per_node=gpus,
        vllm__num_engines=gpus,
        vllm__tensor_parallel_size=1,
        rollout__batch_size=prompts,
        rollout__n_samples_per_prompt=group,
        rollout__micro_batch_size=batch,
        train__micro_batch_size=micro,
        train__batch_size=micro * gpus * steps,
    )
    assert (not errors(text)) == runs


def test_a_page_counts_as_the_worked_example() -> None:
    [reading] = from_script(SourceText("run.sh", command()), Inputs("run.sh"))
    text = " ".join(str(page("run.sh", LIBRARIES["openrlhf"].outline, reading.configuration)).split())
    for words in (
        "64 prompts (rollout.batch_size) and samples 8 responses to each (rollout.n_samples_per_prompt): 512 samples",
        "32 sample batches of 16 samples",
        "4 optimizer steps a step, 512 samples / 128",
        "has 64 samples of a step, and gradients add up over 2 micro-batches",
        "The reference has 8 GPUs of the actor",
        "4 engines of vLLM with 2 GPUs each",
        "The run takes 8 GPUs in all",
        "off-policy by up to 3 optimizer steps",
    ):
        assert words in text, text


def test_options_of_an_older_version_are_one_finding() -> None:
    flags = "--actor_num_nodes 1 --actor_num_gpus_per_node 8 --micro_train_batch_size 4 --zero_stage 3 --pretrain a"
    [finding] = report(f"python -m openrlhf.cli.train_ppo_ray {flags}")
    assert finding.code == "HF971"
    assert "--micro_train_batch_size may be --train.micro_batch_size now" in finding.notes


def test_values_that_only_a_run_knows_are_not_judged() -> None:
    result = report(command(train__batch_size="$(nproc)", reward__remote_url="$(pwd)/reward.py"))
    assert not list(result)
    assert any("'train.batch_size' is not known: only a shell knows $(nproc)" in t for t in result.coverage.not_judged)
    assert not any("reward" in text.partition(": ")[2] for text in result.coverage.not_judged)


def test_rules_that_stop_at_one_value_are_one_line() -> None:
    lines = report(command(rollout__batch_size="$(nproc)")).coverage.not_judged
    of_rules = [line for line in lines if "'rollout.batch_size' is not known" in line]
    assert len(of_rules) == 1
    assert "more rules: " in of_rules[0]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("run.sh", "python -m openrlhf.cli.train_sft --x 1", "the script starts openrlhf.cli.train_sft"),
        ("run.sh", "python launch.py 'python -m openrlhf.cli.train_ppo_ray'", "in a text within quotes"),
        ("run.sh", "echo", "starts no openrlhf.cli.train_ppo_ray"),
        ("run.yaml", "train: {}", "is not a shell script"),
    ],
)
def test_what_is_no_run_of_the_trainer(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(ReadError, match=words):
        read(Inputs(str(tmp_path / name)))


@given(st.lists(st.text(alphabet="-=ab.{}'\"$1 ,", max_size=12), max_size=5))
def test_any_options_are_read_or_refused(words: list[str]) -> None:
    quoted = " ".join("'" + word.replace("'", "") + "'" for word in words)
    assert all(finding.code in CODES for finding in report(f"python -m openrlhf.cli.train_ppo_ray {quoted}"))
