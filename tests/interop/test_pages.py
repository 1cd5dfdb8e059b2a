"""Pages about runs: their numbers are those of a simulation, and what is not known is said."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.interop.pages import Page, page
from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.reading import Inputs
from hfdsl.interop.text import SourceText
from hfdsl.interop.trl.reading import from_script as trl_script
from hfdsl.interop.verl.reading import from_script as verl_script
from tests.interop.test_trl import command
from tests.interop.test_verl import ACTOR, ROLLOUT, lists_of, script
from tests.nightly import examples


def page_of(library: str, text: str) -> Page:
    read_script = {"verl": verl_script, "trl": trl_script}[library]
    [reading] = read_script(SourceText("run.sh", text), Inputs("run.sh"))
    return page("run.sh", LIBRARIES[library].outline, reading.configuration)


def number(text: str, pattern: str) -> int:
    match = re.search(pattern, " ".join(text.split()))
    assert match is not None, text
    return int(match[1].replace(",", ""))


@settings(max_examples=examples(80))
@given(
    parts=st.integers(1, 6),
    per_rank=st.integers(1, 4),
    samples=st.integers(2, 5),
    epochs=st.integers(1, 3),
    micro=st.integers(1, 3),
)
def test_the_units_of_verl(parts: int, per_rank: int, samples: int, epochs: int, micro: int) -> None:
    mini = 16 * per_rank * micro  # prompts, so that rows divide over 16 GPUs and into micro-batches
    changes = {
        "data.train_batch_size": mini * parts,
        f"{ACTOR}.ppo_mini_batch_size": mini,
        f"{ROLLOUT}.n": samples,
        f"{ACTOR}.ppo_epochs": epochs,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": micro,
    }
    text = str(page_of("verl", script(**{lists_of(key): str(value) for key, value in changes.items()})))
    rows = [sample for _ in range(mini * parts) for sample in range(samples)]
    batches = [rows[i : i + mini * samples] for i in range(0, len(rows), mini * samples)]
    on_a_rank = batches[0][::16]
    assert number(text, r"\(actor_rollout_ref\.rollout\.n\): ([\d,]+) rows") == len(rows)
    assert number(text, r"([\d,]+) on each of 16 GPUs") == len(on_a_rank)
    assert number(text, r"The actor makes ([\d,]+) optimizer steps? a step") == len(batches) * epochs
    assert number(text, r"= ([\d,]+) micro-batch(?:es)? for an optimizer step") == len(on_a_rank[::micro])


@settings(max_examples=examples(80))
@given(rows=st.integers(1, 4), accumulation=st.integers(1, 4), steps=st.integers(1, 4), group=st.integers(2, 4))
def test_the_units_of_trl(rows: int, accumulation: int, steps: int, group: int) -> None:
    sizes = {"per_device_train_batch_size": rows * group, "num_generations": group, "steps_per_generation": steps}
    text = str(page_of("trl", command(**sizes, gradient_accumulation_steps=accumulation)))
    micro_batches = [[process for process in range(8) for _ in range(rows * group)] for _ in range(steps)]
    completions = sum(map(len, micro_batches))
    assert number(text, r"A generation is ([\d,]+) completions") == completions
    assert number(text, r"these are ([\d,]+) prompt") == completions // group
    assert number(text, r"([\d,]+) in all") == len(micro_batches[0])
    assert number(text, r"An optimizer step takes ([\d,]+) micro-batch") == accumulation
    assert ("Training is on-policy" in text) == (steps <= accumulation)


def test_every_section_is_there_for_a_whole_configuration() -> None:
    assert list(page_of("verl", script()).sections) == [
        "A step", "Optimizer steps", "Who runs where", "Staleness", "Memory",
    ]  # fmt: skip
    assert not page_of("verl", script()).not_known
    expected = ["A generation", "Optimizer steps", "Who runs where", "Staleness"]
    assert list(page_of("trl", command()).sections) == expected


def test_what_is_not_known_is_said_and_the_rest_is_there() -> None:
    unknown = page_of("verl", script().replace("trainer.nnodes=2", "trainer.nnodes=$NODES"))
    assert any("'NODES' is a variable of the environment" in reason for reason in unknown.not_known)
    assert "2,048 rows" in str(unknown)
    assert "optimizer step" not in " ".join(unknown.sections["A step"])
