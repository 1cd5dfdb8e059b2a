"""A plan run on any mesh and pools gives what the program means: every row once, in order, from the right rank."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any
from unittest import mock

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.plan.optimize import NOTHING, Optimize
from hfdsl.runtime.routings import Routings
from hfdsl.runtime.running import Running
from tests.nightly import examples
from tests.plan.oracle import B, Place, Program, R, Rows, Total, batch_of, places, programs, rows_of, some_rows
from tests.plan.switches import switches
from tests.runtime import ray_programs as grpo

many = settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def plain(value: Any) -> Any:
    if isinstance(value, Rows):
        return rows_of(value)
    if isinstance(value, Total):
        return {"total": value.total.value, "largest": value.largest.value}
    return [plain(inner) for inner in value]


def records(value: Any) -> Iterator[Rows]:
    if isinstance(value, Rows):
        yield value
    elif not isinstance(value, Total):
        for inner in value:
            yield from records(inner)


def agrees(program: Program, running: Running, rows: int, seed: int) -> None:
    batch = some_rows(rows, seed)
    given_batch = batch_of(batch, echo=seed % 2 == 1)
    *batches, x, name = running.step(given_batch)
    assert all((record.echo is None) is (given_batch.echo is None) for record in records(batches))
    meant, meant_extra = program.meaning(batch)
    assert plain(batches) == ([meant[1:], meant_extra] if program.everything else [])
    assert x.tensor.tolist() == [list(row[0]) for row in meant[-1]]
    assert name.objects == [row[1] for row in meant[-1]]
    assert rows_of(given_batch) == batch, "the caller's own batch is never changed"


@many
@given(programs())
def test_a_plan_means_what_the_program_means(program: Program) -> None:
    plan = program.dataflow().compile(program.deployment(), dims={B: program.rows, R: 2})
    with plan.launch() as running:
        for seed in range(2):
            agrees(program, running, program.rows, seed)


@many
@given(programs(), switches)
def test_no_switch_changes_a_value(program: Program, optimize: Optimize) -> None:
    plan = program.dataflow().compile(program.deployment(), dims={B: program.rows, R: 2}, optimize=optimize)
    with plan.launch() as running:
        for seed in range(2):
            agrees(program, running, program.rows, seed)


@settings(many, max_examples=examples(60))
@given(programs(), st.randoms(use_true_random=False))
def test_measurements_of_a_run_change_no_value(program: Program, random: Random) -> None:
    plan = program.dataflow().compile(program.deployment(), dims={B: program.rows, R: 2})
    with plan.launch() as running:
        for seed in range(3):
            brief = frozenset(step.node for step in plan.steps if random.random() < 0.5)
            with mock.patch.object(Routings, "_find_short_steps", lambda _, brief=brief: brief):
                agrees(program, running, program.rows, seed)


def bits(value: Any) -> Any:
    """Numbers to the last bit: floats of columns and of metrics as they are written in hexadecimal."""
    if isinstance(value, hf.Batch):
        return [bits(column) for column in value.__hf_columns__.values()]
    if isinstance(value, torch.Tensor):
        return bits(value.tolist())
    return [bits(inner) for inner in value] if isinstance(value, (list, tuple)) else getattr(value, "hex", str)()


@settings(many, max_examples=examples(60))
@given(places(), switches)
def test_no_switch_changes_a_bit(places: tuple[Place, ...], optimize: Optimize) -> None:
    """Floats, numbers drawn by row and by rank, means over ranks, and weights that a step leaves to the next."""
    first, last = places[0], places[-1]
    deployment = hf.Deployment(
        actor=hf.place(grpo.Actor, grpo.Config(), pool=first.pool, mesh=first.mesh, colocate=first.colocate),
        reward=hf.place(grpo.Reward, pool=last.pool, mesh=last.mesh, colocate=last.colocate),
    )
    results = []
    for switched in (NOTHING, optimize):
        plan = grpo.train.compile(deployment, {grpo.B: 24, grpo.P: 2, grpo.R: 3}, optimize=switched)
        with plan.launch(seed=3) as running:
            results.append([bits(running.step(grpo.batch(24))) for _ in range(2)])
    assert results[0] == results[1]
    assert results[0][0] != results[0][1]


def test_every_switch_off_is_the_eager_run_where_rows_are_independent() -> None:
    @hf.dataflow
    def flow(prompts: grpo.Prompts, actor: grpo.Actor, reward: grpo.Reward) -> tuple[grpo.Rollout, grpo.Scores]:
        rollout = actor.generate(hf.repeat(prompts, 2))
        return rollout, grpo.centre(reward.score(rollout))

    pools = hf.ResourcePool([4]), hf.ResourcePool([2])
    deployment = hf.Deployment(
        actor=hf.place(grpo.Actor, grpo.Config(), pool=pools[0]), reward=hf.place(grpo.Reward, pool=pools[1])
    )
    eager = bits(flow(grpo.batch(8), grpo.Actor(grpo.Config()), grpo.Reward()))
    for optimize in (NOTHING, Optimize()):
        plan = flow.compile(deployment, {grpo.B: 8, grpo.P: 2, grpo.R: 3}, optimize=optimize)
        with plan.launch() as running:
            assert bits(running.step(grpo.batch(8))) == eager


@settings(many, max_examples=examples(40))
@given(programs(length=5, fixed=False), st.integers(1, 3))
def test_sizes_may_come_with_the_batch(program: Program, times: int) -> None:
    plan = program.dataflow().compile(program.deployment())
    with plan.launch() as running:
        agrees(program, running, program.rows, 0)
        agrees(program, running, program.rows * times, 1)
        agrees(program, running, program.rows, 2)


class Same(hf.Worker):
    @hf.register(hf.Protocol("EVERYWHERE"))
    def count(self, rows: Rows) -> Total:
        return Total(total=len(rows), largest=self.rank)


def test_a_value_that_every_rank_has_is_taken_once() -> None:
    @hf.dataflow
    def flow(rows: Rows, same: Same) -> Total:
        return same.count(rows)

    with flow.compile(hf.Deployment(same=hf.place(Same, pool=hf.ResourcePool([3])))).launch() as running:
        assert plain(running.step(batch_of(some_rows(5)))) == {"total": 5, "largest": 0}
