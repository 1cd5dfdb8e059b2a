"""The running call: its rows, and random streams that depend on what is written there and on nothing else."""

from __future__ import annotations

import pickle
import random
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.errors import WiringError
from hfdsl.protocols.call import (
    Call,
    current_call,
    in_call,
    restore_streams,
    running_call,
    seed_streams,
    seeded,
    stream_states,
)

HERE = Call(seed=7, step=3, node=2, rank=1, first_row=4, row_count=3, dataflow="step")
OTHERS = (
    replace(HERE, seed=8),
    replace(HERE, step=4),
    replace(HERE, node=3),
    replace(HERE, dataflow="evaluate"),
)
"""The same call, but for one thing that its streams are derived from."""

numbers = st.integers(0, 2**16)


def drawn() -> tuple[float, float, float]:
    """A number of every global stream."""
    return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002  # the global stream


def test_rows_are_those_that_this_rank_was_given() -> None:
    assert list(HERE.rows) == [4, 5, 6]
    assert list(replace(HERE, row_count=0).rows) == []
    assert list(replace(HERE, balanced_rows=(9, 0)).rows) == [9, 0], "balanced by their weights"
    assert list(replace(HERE, balanced_rows=()).rows) == []
    with pytest.raises(WiringError, match=r"HF208: this call takes no rows"):
        _ = replace(HERE, row_count=None).rows


@given(numbers, numbers, numbers, st.text(max_size=4), st.lists(numbers, max_size=2))
def test_a_seed_fits_every_generator(seed: int, step: int, node: int, dataflow: str, parts: list[int]) -> None:
    stream_seed = Call(seed, step, node, rank=0, dataflow=dataflow).stream_seed(*parts)
    assert 0 <= stream_seed < 2**63
    assert stream_seed == Call(seed, step, node, rank=5, first_row=9, dataflow=dataflow).stream_seed(*parts)


def test_seeds_have_63_bits() -> None:
    seeds = [HERE.stream_seed(i) for i in range(200)]
    assert len(set(seeds)) == len(seeds)
    for bit in range(63):
        assert {seed >> bit & 1 for seed in seeds} == {0, 1}


@pytest.mark.parametrize("other", OTHERS)
def test_streams_depend_on_run_step_and_node(other: Call) -> None:
    assert HERE.stream_seed(1) != other.stream_seed(1)
    assert HERE.stream_seed(1) != HERE.stream_seed(2)
    assert not torch.equal(torch.rand(4, generator=HERE.generator()), torch.rand(4, generator=other.generator()))
    assert not torch.equal(HERE.uniforms(2), other.uniforms(2))


def test_a_rank_has_a_stream_of_its_own_and_a_row_too() -> None:
    again = torch.rand(4, generator=replace(HERE, first_row=0).generator())
    assert torch.equal(torch.rand(4, generator=replace(HERE).generator()), again)
    assert not torch.equal(torch.rand(4, generator=replace(HERE, rank=2).generator()), again)


def test_every_draw_of_a_body_is_new_and_a_repeated_call_draws_the_same() -> None:
    def draws(call: Call) -> list[torch.Tensor]:
        with in_call(call):
            return [current_call().uniforms(2) for _ in range(4)]

    first = draws(replace(HERE))
    assert len({float(number) for draw in first for number in draw.flatten()}) == 4 * 3 * 2
    for repeated in (draws(replace(HERE)), draws(pickle.loads(pickle.dumps(replace(HERE))))):
        assert all(map(torch.equal, first, repeated))


def test_every_generator_of_a_body_is_new_and_leaves_the_rows_numbers_alone() -> None:
    call = replace(HERE)
    seeds = [call.generator().initial_seed() for _ in range(4)]
    assert len(set(seeds)) == 4
    assert torch.equal(call.uniforms(3), replace(HERE).uniforms(3))
    assert [replace(HERE).generator().initial_seed(), call.generator().initial_seed()] == [
        seeds[0],
        replace(HERE).stream_seed(1, HERE.rank, 4),
    ]


def test_the_kinds_of_streams_have_nothing_in_common() -> None:
    # Rank 1's generator, row 1's numbers and rank 1's global streams: each is derived with a number of its own.
    call = replace(HERE, rank=1, first_row=1, row_count=1)
    with seeded(call):
        everywhere = torch.rand(3)
    alone, row = torch.rand(3, generator=call.generator()), call.uniforms(3)[0]
    assert not torch.equal(everywhere, alone)
    assert not torch.equal(everywhere, row)
    assert not torch.equal(alone, row)
    first: set[float] = set()
    for number in range(4):  # kind and number are not mistaken for each other
        call = replace(HERE, rank=number, first_row=number, row_count=1)
        with seeded(call):
            first.add(float(torch.rand(())))
        first |= {float(torch.rand((), generator=call.generator())), float(call.uniforms(1))}
    assert len(first) == 12


@given(st.integers(1, 6), st.integers(0, 6), st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_the_numbers_of_a_row_do_not_depend_on_the_split(rows: int, cut: int, counts: list[int]) -> None:
    cut = min(cut, rows)
    all_rows = replace(HERE, first_row=0, row_count=rows)
    parts = [replace(HERE, rank=0, first_row=0, row_count=cut), replace(HERE, first_row=cut, row_count=rows - cut)]
    backwards = replace(HERE, balanced_rows=tuple(range(rows))[::-1])
    for count in counts:  # one draw after the other
        expected = all_rows.uniforms(count)
        assert expected.shape == (rows, count)
        assert ((expected >= 0) & (expected < 1)).all()
        assert torch.equal(torch.cat([part.uniforms(count) for part in parts]), expected)
        assert torch.equal(backwards.uniforms(count), expected.flip(0))


def test_within_a_call_every_global_stream_is_derived_from_it() -> None:
    with seeded(HERE):
        first = drawn()
    with seeded(HERE):
        assert drawn() == first, "a step can be repeated"
    with seeded(replace(HERE, rank=2)):
        assert all(a != b for a, b in zip(drawn(), first, strict=True)), "other ranks draw other numbers"


def test_steps_have_streams_of_their_own_in_every_library() -> None:
    draws = []
    for step in range(300):
        with seeded(replace(HERE, step=step)):
            draws.append(drawn())
    assert [len(set(numbers)) for numbers in zip(*draws, strict=True)] == [300, 300, 300]


def test_a_call_leaves_the_global_streams_as_they_were() -> None:
    before = stream_states()
    expected = drawn()
    restore_streams(before)
    with seeded(HERE):
        drawn()
    assert drawn() == expected
    restore_streams(before)
    with pytest.raises(ZeroDivisionError), seeded(HERE):
        _ = drawn()[0] / 0
    assert drawn() == expected
    later = stream_states()
    restore_streams(before)
    assert drawn() == expected
    restore_streams(later)
    assert drawn() != expected


def test_streams_of_a_process_of_its_own_are_seeded_alike() -> None:
    before = stream_states()
    try:
        seed_streams(HERE)
        alone = drawn()
    finally:
        restore_streams(before)
    with seeded(HERE):
        assert drawn() == alone


@pytest.mark.parametrize("absent", ["numpy", "torch"])
def test_streams_of_libraries_that_nobody_loaded_are_left_alone(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = len(stream_states())
    monkeypatch.delitem(sys.modules, absent)
    assert len(stream_states()) == everything - 1
    with seeded(HERE):
        assert absent not in sys.modules


def test_a_body_asks_for_its_call() -> None:
    assert running_call() is None
    with pytest.raises(WiringError, match=r"HF208: current_call\(\) is for the body"):
        current_call()
    with in_call(HERE):
        assert running_call() is current_call() is HERE
        with in_call(OTHERS[0]):
            assert current_call() is OTHERS[0]
        assert current_call() is HERE
    with pytest.raises(ZeroDivisionError), in_call(HERE):
        _ = 1 / 0
    assert running_call() is None
