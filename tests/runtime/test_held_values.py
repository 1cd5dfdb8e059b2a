"""A checkpoint's queues are those of the program that loads them, or the load is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import CheckpointError
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.queues.held_values import held_values
from hfdsl.runtime.saving.sealed_json import sealed, unsealed
from tests.runtime.stage_programs import (
    Actor,
    B,
    Engine,
    Judge,
    Prompts,
    Scored,
    Scores,
    Trained,
    deciding,
    prompts,
    stage_deployment,
)

LATES: list[Late] = ["wait", "drop"]
"""With the first, stages follow each other step by step; with the second, the queue is dynamic."""


@hf.function
def doubled(scores: Scores) -> Scores:
    """Twice the scores."""
    return Scores(score=scores.score.tensor * 2)


def program(late: Late, *, in_front: bool, behind: bool) -> Any:
    """One program as it is written at different times: with another call in front of its queue, and one behind it."""

    @hf.dataflow
    def edited(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor) -> tuple[Trained, Scores]:
        samples = engine.generate(prompts)
        scores = judge.score(samples)
        scores = doubled(scores) if in_front else scores
        batch = hf.queue(hf.merge(Scored, prompts, samples, scores), lag=1, late=late)
        trained = actor.update(batch)
        hf.sync(actor, engine)
        metrics = actor.rate(hf.merge(Scores, batch))
        return trained, doubled(metrics) if behind else metrics

    return edited


def saved(dataflow: Any, folder: Path, dims: dict[Any, int] | None = None) -> int:
    """Save a run with rows in its queue, and return the number of batches that it has read."""
    with dataflow.compile(stage_deployment(), dims=dims).launch(seed=3) as running:
        next(running.stream(prompts(6, 4)))
        running.save(folder)
        return int(running.batches_read)


@pytest.mark.parametrize("late", LATES)
@pytest.mark.parametrize(("there", "here"), [(2, 1), (1, 2)])
def test_a_checkpoint_with_groups_of_another_size_is_refused(late: Late, there: int, here: int, tmp_path: Path) -> None:
    saved(deciding.given(late=late, group=there), tmp_path, {B: 4})
    text = rf"HF905: .* 'deciding' differ: '1 repeat\(0\) of times={there}' there, '1 repeat\(0\) of times={here}' here"
    plan = deciding.given(late=late, group=here).compile(stage_deployment(), dims={B: 4})
    with plan.launch(seed=3) as running, pytest.raises(CheckpointError, match=text):
        running.load(tmp_path)


@pytest.mark.parametrize("late", LATES)
@pytest.mark.parametrize("there", [True, False])
def test_a_checkpoint_of_other_calls_in_front_of_the_queue_is_refused(late: Late, there: bool, tmp_path: Path) -> None:
    saved(program(late, in_front=there, behind=False), tmp_path)
    plan = program(late, in_front=not there, behind=False).compile(stage_deployment())
    with plan.launch(seed=3) as running, pytest.raises(CheckpointError, match=r"HF905: .* differ: '3 .*' there, '3 "):
        running.load(tmp_path)


@pytest.mark.parametrize("late", LATES)
def test_what_is_behind_a_queue_may_change(late: Late, tmp_path: Path) -> None:
    read = saved(program(late, in_front=False, behind=False), tmp_path)
    plan = program(late, in_front=False, behind=True).compile(stage_deployment())
    with plan.launch(seed=3) as running:
        running.load(tmp_path)
        results = list(running.stream(prompts(6, 4, read)))
    numbers = [number for trained, _ in results for number in trained.number.tensor.tolist()]
    assert numbers == list(range(4, 24))


@pytest.mark.parametrize("late", LATES)
def test_a_checkpoint_with_batches_of_another_size_is_refused(late: Late, tmp_path: Path) -> None:
    saved(deciding.given(late=late), tmp_path, {B: 4})
    text = r"HF905: the state has rows of other sizes in the queues of 'deciding': .* has 4 where B = 8"
    plan = deciding.given(late=late).compile(stage_deployment(), dims={B: 8})
    with plan.launch(seed=3) as running, pytest.raises(CheckpointError, match=text):
        running.load(tmp_path)


def test_queues_that_decide_here_and_follow_steps_there_are_refused(tmp_path: Path) -> None:
    plan = deciding.given(late="wait", rows=4)
    saved(plan, tmp_path, {B: 4})  # whole steps; without the size, 4 rows may be of several steps
    text = "HF905: .* other queues: they take whole steps in order there, and take groups of several steps here"
    with plan.compile(stage_deployment()).launch(seed=3) as running, pytest.raises(CheckpointError, match=text):
        running.load(tmp_path)


def test_a_checkpoint_of_an_earlier_version_is_loaded(tmp_path: Path) -> None:
    read = saved(deciding, tmp_path, {B: 4})
    manifest = unsealed((tmp_path / "state.json").read_bytes())
    values = manifest["stream"].pop("values")
    (tmp_path / "state.json").write_text(sealed(manifest))
    plan = deciding.compile(stage_deployment(), dims={B: 4})
    assert values == list(held_values(plan))
    with plan.launch(seed=3) as running:
        running.load(tmp_path)
        results = list(running.stream(prompts(6, 4, read)))
    assert torch.cat([trained.number.tensor for trained in results]).tolist() == list(range(4, 24))


class Odd(str):
    """A text of a class that no file holds."""

    __slots__ = ()


@pytest.mark.parametrize("late", LATES)
def test_an_object_that_no_file_holds_is_named_by_its_column(late: Late, tmp_path: Path) -> None:
    batches = [Prompts(number=batch.number, text=[Odd(text) for text in batch.text.objects]) for batch in prompts(4, 4)]
    text = "HF908: the state of column 'text' in a queue of 'deciding' holds a Odd at '0'; it takes tensors, numbers"
    trained = list[int]()
    with deciding.given(late=late).compile(stage_deployment(), dims={B: 4}).launch(seed=3) as running:
        for result in running.stream(batches):
            trained += result.number.tensor.tolist()
            if running.steps == 1:
                with pytest.raises(CheckpointError, match=text):
                    running.save(tmp_path)
    assert trained == list(range(16)), "the run continues"
