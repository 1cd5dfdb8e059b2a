"""Packing against brute force, and against what a launch refuses."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.protocols.bin_packing import Amounts, _greedy, fits, too_many
from hfdsl.single_controller.cluster import short_of
from hfdsl.types.dims import Answer
from tests.nightly import examples


def packs(parts: list[Amounts], nodes: list[Amounts]) -> bool:
    """Whether some way of giving every part a node overfills none."""
    for places in itertools.product(range(len(nodes)), repeat=len(parts)):
        loads = [
            [sum(part[i] for part, place in zip(parts, places, strict=True) if place == node) for i in range(len(have))]
            for node, have in enumerate(nodes)
        ]
        if all(
            load <= have
            for node, node_load in enumerate(loads)
            for load, have in zip(node_load, nodes[node], strict=True)
        ):
            return True
    return False


def vectors(size: int, least: int, most: int, count: int) -> st.SearchStrategy[list[Amounts]]:
    return st.lists(st.tuples(*[st.integers(least, most)] * size), min_size=1, max_size=count)


@settings(max_examples=examples(300))
@given(vectors(1, 1, 7, 6), vectors(1, 0, 12, 3))
def test_gpus_are_packed_as_brute_force_packs_them(parts: list[Amounts], nodes: list[Amounts]) -> None:
    answer = fits(Counter(parts), Counter(nodes))
    assert answer is (Answer.PROVED if packs(parts, nodes) else Answer.REFUTED)


@settings(max_examples=examples(300))
@given(vectors(1, 0, 4, 5), vectors(2, 0, 9, 3))
def test_gpus_and_cpus_are_packed_together(gpus: list[Amounts], nodes: list[Amounts]) -> None:
    parts: list[Amounts] = [(gpu, max(1, gpu)) for (gpu,) in gpus]
    answer = fits(Counter(parts), Counter(nodes))
    assert answer is (Answer.PROVED if packs(parts, nodes) else Answer.REFUTED)


@given(vectors(1, 1, 9, 8), vectors(1, 0, 16, 6))
def test_packings_that_counting_refutes_do_not_exist(parts: list[Amounts], nodes: list[Amounts]) -> None:
    refutation = too_many(Counter(parts), Counter(nodes))
    if refutation is not None:
        size, count, room = refutation
        assert count > room
        assert fits(Counter(parts), Counter(nodes)) is Answer.REFUTED
        needed = sum(part >= size for part in parts) if size != (1,) else sum(part for (part,) in parts)
        assert count == needed


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.lists(st.integers(0, 12), min_size=1, max_size=5))
def test_a_check_refuses_what_a_launch_refuses_at_once(sizes: list[int], gpus: list[int]) -> None:
    cluster = [{"GPU": float(n), "CPU": 64.0} for n in gpus]
    if short_of(sizes, {"GPU": 1.0, "CPU": 0.1}, cluster) is not None:
        assert fits(Counter((n,) for n in sizes), Counter((n,) for n in gpus)) is Answer.REFUTED


def test_a_packing_that_greed_misses_is_found() -> None:
    # The largest first gives 4 and 3 to one node, which leaves 1 idle; 4, 2, 2 and 3, 3, 2 fill both.
    parts: dict[Amounts, int] = {(4,): 1, (3,): 2, (2,): 3}
    assert not _greedy(parts, {(8,): 2})
    assert fits(parts, {(8,): 2}) is Answer.PROVED


def test_large_clusters_are_decided_by_kinds() -> None:
    assert fits({(8,): 2048}, {(8,): 2048}) is Answer.PROVED
    assert fits({(8,): 2049}, {(8,): 2048}) is Answer.REFUTED
    assert fits({(4,): 4096, (8,): 10**6}, {(8,): 10**6 + 2048}) is Answer.PROVED
    assert fits({(5,): 2049}, {(8,): 2048, (4,): 10**6}) is Answer.REFUTED


def test_an_undecided_packing_is_unknown() -> None:
    # A node of 7 with a five has no room for a three: 20 fives leave 20 nodes for 40 threes. The sums do not say so.
    assert fits({(5,): 20, (3,): 40}, {(7,): 40}) is Answer.PROVED
    assert fits({(5,): 20, (3,): 41}, {(7,): 40}) is Answer.UNKNOWN
    assert fits({(5,): 2, (3,): 5}, {(7,): 4}) is Answer.REFUTED
