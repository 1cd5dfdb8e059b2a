"""What a check says of configurations of TRL: against a simulation of its groups, and one mistake at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.check.codes import CODES
from hfdsl.check.report import Report
from hfdsl.interop.checking import report_on
from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.reading import Inputs
from hfdsl.interop.text import ReadError, SourceText
from hfdsl.interop.trl.reading import from_script, read
from tests.nightly import examples

VALID: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 4,
    "num_generations": 16,
    "reward_funcs": "accuracy_reward",
    "num_processes": 8,
}


def command(program: str = "trl grpo", /, **changes: Any) -> str:
    """The valid run with changes, an argument per line; None leaves one out."""
    arguments = {key: value for key, value in (VALID | changes).items() if value is not None}
    return " \\\n    ".join([program, *(f"--{key} {value}" for key, value in arguments.items())]) + "\n"


def report(text: str) -> Report:
    [reading] = from_script(SourceText("run.sh", text), Inputs("run.sh"))
    return report_on(LIBRARIES["trl"], reading, "run.sh")


def errors(text: str) -> list[str]:
    return [finding.code for finding in report(text) if CODES[finding.code].severity == "error"]


def test_a_valid_run_has_no_finding() -> None:
    assert not list(report(command()))


MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "a typo": ({"learning_rte": "1e-6"}, "HF971", "did you mean learning_rate?"),
    "a group of one": ({"num_generations": 1}, "HF972", "two completions to a prompt or more"),
    "a zero": ({"per_device_train_batch_size": 0}, "HF972", "is not positive"),
    "groups in a generation": (
        {"num_generations": 48},
        "HF976",
        "4 x 8 x 4 = 128 completions, which are not whole groups of num_generations = 48: 128 % 48 = 32",
    ),
    "both sizes of a generation": (
        {"generation_batch_size": 128, "steps_per_generation": 4},
        "HF974",
        "exclude each other",
    ),
    "micro-batches in a generation": ({"generation_batch_size": 48}, "HF976", "48 % 32 = 16"),
    "an evaluation batch": (
        {"eval_strategy": "steps", "per_device_eval_batch_size": 3},
        "HF976",
        "3 x 8 = 24 completions",
    ),
    "a batch that shrinks": ({"auto_find_batch_size": "True"}, "HF974", "would cut groups"),
    "an unknown loss": ({"loss_type": "dapoo"}, "HF972", "set loss_type to dapo"),
    "a reference that is not there": ({"sync_ref_model": ""}, "HF974", "beta = 0 has no reference model"),
    "engines": ({"use_vllm": "", "vllm_tensor_parallel_size": 3}, "HF977", "3 of 8 processes"),
    "an unknown reward": ({"reward_funcs": "acuracy_reward"}, "HF972", "did you mean accuracy_reward?"),
    "weights": ({"reward_weights": "1 2"}, "HF974", "2 weights, and there are 1 reward functions"),
    "a short context": (
        {"use_vllm": "", "vllm_max_model_length": 512, "max_completion_length": 512},
        "HF978",
        "leaves no room",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_at_its_argument(name: str) -> None:
    changes, code, words = MISTAKES[name]
    text = command(**changes)
    findings = [finding for finding in report(text) if finding.code == code]
    assert any(words in " ".join((f.message, *f.help, *f.notes)) for f in findings), list(report(text))
    lines = {n for n, line in enumerate(text.splitlines(), 1) if any(f"--{key} " in line for key in changes)}
    assert any({f.primary.span.line, *(r.span.line for r in f.related)} & lines for f in findings)


SIZE = st.integers(1, 9)


@settings(max_examples=examples(200))
@given(rows=SIZE, processes=SIZE, accumulation=SIZE, group=st.integers(2, 9), steps=st.none() | SIZE)
def test_generations_are_blamed_as_a_simulation_says(
    rows: int, processes: int, accumulation: int, group: int, steps: int | None
) -> None:
    """A sampler repeats each prompt ``group`` times until the micro-batches of a generation are full."""
    slots = [None] * (rows * processes * (accumulation if steps is None else steps))
    while len(slots) >= group:
        del slots[:group]
    sizes = {"per_device_train_batch_size": rows, "num_processes": processes, "num_generations": group}
    text = command(**sizes, gradient_accumulation_steps=accumulation, steps_per_generation=steps)
    assert bool(errors(text)) == bool(slots)


@pytest.mark.parametrize(
    ("text", "processes"),
    [
        ("accelerate launch --num_processes 4 -m trl.scripts.grpo --num_generations 8", 4),
        ("torchrun --nproc_per_node 4 --nnodes 2 train_grpo.py --num_generations 8", 8),
        ("torchrun --nproc-per-node=4 train_grpo.py --num_generations 8", 4),
        ("python train_grpo.py --num_generations 8", None),
        ("trl rloo --num_processes 2 --num_generations 8", 2),
    ],
)
def test_launchers_say_how_many_processes_there_are(text: str, processes: int | None) -> None:
    [reading] = from_script(SourceText("run.sh", text), Inputs("run.sh"))
    assert reading.configuration.known("num_processes") == processes
    assert reading.configuration.value("num_generations") == 8


def test_a_script_of_the_users_own_may_have_other_defaults_and_arguments() -> None:
    wrong = report("torchrun --nproc_per_node 3 my_grpo.py --num_generations 8 --my_own 3")
    assert not list(wrong)
    assert any("'my_grpo.py' may set it" in line for line in wrong.coverage.not_judged)
    assert any("my_own" in line for line in wrong.coverage.not_judged)
    sizes = "--per_device_train_batch_size 1 --gradient_accumulation_steps 1 --steps_per_generation 1"
    text = f"torchrun --nproc_per_node 3 my_grpo.py --num_generations 8 {sizes} --generation_batch_size 4"
    assert errors(text) == ["HF974"]


def test_files_beside_the_script_are_read(tmp_path: Path) -> None:
    (tmp_path / "accelerate.yaml").write_text("num_processes: 3\n")
    (tmp_path / "grpo.yaml").write_text(
        "num_generations: 8\nmodel_init_kwargs:\n  dtype: bfloat16\nper_device_train_batch_size: 2\n"
    )
    (tmp_path / "run.sh").write_text(
        "accelerate launch --config_file accelerate.yaml -m trl.scripts.grpo --config grpo.yaml\n"
    )
    [reading] = read(Inputs(str(tmp_path / "run.sh")))
    [finding] = report_on(LIBRARIES["trl"], reading, "run.sh")
    assert "2 x 3 x 1 = 6 completions, which are not whole groups of num_generations = 8" in finding.message
    assert Path(finding.primary.span.file).name == "grpo.yaml"
    assert {Path(label.span.file).name for label in finding.related} == {"grpo.yaml", "accelerate.yaml"}


def test_a_yaml_file_is_read_with_arguments_behind_it(tmp_path: Path) -> None:
    file = tmp_path / "grpo.yaml"
    file.write_text("num_generations: 16\nlerning_rate: 1.0e-6\nmy_own: 1\n")
    [reading] = read(Inputs(str(file), SourceText("<command line>", "--num_processes 3")))
    findings = {(f.code, f.primary.span.line) for f in report_on(LIBRARIES["trl"], reading, "grpo.yaml")}
    assert findings == {("HF976", 1), ("HF971", 2)}
    [reading] = read(Inputs(str(file)))
    not_judged = report_on(LIBRARIES["trl"], reading, "grpo.yaml").coverage.not_judged
    assert any("'num_processes' is not known" in line for line in not_judged)
    assert any("my_own" in line for line in not_judged)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("max_steps: null", "HF972"),
        ("seed: 42.5", "HF972"),
        ("weight_decay: [0.1]", "HF972"),
        ("loss_type: null", "HF972"),
        ("optim: default", "HF972"),
        ("lora_alpha: 32.5", ""),
        ("lora_r: 8.5", ""),  # no adapter is trained
        ("top_p: 1", ""),
        ("save_total_limit: null", ""),
        ("max_prompt_length: 64", "HF971"),
    ],
)
def test_values_of_a_file_have_the_types_that_trl_needs(tmp_path: Path, line: str, code: str) -> None:
    file = tmp_path / "grpo.yaml"
    file.write_text(f"num_generations: 8\n{line}\n")
    [reading] = read(Inputs(str(file)))
    findings = [(f.code, f.primary.span.line) for f in report_on(LIBRARIES["trl"], reading, "grpo.yaml")]
    assert findings == ([(code, 2)] if code else [])


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("set -x\ntrl sft --output_dir x", 2, "'trl sft' is not a GRPO or RLOO trainer"),
        ("set -x\npython train.py --learning_rate 1", 2, "'train.py' is not a GRPO or RLOO trainer"),
        ("set -x\ntorchrun", 1, "starts no online trainer of TRL"),
        ("set -x\npython -c 'run(\"trl grpo --output_dir x\")'", 2, "in a text within quotes"),
    ],
)
def test_what_is_no_run_of_an_online_trainer(text: str, line: int, words: str) -> None:
    with pytest.raises(ReadError, match=words) as raised:
        report(text)
    assert raised.value.span.line == line  # type: ignore[attr-defined]  # a ReadError has a span


@given(st.lists(st.text(alphabet="-=ab[]{}'\"$1. ,", max_size=12), max_size=5))
def test_any_arguments_are_read_or_refused(words: list[str]) -> None:
    text = "trl grpo " + " ".join("'" + word.replace("'", "") + "'" for word in words)
    assert all(finding.code in CODES for finding in report(text))
