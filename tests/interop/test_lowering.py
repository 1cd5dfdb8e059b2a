"""Runs of any library as runs of hfdsl: lags, what has no counterpart, and values of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.check.codes import CODES
from hfdsl.errors import HfError
from hfdsl.interop.lowered_parts import MOST_LAG
from hfdsl.interop.lowered_runs import load
from hfdsl.interop.lowering import Lowered, NotLowered
from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.settings import Configuration
from tests.interop import test_nemo_rl, test_openrlhf
from tests.interop.lowering_runs import assert_the_same, lowered, of_nemo_rl, of_openrlhf, of_verl, reading_of
from tests.interop.test_lowering_openrlhf import READY_OF_OPENRLHF
from tests.interop.test_lowering_verl import READY
from tests.interop.test_trl import command
from tests.interop.test_verl import script
from tests.nightly import examples


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
