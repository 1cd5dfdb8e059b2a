"""``hfdsl check --from LIBRARY``: exit codes, forms, fixes, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hfdsl.interop.text import MAX_BYTES
from hfdsl.tools import output
from hfdsl.tools.cli import main

Capture = pytest.CaptureFixture[str]
Write = Callable[[str, str], str]

RUN = """#!/bin/bash
BATCH=${BATCH:-256}
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=$BATCH \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=8 \\
    trainer.n_gpus_per_node=8 "$@"
"""
WRONG = RUN.replace("mini_batch_size=64", "mini_batch_size=63").replace("n=8", "n=5")
PADDED = RUN.replace("mini_batch_size=64", "mini_batch_size=100")


def run_cli(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = main(["check", "--from", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("text", "argv", "code"),
    [
        (RUN, [], output.OK),
        (WRONG, [], output.FINDINGS),
        (PADDED, [], output.OK),
        (PADDED, ["--strict"], output.FINDINGS),
        (RUN, ["--env", "BATCH=100"], output.OK),
        (RUN, ["--env", "BATCH"], output.USAGE),
        (RUN, ["--", "actor_rollout_ref.rollout.tensor_model_parallel_size=3"], output.FINDINGS),
        ("echo $(", [], output.FINDINGS),
    ],
)
@pytest.mark.parametrize("form", ["human", "json", "sarif", "github"])
def test_exit_codes(text: str, argv: list[str], code: int, form: str, write: Write, capsys: Capture) -> None:
    write("run.sh", text)
    assert run_cli(capsys, "verl", "run.sh", "--format", form, *argv)[0] == code


def test_an_unknown_library_is_refused(write: Write, capsys: Capture) -> None:
    write("run.sh", RUN)
    code, _, err = run_cli(capsys, "verll", "run.sh")
    assert code == output.USAGE
    assert "did you mean 'verl'" in err


def test_an_annotation_is_at_the_key_in_the_script(write: Write, capsys: Capture) -> None:
    write("run.sh", WRONG)
    _, out, _ = run_cli(capsys, "verl", "run.sh", "--format", "github")
    assert out.startswith("::error file=run.sh,line=6,col=5,endColumn=51,title=HF976::")
    _, out, _ = run_cli(capsys, "verl", "run.sh", "--format", "sarif")
    [result] = json.loads(out)["runs"][0]["results"]
    region = result["locations"][0]["physicalLocation"]["region"]
    assert (result["ruleId"], region["startLine"], region["startColumn"], region["endColumn"]) == ("HF976", 6, 5, 51)


def test_a_fix_edits_the_value_where_it_is_written(write: Write, capsys: Capture, tmp_path: Path) -> None:
    write("run.sh", RUN.replace("BATCH:-256", "BATCH:-61").replace("n=8", "n=7").replace("size=64", "size=8"))
    code, out, _ = run_cli(capsys, "verl", "run.sh", "--fix")
    assert code == output.OK, out
    assert "+BATCH=${BATCH:-64}" in out
    assert "BATCH:-64" in (tmp_path / "run.sh").read_text()


def test_what_is_not_judged_is_in_every_form(write: Write, capsys: Capture) -> None:
    write("run.sh", RUN.replace("${BATCH:-256}", "$(nproc)"))
    for form in ("human", "json", "sarif", "github"):
        code, out, _ = run_cli(capsys, "verl", "run.sh", "--format", form)
        assert code == output.OK
        assert "only a shell knows $(nproc)" in out


CONTENTS = [b"\xff\xfe\0a", b"a" * (MAX_BYTES + 1), b"", b"if", b"a: [" * 9, b"\0" * 99]


@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
@pytest.mark.parametrize("name", ["run.sh", "run.yaml"])
def test_a_file_that_is_no_configuration_is_a_coded_finding(
    content: bytes, name: str, write: Write, capsys: Capture, tmp_path: Path
) -> None:
    write(name, "")
    (tmp_path / name).write_bytes(content)
    code, out, err = run_cli(capsys, "verl", name)
    assert code == output.FINDINGS
    assert (out, err[:12]) == ("", "error[HF970]")


def test_a_file_that_is_not_there_is_a_finding(write: Write, capsys: Capture) -> None:
    write("other", "")
    code, _, err = run_cli(capsys, "verl", "nowhere.sh")
    assert code == output.FINDINGS
    assert "cannot read 'nowhere.sh'" in err


def test_another_version_than_the_known_one_is_a_warning(write: Write, capsys: Capture) -> None:
    write("run.sh", RUN)
    code, out, _ = run_cli(capsys, "verl==0.4.1", "run.sh")
    assert code == output.OK
    assert "warning[HF980]: this reader knows verl 0.9" in out


def test_what_no_file_has_is_fixed_by_an_override(write: Write, capsys: Capture) -> None:
    write("run.sh", RUN)
    overrides = ["--", "actor_rollout_ref.rollout.tensor_model_parallel_size=3"]
    code, out, _ = run_cli(capsys, "verl", "run.sh", "--fix", *overrides)
    assert code == output.FINDINGS
    words = re.findall(r"^append to the command: (\S+)$", out, re.MULTILINE)
    assert words == ["actor_rollout_ref.rollout.tensor_model_parallel_size=2"]
    assert run_cli(capsys, "verl", "run.sh", *overrides, *words)[0] == output.OK


def test_a_file_that_has_changed_is_read_again(write: Write, capsys: Capture) -> None:
    write("run.sh", WRONG)
    _, first, _ = run_cli(capsys, "verl", "run.sh", "--format", "github")
    write("run.sh", "\n" * 9 + WRONG)
    _, second, _ = run_cli(capsys, "verl", "run.sh", "--format", "github")
    assert second.startswith(first.partition(",title")[0].replace("line=6", "line=15"))
