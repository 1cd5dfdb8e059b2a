"""A call that ends its process every time ends the run, and the rows that the error names are those that it had."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.errors import HfError, HfWarning, LostProcessError, RoleError
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.backend import Submission
from hfdsl.runtime.local import LocalBackend
from hfdsl.runtime.queues.durations import DrawnSeconds
from hfdsl.runtime.recovery.deaths import Death
from hfdsl.runtime.recovery.steps import Recovery
from tests.nightly import examples
from tests.runtime.test_recovery_states import Numbers

# -- deaths that count together


def death(pid: int, *, label: str = "judge.score", rank: int = 1, step: int | None = 2) -> Death:
    return Death(
        group="judges",
        rank=rank,
        labels=f"'{label}'",
        step=None if step is None else ("train", step),
        end=f"pid {pid} died",
        rows="row 4",
    )


def run(*attempts: list[Death], attempts_allowed: int = 3) -> str:
    """What becomes of step 2, each attempt of which ends with these processes gone."""
    backend: Any = Numbers([])
    recovery = Recovery(backend, hf.Retries(attempts=attempts_allowed, every=None), {"train": 2})
    remaining = [*attempts]

    def attempt() -> str:
        backend.gone.add("judge")
        if not remaining:
            return "continues"
        error = LostProcessError("HF806", "a worker's process is gone")
        error.deaths = tuple(remaining.pop(0))
        raise error

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HfWarning)
        try:
            return recovery.run("train", attempt)
        except HfError as error:
            return f"{error}"


def test_the_third_death_at_one_call_ends_the_run() -> None:
    assert run([death(7)], [death(8)]) == "continues"
    assert run([death(7)], [death(8)], [death(9)]) == (
        "HF842: 'judge.score' ended its process 3 times on rank 1 of 'judges', in step 2 of 'train', and is not "
        "repeated again; the rank had row 4\n  death 1: pid 7 died\n  death 2: pid 8 died\n  death 3: pid 9 died"
    )


def test_deaths_of_other_calls_do_not_count_together() -> None:
    for unrelated in (death(9, label="judge.look"), death(9, rank=0), death(9, step=1), death(8)):
        assert run([death(7)], [death(8)], [unrelated]) == "continues"


def test_beside_others_the_third_death_counts_before_the_number_of_attempts() -> None:
    others = [death(1, label="judge.look")]
    assert run([death(7)], others, [death(8)], [death(9)]).startswith("HF842")
    assert run([death(7)], others, [death(8)], others).startswith("HF840")
    assert run([death(7)], [death(8)], attempts_allowed=1).startswith("HF840")
    assert run([death(7)], [death(8)], [death(9)], attempts_allowed=2).startswith("HF842")


def test_a_constructor_that_dies_every_time_is_named() -> None:
    assert "'judge.__init__' ended its process 3 times" in run(
        *([death(pid, label="judge.__init__", step=None)] for pid in range(3))
    )


def test_deaths_between_the_results_of_a_stream_count_together() -> None:
    backend: Any = Numbers([])
    recovery = Recovery(backend, hf.Retries(every=None), {"train": 0})
    pids = iter(range(3))

    def dies_once() -> None:
        if not backend.gone:
            backend.gone.add("judge")
            error = LostProcessError("HF806", "")
            error.deaths = (death(next(pids)),)
            raise error

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HfWarning)
        for _ in range(2):
            backend.rebuild = lambda *_, **__: None  # what was lost stays so for the attempt after
            recovery.run("train", dies_once)
            backend.gone.clear()
        with pytest.raises(RoleError, match="HF842"):
            recovery.run("train", dies_once)


# -- rows


class B(hf.Dim): ...


class Prompts(hf.Batch):
    number: f32[B]


SEEN: dict[tuple[str, int], set[int]] = defaultdict(set)


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def generate(self, prompts: Prompts) -> Prompts:
        SEEN["actor.generate", self.rank] |= {int(number) for number in prompts.number.tensor}
        return prompts

    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def update(self, prompts: Prompts) -> Prompts:
        SEEN["actor.update", self.rank] |= {int(number) for number in prompts.number.tensor}
        return prompts


class Keep(hf.Batch):
    keep: hf.bool_[B]


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def keep(self, prompts: Prompts) -> Keep:
        return Keep(keep=prompts.number.tensor % 3 != 1)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, judge: Judge, *, samples: int = 1, way: str = "plain") -> Prompts:
    rollout = actor.generate(hf.repeat(prompts, samples))
    if way == "filter":
        rollout = hf.filter(rollout, judge.keep(rollout).keep)
    if way == "half":
        _, rollout = hf.minibatches(rollout, 2)
    return actor.update(rollout)


class Count(hf.Batch):
    rows: hf.Metric[float, Literal["sum"]]


class Trainer(hf.Worker):
    @register(Dispatch.DP_PROTO, pad="repeat_last")
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def update(self, prompts: Prompts) -> Count:
        SEEN["trainer.update", self.rank] |= {int(number) for number in prompts.number.tensor}
        return Count(rows=float(len(prompts)))


@hf.dataflow
def queued(prompts: Prompts, actor: Actor, trainer: Trainer, *, samples: int = 2, late: Late = "wait") -> Count:
    rollout = hf.queue(actor.generate(hf.repeat(prompts, samples)), lag=1, late=late, group=samples)
    return trainer.update(rollout)


class Telling(LocalBackend):
    """Compares what is said of the rows of each call with those that its body gets."""

    calls = 0

    def run(self, submission: Submission) -> list[Any]:
        SEEN.clear()
        outcome = super().run(submission)
        assert submission.rows is not None
        for (label, rank), seen in SEEN.items():
            of_steps = submission.rows.of(rank).split("; ")
            text = next((text for text in of_steps if text.endswith(f" in '{label}'")), of_steps[-1])
            match = re.search(
                rf"(?:rows?|prompts?) ([\d, to]+) (?:of \d+ )?of (?:'prompts'|the loader)(?: in '{label}')?$", text
            )
            assert match is not None, text
            first = 0 if text.endswith("of the loader") else submission.call.step * PER_STEP  # it counts from the first
            assert {number + first for number in numbers(match[1])} == seen
            Telling.calls += 1
        return outcome


def numbers(text: str) -> set[int]:
    ranges = (part.split(" to ") for part in text.split(", "))
    return {number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1)}


PER_STEP = 4
"""The prompts of each step of a stream."""


def tell(plan: Any) -> Any:
    return plan.launch(lambda plan, *, seed, **_: Telling(plan, seed))


@settings(max_examples=examples(40))
@given(st.integers(1, 9), st.integers(1, 3), st.integers(1, 3), st.sampled_from(["plain", "filter", "half"]))
def test_the_rows_of_a_call_are_those_that_its_body_gets(prompts: int, samples: int, ranks: int, way: str) -> None:
    pool = hf.ResourcePool([ranks], use_gpu=False)
    deployment = hf.Deployment(actor=hf.place(Actor, pool=pool), judge=hf.place(Judge, pool=pool))
    plan = program.given(samples=samples, way=way).compile(deployment, dims={B: prompts * 2})
    Telling.calls = 0
    with tell(plan) as running:
        running.step(Prompts(number=torch.arange(prompts * 2.0)))
    assert Telling.calls >= 2


@pytest.mark.parametrize("late", ["wait", "drop", "refill"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_in_a_stream_the_prompts_of_a_call_are_named(late: Late, ranks: int) -> None:
    sampling, training = (hf.ResourcePool([ranks], use_gpu=False) for _ in range(2))
    deployment = hf.Deployment(actor=hf.place(Actor, pool=sampling), trainer=hf.place(Trainer, pool=training))
    plan = queued.given(late=late).compile(deployment, dims={B: PER_STEP})
    Telling.calls = 0
    seconds = {"actor.generate": DrawnSeconds(3.0, tail=9.0), "trainer.update": DrawnSeconds(2.0)}
    with tell(plan) as running:
        batches = [Prompts(number=torch.arange(4.0) + PER_STEP * step) for step in range(6)]
        results = list(running.stream(batches, seconds=seconds if late != "wait" else None))
    assert Telling.calls >= 2 * ranks * len(results) > 0
