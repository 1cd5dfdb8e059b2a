"""Ragged columns at run time: the same rows on every backend and mesh as in plain Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import SizeError, WiringError
from tests.runtime import ragged_programs as p

BACKENDS = pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.ray)])
ROWS = 8
NUMBERS = [(7 * i) % 11 for i in range(ROWS)]
PROMPTS = p.Prompts(number=torch.tensor(NUMBERS))


@pytest.fixture
def cluster(request: pytest.FixtureRequest, backend: str) -> Any:
    return request.getfixturevalue("ray_cluster") if backend == "ray" else None


def held(result: Any) -> None:
    tokens, parts, doubled, lengths, listed, kept = result
    rows = [[n] * (n % 4) for n in NUMBERS]
    twice = [[2 * n for n in row] for row in rows]
    assert [row.tolist() for row in tokens.ids.rows] == rows
    assert [n for part in parts for n in part.length.tensor.tolist()] == [len(row) for row in rows for _ in range(2)]
    assert [n for part in parts for n in part.total.tensor.tolist()] == [sum(row) for row in rows for _ in range(2)]
    assert [row.tolist() for row in doubled.rows] == [row.tolist() for row in listed.ids.rows] == twice
    assert lengths.tensor.tolist() == [len(row) for row in rows]
    assert [row.tolist() for row in kept.ids.rows] == [row for row in twice if len(row) > 1]


def deployment(critics: int | None) -> hf.Deployment:
    pool = hf.ResourcePool([2], use_gpu=False)
    other = pool if critics is None else hf.ResourcePool([critics], use_gpu=False)
    return hf.Deployment(actor=hf.place(p.Actor, pool=pool), critic=hf.place(p.Critic, pool=other))


@BACKENDS
@pytest.mark.parametrize("critics", [None, 1, 4])
def test_ragged_rows_travel(cluster: Any, backend: Any, critics: int | None) -> None:
    with p.program.compile(deployment(critics), {p.B: ROWS, p.R: 3}).launch(backend) as running:
        for _ in range(2):
            held(running.step(PROMPTS))


def test_eager_is_the_same() -> None:
    held(p.program(PROMPTS, p.Actor(), p.Critic()))


def test_a_plan_counts_no_bytes_of_ragged_rows() -> None:
    plan = p.program.compile(deployment(4), {p.B: ROWS, p.R: 3})
    assert "<- actor.generate (ids): ? bytes object store" in str(plan)


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


@BACKENDS
def test_ranks_that_pad_to_different_lengths_are_named(cluster: Any, backend: Any) -> None:
    even, uneven = ([1, 3, 3, 1], [1, 2, 1, 3])
    told = (
        r"HF805: the result of 'critic.padded' has rows of shape \[2\] on rank 0 and \[3\] on rank 1, which are not one"
    )
    with p.padded_by_each_rank.compile(deployment(None), {p.B: 4}).launch(backend) as running:
        padded = running.step(p.Prompts(number=torch.tensor(even)))
        with pytest.raises(WiringError, match=told):
            running.step(p.Prompts(number=torch.tensor(uneven)))
    assert padded.tensor.tolist() == [[1, 0, 0], [3, 3, 3], [3, 3, 3], [1, 0, 0]]
