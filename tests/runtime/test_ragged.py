"""Ragged columns at run time: the same rows on every backend and mesh as in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import SizeError, WiringError
from hfdsl.runtime.running import Running
from tests.runtime import ragged_programs as p
from tests.runtime.renamed import renamed

BACKENDS = pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.ray)])
ROWS = 8
NUMBERS = [(7 * i) % 11 for i in range(ROWS)]
PROMPTS = p.Prompts(number=torch.tensor(NUMBERS))


@pytest.fixture
def cluster(request: pytest.FixtureRequest, backend: str) -> Any:
    return request.getfixturevalue("ray_cluster") if backend == "ray" else None


def held(result: Any) -> None:
    tokens, parts, doubled, lengths, listed, filtered = result
    rows = [[n] * (n % 4) for n in NUMBERS]
    twice = [[2 * n for n in row] for row in rows]
    assert [row.tolist() for row in tokens.ids.rows] == rows
    assert [n for part in parts for n in part.length.tensor.tolist()] == [len(row) for row in rows for _ in range(2)]
    assert [n for part in parts for n in part.total.tensor.tolist()] == [sum(row) for row in rows for _ in range(2)]
    assert [row.tolist() for row in doubled.rows] == [row.tolist() for row in listed.ids.rows] == twice
    assert lengths.tensor.tolist() == [len(row) for row in rows]
    assert [row.tolist() for row in filtered.ids.rows] == [row for row in twice if len(row) > 1]


def deployment(critics: int | None) -> hf.Deployment:
    pool = hf.ResourcePool([2], use_gpu=False)
    second_pool = pool if critics is None else hf.ResourcePool([critics], use_gpu=False)
    return hf.Deployment(actor=hf.place(p.Actor, pool=pool), critic=hf.place(p.Critic, pool=second_pool))


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def launched(request: pytest.FixtureRequest) -> Iterator[Running]:
    """A launch for all places of the roles, on a pool of two ranks and on one of one: processes take long to start."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    pair, single = hf.ResourcePool([2], use_gpu=False), hf.ResourcePool([1], use_gpu=False)
    actor2, critic2 = hf.place(p.Actor, pool=pair), hf.place(p.Critic, pool=pair)
    actor1, critic1 = hf.place(p.Actor, pool=single), hf.place(p.Critic, pool=single)
    places = hf.Deployment(actor1=actor1, actor2=actor2, critic1=critic1, critic2=critic2)
    plan = renamed(p.padded_by_each_rank, "padded", actor="actor1", critic="critic1").compile(places, {p.B: ROWS})
    with plan.launch(request.param) as running:
        yield running


@pytest.mark.nightly_cases("ray")
@pytest.mark.parametrize(("actors", "critics"), [(2, 2), (2, 1), (1, 2)])
def test_ragged_rows_travel(launched: Running, actors: int, critics: int) -> None:
    """Within a process, from two to one, and from one to two."""
    flow = renamed(p.program, f"program_{actors}_{critics}", actor=f"actor{actors}", critic=f"critic{critics}")
    running = launched.also(flow.compile(launched.plan.deployment, {p.B: ROWS, p.R: 3}))
    for _ in range(2):
        held(running.step(PROMPTS))


def test_ragged_rows_travel_to_more_ranks() -> None:
    with p.program.compile(deployment(4), {p.B: ROWS, p.R: 3}).launch() as running:
        for _ in range(2):
            held(running.step(PROMPTS))


def test_eager_is_the_same() -> None:
    held(p.program(PROMPTS, p.Actor(), p.Critic()))


def test_a_plan_counts_no_bytes_of_ragged_rows() -> None:
    plan = p.program.compile(deployment(4), {p.B: ROWS, p.R: 3})
    assert "<- actor.generate (ids): unknown size object store" in str(plan)


def test_a_body_does_not_write_into_ragged_rows() -> None:
    places = hf.Deployment(actor=hf.place(p.Actor, pool=hf.ResourcePool([1], use_gpu=False)))
    with (
        p.writes.compile(places, {p.B: ROWS, p.R: 3}).launch() as running,
        pytest.raises(WiringError, match="HF703: 'scale' wrote into its argument 'ids'"),
    ):
        running.step(PROMPTS)


def test_a_row_of_the_caller_is_held_against_the_plan() -> None:
    @hf.dataflow
    def flow(tokens: p.Tokens, critic: p.Critic) -> p.Lengths:
        return critic.record(tokens)

    places = hf.Deployment(critic=hf.place(p.Critic, pool=hf.ResourcePool([2], use_gpu=False)))
    tokens = p.Tokens(ids=hf.i64([torch.arange(3), torch.arange(5)]), number=torch.arange(2))
    with flow.compile(places, {p.B: 2, p.R: 5}).launch() as running:
        assert running.step(tokens).length.tensor.tolist() == [3, 5]
    with (
        flow.compile(places, {p.B: 2, p.R: 4}).launch() as running,
        pytest.raises(SizeError, match="HF302: input 'tokens': column 'ids' has a row of 5, more than R = 4"),
    ):
        running.step(tokens)


@pytest.mark.nightly_cases("ray")
@BACKENDS
def test_ranks_that_pad_to_different_lengths_are_named(cluster: Any, backend: Any) -> None:
    even, uneven = ([1, 3, 3, 1], [1, 2, 1, 3])
    message = (
        r"HF805: the result of 'critic.padded' has rows of shape \[2\] on rank 0 and \[3\] on rank 1, which are not one"
    )
    with p.padded_by_each_rank.compile(deployment(None), {p.B: 4}).launch(backend) as running:
        padded = running.step(p.Prompts(number=torch.tensor(even)))
        with pytest.raises(WiringError, match=message):
            running.step(p.Prompts(number=torch.tensor(uneven)))
    assert padded.tensor.tolist() == [[1, 0, 0], [3, 3, 3], [3, 3, 3], [1, 0, 0]]
