"""Configurations with some of their text changed: findings or a coded refusal, and never another error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hfdsl.check.codes import CODES
from hfdsl.interop.checking import check, explain
from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.reading import Inputs
from hfdsl.interop.text import ReadError
from tests.interop import test_nemo_rl, test_openrlhf, test_trl, test_verl
from tests.nightly import examples

TEXTS = {
    ("verl", "run.sh"): test_verl.script(),
    ("verl", "run.yaml"): "data:\n  train_batch_size: 64\nactor_rollout_ref:\n  rollout: {name: vllm, n: 8}\n",
    ("trl", "run.sh"): test_trl.command(),
    ("trl", "grpo.yaml"): "num_generations: 8\nper_device_train_batch_size: 4\nlearning_rate: 1.0e-6\nbf16: true\n",
    ("nemo-rl", "run.sh"): test_nemo_rl.command(),
    (
        "nemo-rl",
        "grpo.yaml",
    ): "defaults: grpo_math_1B.yaml\ngrpo: {num_prompts_per_step: 32}\npolicy:\n  precision: b\n",
    ("openrlhf", "run.sh"): test_openrlhf.command(),
}
INSERTED = ("null", "true", "-1", "0", "1e999", "nan", "many", "[", "]", "{", "}", "'", '"', "${", "$(", "`", ",", ":",
            "=", "\n", "  ", "#", "\\", "\t", "~", "+", "--", "*", "&", "é", "\x00", "&a", "!!python/object:x",
            "9" * 40)  # fmt: skip
EDIT = st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(INSERTED))


@pytest.mark.nightly
@pytest.mark.parametrize(("library", "name"), TEXTS)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(EDIT, min_size=1, max_size=3))
def test_a_changed_configuration_is_judged_or_refused(
    library: str, name: str, tmp_path: Path, edits: list[tuple[float, int, str]]
) -> None:
    text = TEXTS[library, name]
    for where, length, inserted in edits:
        start = round(where * len(text))
        text = text[:start] + inserted + text[start + length :]
    path = tmp_path / name
    path.write_text(text, "utf-8")
    inputs = Inputs(str(path))
    try:
        findings = [finding for report in check(LIBRARIES[library], inputs) for finding in report]
        pages = list(explain(LIBRARIES[library], inputs))
    except ReadError:
        return  # HF970
    assert pages
    assert all(finding.code in CODES and finding.primary.span.line >= 1 for finding in findings)
