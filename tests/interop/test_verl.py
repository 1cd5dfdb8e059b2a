"""What a check says of configurations of verl: against a simulation of its rows, and one mistake at a time."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.check.codes import CODES
from hfdsl.check.report import Report
from hfdsl.interop.checking import report_on
from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.reading import Inputs
from hfdsl.interop.reporting import override
from hfdsl.interop.settings import NotKnown
from hfdsl.interop.text import ReadError, SourceText
from hfdsl.interop.verl.reading import from_script, read
from tests.nightly import examples

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
VALID = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": "256",
    "data.max_prompt_length": "512",
    "data.max_response_length": "1024",
    f"{ACTOR}.ppo_mini_batch_size": "64",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": "4",
    f"{ACTOR}.use_kl_loss": "True",
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.n": "8",
    f"{ROLLOUT}.tensor_model_parallel_size": "2",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": "8",
    f"{REF}.log_prob_micro_batch_size_per_gpu": "8",
    "trainer.n_gpus_per_node": "8",
    "trainer.nnodes": "2",
}


def script(**changes: str | None) -> str:
    """The valid run with changes, a key per line; keys are written with ``__`` for dots, None leaves one out."""
    settings = {**VALID, **{key.replace("__", "."): value for key, value in changes.items()}}
    words = [shlex.quote(f"{key}={value}") for key, value in settings.items() if value is not None]
    return " \\\n    ".join(["python3 -m verl.trainer.main_ppo", *words]) + "\n"


def report(text: str) -> Report:
    library = LIBRARIES["verl"]
    [reading] = from_script(SourceText("run.sh", text), Inputs("run.sh"))
    return report_on(library, reading, "run.sh")


def codes(text: str) -> list[str]:
    """The codes of a report, without the search for its help."""
    codes_found = list[str]()
    [reading] = from_script(SourceText("run.sh", text), Inputs("run.sh"))
    for rule in LIBRARIES["verl"].rules:
        with suppress(NotKnown):
            codes_found += [problem.finding.code for problem in rule(reading.configuration)]
    return codes_found


def errors(text: str) -> list[str]:
    return [code for code in codes(text) if CODES[code].severity == "error"]


def test_a_valid_run_has_no_finding() -> None:
    assert not list(report(script()))


def lists_of(key: str) -> str:
    return key.replace(".", "__")


MISTAKES: dict[str, tuple[dict[str, str | None], str, str]] = {
    "a typo": ({"data.train_batchsize": "64"}, "HF971", "did you mean data.train_batch_size?"),
    "a text for a size": ({"data.train_batch_size": "many"}, "HF972", "data.train_batch_size = many is not an integer"),
    "a zero": ({f"{ROLLOUT}.n": "0"}, "HF972", f"{ROLLOUT}.n = 0 is not positive"),
    "an unknown estimator": ({"algorithm.adv_estimator": "gropo"}, "HF972", "set algorithm.adv_estimator to grpo"),
    "no engine": ({f"{ROLLOUT}.name": None}, "HF974", "add actor_rollout_ref.rollout.name=vllm"),
    "a text for a switch": ({f"{ACTOR}.use_kl_loss": "no"}, "HF972", "is neither True nor False"),
    "no micro-batch": ({f"{ACTOR}.ppo_micro_batch_size_per_gpu": None}, "HF974", "is not set"),
    "both micro-batches": ({f"{ACTOR}.ppo_micro_batch_size": "64"}, "HF974", "exclude each other"),
    "a critic that is off": ({"algorithm.adv_estimator": "gae", "critic.enable": "False"}, "HF974", "needs the values"),
    "rows over GPUs": (
        {"data.train_batch_size": "100", f"{ACTOR}.ppo_mini_batch_size": "100", f"{ROLLOUT}.n": "5"},
        "HF976",
        "100 x 5 = 500 rows do not divide by 16 GPUs: 500 % 16 = 4",
    ),
    "a mini-batch above the batch": (
        {f"{ACTOR}.ppo_mini_batch_size": "512"},
        "HF976",
        f"{ACTOR}.ppo_mini_batch_size = 512 prompts are more than the 256 of data.train_batch_size",
    ),
    "micro-batches in a mini-batch": (
        {f"{ACTOR}.ppo_micro_batch_size_per_gpu": "5"},
        "HF976",
        "64 prompts x 8 samples = 512 rows, 32 on each of 16 GPUs, which are not whole micro-batches of 5: 32 % 5 = 2",
    ),
    "a text for a rate": ({f"{ACTOR}.optim.lr": "fast"}, "HF972", f"{ACTOR}.optim.lr = fast is not a number"),
    "a list for a coefficient": (
        {f"{ACTOR}.entropy_coeff": "[0.1]"}, "HF972", f"{ACTOR}.entropy_coeff = [0.1] is not a number",
    ),
    "nothing for a rate": ({f"{ACTOR}.optim.lr": "null"}, "HF972", f"{ACTOR}.optim.lr = null is not a number"),
    "a fraction for a seed": (
        {f"{ACTOR}.data_loader_seed": "42.5"}, "HF972", f"set {ACTOR}.data_loader_seed to 42",
    ),
    "a rate below 0": ({f"{ACTOR}.optim.lr": "-1e-6"}, "HF972", f"set {ACTOR}.optim.lr to 0"),
    "no mode": ({f"{ROLLOUT}.mode": "null"}, "HF972", f"{ROLLOUT}.mode = null: verl 0.9 has async alone"),
    "a clip that a bound is left to": (
        {f"{ACTOR}.clip_ratio": "much", f"{ACTOR}.clip_ratio_low": "null"},
        "HF972",
        "clip_ratio = much is not a number",
    ),
    "a share above 1": ({f"{ROLLOUT}.top_p": "1.5"}, "HF972", "is not above 0 and at most 1"),
    "an unknown loss": (
        {f"{ACTOR}.policy_loss.loss_mode": "vanila"}, "HF972", f"set {ACTOR}.policy_loss.loss_mode to vanilla",
    ),
    "no estimate of the KL": ({f"{ACTOR}.kl_loss_type": "null"}, "HF972", f"{ACTOR}.kl_loss_type = null is not one of"),
    "a text for a seed": ({"data.seed": "nul"}, "HF972", "data.seed = nul is not an integer"),
    "an engine of weights": (
        {f"{ROLLOUT}.checkpoint_engine.backend": "NAIVE"}, "HF972", f"set {ROLLOUT}.checkpoint_engine.backend to naive",
    ),
    "no version": ({"trainer.v1.sampler.max_off_policy_threshold": "0"}, "HF972", "neither null nor a positive"),
    "padded rows of a reference": (
        {f"{REF}.ulysses_sequence_parallel_size": "2", "actor_rollout_ref.model.use_remove_padding": "False"}, "HF974",
        f"{REF}.ulysses_sequence_parallel_size = 2 needs actor_rollout_ref.model.use_remove_padding",
    ),
    "a word for dynamic batches": (
        {f"{ACTOR}.use_dynamic_bsz": "yes", f"{ROLLOUT}.log_prob_use_dynamic_bsz": "True"},
        "HF974",
        "refuses two modes",
    ),
    "groups that are alike": ({f"{ROLLOUT}.temperature": "0"}, "HF979", "the 8 responses to a prompt are all alike"),
    "shards over GPUs": (
        {f"{ACTOR}.fsdp_config.fsdp_size": "3"}, "HF977", f"{ACTOR}.fsdp_config.fsdp_size = 3 does not divide 16 GPUs",
    ),
    "an engine over GPUs": ({f"{ROLLOUT}.tensor_model_parallel_size": "3"}, "HF977", "an engine takes 3 GPUs"),
    "sequence parallel ranks": ({f"{ACTOR}.ulysses_sequence_parallel_size": "3"}, "HF977", "does not divide 16 GPUs"),
    "groups of one": ({f"{ROLLOUT}.n": "1"}, "HF979", "each advantage is the reward itself"),
    "a short context": ({f"{ROLLOUT}.max_model_len": "1024"}, "HF978", "cuts responses to the longest prompts at 512"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_at_its_key_in_the_units_of_the_library(name: str) -> None:
    changes, code, words = MISTAKES[name]
    text = script(**{lists_of(key): value for key, value in changes.items()})
    findings = [finding for finding in report(text) if finding.code == code]
    assert any(words in " ".join((f.message, *f.help, *f.notes)) for f in findings), findings
    written = [key for key, value in changes.items() if value is not None]
    lines = {number for number, line in enumerate(text.splitlines(), 1) if any(f"{key}=" in line for key in written)}
    assert not written or any({f.primary.span.line, *(r.span.line for r in f.related)} & lines for f in findings)


UNREAD = {
    "a coefficient of a loss that is off": ({f"{ACTOR}.use_kl_loss": "False", f"{ACTOR}.kl_loss_coef": "many"}),
    "a discount that GRPO has not": ({"algorithm.lam": "many"}),
    "a rate of a critic that is not there": ({"critic.optim.lr": "many"}),
    "a clip with both bounds": ({f"{ACTOR}.clip_ratio": "much"}),
    "a switch for a number": ({f"{ACTOR}.entropy_coeff": "true"}),
    "an integer for a number": ({f"{ACTOR}.optim.lr": "1"}),
    "a fraction that is only compared": ({"trainer.save_freq": "10.5"}),
    "two numbers where there are two": ({f"{ACTOR}.optim.betas": "[0.9, 0.98]"}),
    "two thresholds in one text": ({"algorithm.rollout_correction.rollout_is_threshold": "0.5_5.0"}),
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_value_that_verl_takes_or_does_not_read_is_no_finding(name: str) -> None:
    assert "HF972" not in codes(script(**{lists_of(key): value for key, value in UNREAD[name].items()}))


def test_a_value_of_a_variable_is_fixed_where_it_is_assigned() -> None:
    text = "MICRO=${MICRO:-5}\n" + script().replace("_per_gpu=4", "_per_gpu=$MICRO")
    [finding] = report(text)
    label = f"{ACTOR}.ppo_micro_batch_size_per_gpu = 5, from line 1"
    assert (finding.primary.span.line, finding.primary.text) == (8, label)
    [edit] = finding.fixes[0].edits
    assert (edit.span.line, edit.span.column, edit.span.end_column, edit.text) == (1, 15, 16, "4")


# -- rows, against a simulation


def simulated(train: int, n: int, mini: int, micro: int, gpus: int, ranks: int) -> bool:
    """Whether rows go through a step of verl without a remainder, by lists of rows rather than by arithmetic.

    ``ranks`` data-parallel ranks on ``gpus`` GPUs. verl 0.9 wants the rows of a step to divide over the GPUs and a
    mini-batch within the batch when it starts; it pads the rows to whole mini-batches over all ranks.
    """
    rows = [(prompt, sample) for prompt in range(train) for sample in range(n)]
    if len(rows) % gpus or mini > train:
        return False
    while len(rows) % ranks or len(rows) % (mini * n):
        rows.append((-1, 0))
    for start in range(0, len(rows), mini * n):
        mini_batch = rows[start : start + mini * n]
        shards = [mini_batch[rank::ranks] for rank in range(ranks)]
        if any(len(shard) != len(shards[0]) for shard in shards) or len(shards[0]) % micro:
            return False
    return True


@settings(max_examples=examples(200))
@given(
    train=st.integers(1, 24), n=st.integers(1, 5), mini=st.integers(1, 24), micro=st.integers(1, 4),
    nodes=st.integers(1, 2), per_node=st.sampled_from([1, 2, 3, 4]), sequence=st.sampled_from([1, 2]),
)  # fmt: skip
def test_sizes_are_blamed_as_a_simulation_says(
    train: int, n: int, mini: int, micro: int, nodes: int, per_node: int, sequence: int
) -> None:
    gpus = nodes * per_node
    changes = {
        "data.train_batch_size": train, f"{ROLLOUT}.n": n, f"{ACTOR}.ppo_mini_batch_size": mini,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": micro, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 1,
        f"{REF}.log_prob_micro_batch_size_per_gpu": 1, "trainer.nnodes": nodes, "trainer.n_gpus_per_node": per_node,
        f"{ROLLOUT}.tensor_model_parallel_size": 1, f"{ACTOR}.ulysses_sequence_parallel_size": sequence,
        f"{REF}.ulysses_sequence_parallel_size": sequence, "actor_rollout_ref.model.use_remove_padding": True,
    }  # fmt: skip
    text = script(**{lists_of(key): str(value) for key, value in changes.items()})
    whole = gpus % sequence == 0
    right = whole and simulated(train, n, mini, micro, gpus, gpus // sequence)
    assert (not errors(text)) == right


@settings(max_examples=examples(60))
@given(train=st.integers(1, 64), mini=st.integers(1, 64), micro=st.integers(1, 9), n=st.integers(1, 8))
def test_a_suggested_size_is_valid(train: int, mini: int, micro: int, n: int) -> None:
    keys = ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    changes = dict(zip(map(lists_of, keys), map(str, (train, mini, micro)), strict=True))
    changes[lists_of(f"{ROLLOUT}.n")] = str(n)
    wrong = [finding for finding in report(script(**changes)) if finding.code == "HF976"]
    for finding in wrong:
        for sentence in finding.help:
            joint = re.fullmatch(r"set (\S+) to (\d+) and (\S+) to (\d+)", sentence)
            if joint is not None:
                both = {lists_of(joint[1]): joint[2], lists_of(joint[3]): joint[4]}
                assert not set(codes(script(**changes | both))) & {"HF975", "HF976"}, sentence
                continue
            match = re.fullmatch(r"set (\S+) to (\d+)(?: or (\d+))?", sentence)
            assert match is not None, sentence
            for value in filter(None, match.groups()[1:]):
                after = codes(script(**changes | {lists_of(match[1]): value})).count("HF976")
                assert after < len(wrong)


def test_sizes_are_suggested_that_fit_together() -> None:
    """Each size of its own would be 496 and 128, and 496 prompts are not whole mini-batches of 128."""
    mini = f"{ACTOR}.ppo_mini_batch_size"
    micro, engine = f"{ACTOR}.ppo_micro_batch_size_per_gpu=16", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=16"
    keys = ["data.train_batch_size=500", f"{mini}=130", micro, engine, f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.n=1"]
    keys += ["algorithm.adv_estimator=grpo", "trainer.n_gpus_per_node=8", "trainer.nnodes=1"]
    text = " ".join(["python3 -m verl.trainer.main_ppo", *keys])
    wrong = [finding for finding in report(text) if finding.code == "HF976"]
    assert wrong
    assert {sentence for finding in wrong for sentence in finding.help} == {
        f"set data.train_batch_size to 512 and {mini} to 128"
    }
    assert override(wrong[0]) == (("data.train_batch_size", "512"), (mini, "128"))


# -- files


def test_a_misspelled_key_of_a_file_has_an_edit(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("actor_rollout_ref:\n  rollout:\n    name: vllm\n    gpu_memory_utilizaton: 0.5\n")
    [reading] = read(Inputs(str(file)))
    [finding] = [f for f in reading.findings if f.code == "HF973"]
    [edit] = finding.fixes[0].edits
    assert (edit.span.line, edit.span.column, edit.text) == (4, 4, "gpu_memory_utilization")
    assert edit.span.end_column - edit.span.column == len("gpu_memory_utilizaton")


def test_a_yaml_file_and_a_folder_of_hydra_are_read(tmp_path: Path) -> None:
    tree = "data:\n  train_batch_size: 100\nactor_rollout_ref:\n  rollout:\n    name: vllm\n    n: 5\n"
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(tree)
    for path in (tmp_path, tmp_path / ".hydra" / "config.yaml"):
        [reading] = read(Inputs(str(path), SourceText("<command line>", "data.train_batch_size=12")))
        assert reading.configuration.value("data.train_batch_size") == 12
        assert reading.configuration.value(f"{ROLLOUT}.n") == 5
        assert reading.configuration.setting(f"{ROLLOUT}.n").span.line == 6  # type: ignore[union-attr]  # it is there


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("echo", 1, "starts no verl.trainer.main_ppo"),
        ("set -x\npython -m verl.trainer.main_generation a=1", 2, "another program"),
        (
            "set -x\npython3 -m verl.trainer.main_ppo --config-name=mine a=1",
            2,
            "'mine.yaml', which --config-name names",
        ),
        ("set -x\npython launch.py 'python3 -m verl.trainer.main_ppo a=1'", 2, "in a text within quotes"),
        ("set -x\nbash train.sh", 2, "it runs 'train.sh'"),
        ("if", 1, "no shell script"),
    ],
)
def test_what_is_no_run_is_said_with_its_place(text: str, line: int, words: str) -> None:
    with pytest.raises(ReadError, match=words) as raised:
        report(text)
    assert raised.value.span.line == line  # type: ignore[attr-defined]  # a ReadError has a span


@pytest.mark.parametrize(
    ("script_file", "flags"),
    [
        ("run.sh", "--config-path=config --config-name=mine"),
        ("run.sh", "--config-path=\"$PWD/config\" --config-name='mine.yaml'"),
        ("scripts/x/run.sh", "--config-path=$(pwd)/config --config-name mine"),
        ("config/run.sh", "-cn mine"),
    ],
)
def test_a_configuration_beside_the_script_is_read(script_file: str, flags: str, tmp_path: Path) -> None:
    file = tmp_path / "config" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("defaults: [ppo_trainer, _self_]\ndata:\n  train_batch_size: 96\n  max_prompt_length: 7\n")
    text = script(data__max_response_length="9", data__train_batch_size=None).replace("main_ppo", f"main_ppo {flags}")
    (tmp_path / script_file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / script_file).write_text(text)
    [reading] = read(Inputs(str(tmp_path / script_file)))
    settings = reading.configuration
    assert [settings.value(f"data.{key}") for key in ("train_batch_size", "max_prompt_length")] == [96, 512]
    assert settings.span("data.train_batch_size").file == str(file)
    assert any("--config-name=mine is taken to be" in unread.reason for unread in reading.unread)


def test_a_configuration_whose_name_is_not_known_is_said() -> None:
    [reading] = from_script(
        SourceText("run.sh", script().replace("main_ppo", "main_ppo --config-name=$NAME")), Inputs("run.sh")
    )
    assert any("the value of '--config-name' is not known" in unread.reason for unread in reading.unread)


@pytest.mark.parametrize(
    "start",
    [
        'N=16\nCMD="{0} {1}=$N"\neval "$CMD" 2>&1 | tee log',
        'docker run --gpus all image bash -c "cd /x && \\\n  {0} \\\n    {1}=16"',
        'run() {{\n  {0} {1}=$1 "${{@:2}}"\n}}\nfor n in 16; do echo; done\nrun 16',
        "ray job submit --address=x -- bash -lc '{0} {1}=16'",
        'nohup srun bash -c "{0} {1}=16" > log 2>&1 &',
    ],
)
def test_a_run_in_a_text_or_a_function_is_judged_at_its_own_line(start: str, tmp_path: Path) -> None:
    key = f"{ROLLOUT}.gpu_memory_utilizatoin"
    file = tmp_path / "run.sh"
    file.write_text(start.format(script().replace("\\\n", " ").strip(), key), "utf-8")
    [reading] = read(Inputs(str(file)))
    [finding] = [f for f in report_on(LIBRARIES["verl"], reading, "run.sh") if f.code == "HF971"]
    assert f"{key}=" in file.read_text("utf-8").split("\n")[finding.primary.span.line - 1]


@given(st.lists(st.text(alphabet="+~a.=@[]{}'\"$,:_ \\\n-0", max_size=20), max_size=4))
def test_any_overrides_are_read_or_refused(words: list[str]) -> None:
    text = "python3 -m verl.trainer.main_ppo " + " ".join(map(shlex.quote, words))
    assert all(finding.code in CODES for finding in report(text))


KEYS = sorted(key for key in VALID if key != "algorithm.adv_estimator")


@given(
    st.sampled_from(KEYS),
    st.sampled_from(["null", "-1", "1e99", "[]", "{}", "${x}", "${oc.env:X}", "''", "True", "9" * 40, "0"]),
)
def test_no_value_of_a_key_breaks_a_rule(key: str, value: str) -> None:
    assert all(finding.code in CODES for finding in report(script(**{lists_of(key): value})))


def test_what_is_not_known_is_listed_and_not_judged() -> None:
    text = script().replace("data.train_batch_size=256", 'data.train_batch_size="$BATCH"')
    judged = report(text)
    assert not list(judged)
    reasons = [line for line in judged.coverage.not_judged if "'BATCH' is a variable of the environment" in line]
    assert any("The rows of a step divide over the GPUs" in line for line in reasons)
