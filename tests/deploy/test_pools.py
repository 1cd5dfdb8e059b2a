"""Pools: merging and splitting are renumberings of the same devices."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.deploy.pools import ResourcePool, devices, node_runs, slot_ranges
from hfdsl.errors import ResourceError

nodes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(nodes)
def test_a_pool_owns_its_slots_node_by_node(processes: list[int]) -> None:
    pool = hf.ResourcePool(processes, name="train")
    assert pool.world_size == sum(processes)
    assert devices(pool) == tuple(("train", slot) for slot in range(sum(processes)))


@given(nodes, nodes)
def test_a_merged_pool_has_the_slots_of_both_in_order(left: list[int], right: list[int]) -> None:
    first, second = hf.ResourcePool(left), hf.ResourcePool(right)
    both = first.merge(second)
    assert devices(both) == devices(first) + devices(second)
    assert both.processes == (*left, *right)
    assert both.parts == (first, second)


@given(nodes, st.data())
def test_a_split_pool_has_the_slots_of_the_whole_in_order(processes: list[int], data: st.DataObject) -> None:
    pool = hf.ResourcePool(processes)
    ends = data.draw(st.lists(st.integers(1, max(1, pool.world_size - 1)), unique=True)) if pool.world_size > 1 else []
    ends = [0, *sorted(ends), pool.world_size]
    parts = pool.split([b - a for a, b in itertools.pairwise(ends)])
    assert sum((devices(part) for part in parts), ()) == devices(pool)
    for part in parts:
        assert sum(part.processes) == part.world_size
    # Each part lies on its nodes as the whole does.
    node_of = [node for node, slots in enumerate(processes) for _ in range(slots)]
    for part, start, stop in zip(parts, ends, ends[1:], strict=False):
        nodes = node_of[start:stop]
        assert part.processes == tuple(nodes.count(node) for node in sorted(set(nodes)))


def test_merging_what_was_split_gives_the_same_devices() -> None:
    pool = hf.ResourcePool([4, 4], name="train")
    a, b = pool.split([6, 2])
    assert str(a) == "train[0:6] [4, 2]"
    assert devices(b.merge(a)) == (*devices(pool)[6:], *devices(pool)[:6])
    half, quarter = a.split([3, 3])
    assert devices(quarter) == devices(pool)[3:6]
    assert half.use_gpu
    assert str(hf.ResourcePool([2], use_gpu=False, name="cpu")) == "cpu [2] cpu"


def test_pools_are_values_with_names() -> None:
    pool, twin = hf.ResourcePool([2]), hf.ResourcePool([2])
    assert pool != twin
    assert hf.ResourcePool([2], name="a") == hf.ResourcePool((2,), name="a")
    assert pickle.loads(pickle.dumps(pool.merge(twin))) == pool.merge(twin)


def test_pools_that_cannot_be() -> None:
    train, cpu = hf.ResourcePool([2], name="train"), hf.ResourcePool([2], use_gpu=False, name="cpu")
    takes = "a pool takes a list with the number of processes on each node, each at least 1"
    flags: Any = [False]
    odd: list[Any] = [[], [2, 0], [True], 4, "8", None]
    mistakes: list[tuple[Callable[[], object], str]] = [
        *((partial(hf.ResourcePool, processes), f"{takes}, got {processes!r}") for processes in odd),
        (lambda: hf.ResourcePool([1], use_gpu=flags), "use_gpu= of a pool is True or False, got [False]"),
        (lambda: train.merge(cpu), "cannot merge 'train' and 'cpu': one uses GPUs, the other does not"),
        (lambda: train.merge(train), "cannot merge 'train' and 'train': they already share devices"),
        (lambda: train.split([1, 1])[0].merge(train), "cannot merge 'train[0:1]' and 'train': they already share dev"),
        (lambda: train.split([1]), "cannot split 'train' of 2 slots into [1]: "),
        (lambda: train.split([2, 0]), "cannot split 'train' of 2 slots into [2, 0]: "),
    ]
    for make, text in mistakes:
        with pytest.raises(ResourceError) as error:
            make()
        assert str(error.value).startswith(f"HF514: {text}")


def test_disjoint_parts_of_one_pool_merge() -> None:
    left, right = hf.ResourcePool([4], name="train").split([2, 2])
    assert devices(left.merge(right)) == tuple(("train", slot) for slot in range(4))


@st.composite
def pools(draw: st.DrawFn) -> ResourcePool:
    """Pools that were merged and split, several times."""
    pool = ResourcePool(draw(nodes), name="a")
    for step in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            pool = pool.merge(ResourcePool(draw(nodes), name=f"b{step}"))
        elif pool.world_size > 1:
            first = draw(st.integers(1, pool.world_size - 1))
            left, right = pool.split([first, pool.world_size - first])
            pool = draw(st.sampled_from([left, right, right.merge(left)]))
    return pool


@given(pools())
def test_runs_of_slots_are_the_devices(pool: ResourcePool) -> None:
    listed = [(root.name, slot) for root, slots in slot_ranges(pool) for slot in slots]
    assert tuple(listed) == devices(pool)


@given(pools())
def test_runs_on_nodes_are_the_devices_on_their_nodes(pool: ResourcePool) -> None:
    owners = {root.name: root for root, _ in slot_ranges(pool)}
    node_of = {name: [n for n, k in enumerate(root.processes) for _ in range(k)] for name, root in owners.items()}
    expected = [(name, node_of[name][slot]) for name, slot in devices(pool)]
    assert [(root.name, node) for root, node, slots in node_runs(pool) for _ in range(slots)] == expected
