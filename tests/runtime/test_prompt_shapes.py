"""Prompts of several batches are dispatched together under "refill", so their rows must form one column."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, Ragged, i64, register
from hfdsl.errors import HfError, SizeError
from hfdsl.protocols.queueing import Late
from tests.runtime.stage_programs import Actor, B, Engine, GivenSeconds, Judge, R, Samples, Scored, Trained


class P(hf.Dim):
    """Tokens of a prompt."""


class Texts(hf.Batch):
    number: i64[B]
    text: hf.Obj[str, B]
    ids: i64[B, P]
    ragged: i64[B, Ragged[R]]
    hint: i64[B] | None = None


class Reader(Engine):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def read(self, prompts: Texts) -> Samples:
        """Samples of one token."""
        rows = len(prompts)
        return Samples(
            version=torch.full((rows,), self.version),
            noise=torch.rand(rows),
            tokens=i64([torch.zeros(1, dtype=torch.int64)] * rows),
            response_mask=hf.bool_([torch.ones(1, dtype=torch.bool)] * rows),
        )


@hf.dataflow
def reading(
    prompts: Texts, engine: Reader, judge: Judge, actor: Actor, *, late: Late = "refill", group: int = 1
) -> Trained:
    """As ``deciding``, of prompts with tokens."""
    samples = engine.read(prompts)
    named = hf.merge(Scored, prompts, samples, judge.score(samples))
    trained = actor.update(hf.queue(named, group=group, lag=1, late=late))
    hf.sync(actor, engine)
    return trained


def texts(first: int, rows: int, width: int = 3, *, hint: bool = True) -> Texts:
    return Texts(
        number=torch.arange(first, first + rows),
        text=[f"prompt {n}" for n in range(first, first + rows)],
        ids=torch.zeros(rows, width, dtype=torch.int64),
        ragged=i64([torch.zeros(1 + (first // rows + n) % 3, dtype=torch.int64) for n in range(rows)]),
        hint=i64(torch.arange(rows)) if hint else None,
    )


def loader(widths: list[int], hints: list[bool]) -> list[Texts]:
    shapes = enumerate(zip(widths, hints, strict=True))
    return [texts(step * 4, 4, width, hint=hint) for step, (width, hint) in shapes]


def trained(batches: list[Texts], late: Late, group: int = 1) -> list[int]:
    pools = {name: hf.ResourcePool([ranks], use_gpu=False, name=name) for name, ranks in (("e", 4), ("j", 4), ("a", 1))}
    place = hf.Deployment(
        engine=hf.place(Reader, pool=pools["e"]),
        judge=hf.place(Judge, pool=pools["j"]),
        actor=hf.place(Actor, pool=pools["a"]),
    )
    slow: Any = {"engine.read": GivenSeconds([(1, 1, 1, 1), (1, 1, 1, 30), *[(1, 1, 1, 1)] * 20]), "actor.update": 1.0}
    with reading.given(late=late, group=group).compile(place).launch(seed=3) as running:
        return [n for result in running.stream(batches, seconds=slow) for n in result.number.tensor.tolist()]


@pytest.mark.parametrize(
    ("widths", "hints", "text"),
    [
        (
            [3, 3, 4],
            [True] * 3,
            r"'ids' of 'prompts' has rows of shape \[4\] in a batch .*, and has rows of shape \[3\] ",
        ),
        ([3] * 3, [True, True, False], r"'hint' of 'prompts' is absent in a batch .*, and has rows of shape \[\] "),
    ],
)
def test_prompts_that_form_no_column_are_refused_before_any_is_late(
    widths: list[int], hints: list[bool], text: str
) -> None:
    with pytest.raises(HfError, match=f"HF765: column {text}"):
        trained(loader(widths, hints), "refill")


def test_prompts_that_are_not_dispatched_again_may_have_any_shape() -> None:
    widths, hints = [3 + step % 2 for step in range(12)], [step % 2 == 0 for step in range(12)]
    assert trained(loader(widths, hints), "drop")[:4] == [0, 1, 2, 3]


def test_ragged_prompts_are_dispatched_again() -> None:
    numbers = trained(loader([3] * 12, [True] * 12), "refill")
    assert numbers != sorted(numbers), "a prompt was late, and came again behind others"
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("late", ["drop", "mask"])
@pytest.mark.parametrize("sizes", [[4], [12, 16], [12, 4]])
def test_a_step_puts_in_whole_groups(sizes: list[int], late: Late) -> None:
    """The sizes of the loader's batches are unknown to the check here."""
    text = rf"HF745: the queue in line \d+ of 'reading' cuts a group: a step puts in a number of rows, {sizes[-1]}, "
    with pytest.raises(SizeError, match=text):
        trained([texts(0, size) for size in sizes], late, group=12)


def test_a_step_puts_whole_groups_into_a_queue_in_order() -> None:
    text = r"HF745: the queue in line \d+ of 'reading' cuts a group: a step puts in .* 8, .* by its group=12"
    batches = [texts(0, 12), texts(12, 8)]
    with pytest.raises(SizeError, match=text):
        trained(batches, "wait", group=12)
    assert trained([texts(0, 12), texts(12, 24)], "wait", group=12) == list(range(36))
