"""Pools: ranks on nodes, merging, splitting, and clusters that cannot hold them."""

from __future__ import annotations

from typing import Any

import pytest

from hfdsl.errors import ResourceError
from hfdsl.single_controller import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    merge_resource_pool,
    split_resource_pool,
)
from hfdsl.single_controller.cluster import short_of
from tests.single_controller import roles


def cpu_pool(*sizes: int, **options: Any) -> RayResourcePool:
    return RayResourcePool(list(sizes), use_gpu=False, **options)


def pending(ray: Any) -> list[str]:
    table = ray.util.placement_group_table().values()
    return [entry["name"] for entry in table if entry["state"] not in ("REMOVED", "CREATED")]


# -- numbers, without a cluster ----------------------------------------------------------------------------------------


def test_ranks_on_nodes() -> None:
    pool = cpu_pool(4)
    assert (pool.world_size, pool.store) == (4, [4])
    assert (pool.local_rank_list(), pool.local_world_size_list()) == ([0, 1, 2, 3], [4, 4, 4, 4])
    uneven = cpu_pool(4, 2)
    assert uneven.local_rank_list() == [0, 1, 2, 3, 0, 1]
    assert uneven.local_world_size_list() == [4, 4, 4, 4, 2, 2]


def test_merge_and_split() -> None:
    first, second = cpu_pool(4), cpu_pool(4)
    merged = merge_resource_pool(first, second)
    assert merged.local_rank_list() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert (merged.world_size, merged.store, merged.slots[:4]) == (8, [4, 4], first.slots)
    assert [part.world_size for part in split_resource_pool(merged, 2)] == [2, 2, 2, 2]
    first, second = split_resource_pool(merged, [5, 3])
    assert (first.local_rank_list(), first.store) == ([0, 1, 2, 3, 0], [4, 1])
    assert (second.local_rank_list(), second.local_world_size_list()) == ([0, 1, 2], [3, 3, 3])
    assert [part.world_size for part in split_resource_pool(second, [1, 2])] == [1, 2]
    assert merge_resource_pool(first, second).slots == merged.slots


def test_pools_without_meaning() -> None:
    for sizes in ([], [0], [2.0], 4, "44", [True]):
        with pytest.raises(ResourceError, match=r"HF501: a pool lists the processes"):
            RayResourcePool(sizes)  # type: ignore[arg-type]
    with pytest.raises(ResourceError, match=r"HF501: max_colocate_count"):
        RayResourcePool([1], max_colocate_count=0)
    pool = cpu_pool(4)
    with pytest.raises(ResourceError, match=r"HF501.*slots in common"):
        merge_resource_pool(pool, split_resource_pool(pool, 2)[0])
    with pytest.raises(ResourceError, match=r"HF501.*use_gpu is False and True"):
        merge_resource_pool(pool, RayResourcePool([4]))
    for by in (3, 0, [1, 2], [4, 0], [], "22"):
        with pytest.raises(ResourceError, match=r"HF501: pool .* of 4 slots cannot be split"):
            split_resource_pool(pool, by)  # type: ignore[arg-type]


def test_shares_of_a_slot_add_up_to_at_most_one() -> None:
    for count in range(1, 50):
        assert RayResourcePool([1], max_colocate_count=count).process_share["num_gpus"] * count <= 1


@pytest.mark.parametrize(
    ("sizes", "gpus", "short"),
    [
        ([4, 4], [8], None),
        ([4, 4], [6], "GPU"),
        ([4, 4], [7, 1], "GPU"),
        ([4, 2], [4, 2], None),
        ([3, 3, 2], [4, 4], "GPU"),  # neither node has room for a second entry
        ([5] * 20 + [3] * 41, [7] * 40, None),  # too many to search: Ray finds out
        ([8], [4, 4], "GPU"),
        ([1], [], "GPU"),
    ],
)
def test_pools_that_no_cluster_of_these_nodes_can_hold(sizes: list[int], gpus: list[float], short: str | None) -> None:
    nodes = [{"GPU": count, "CPU": 64.0} for count in gpus]
    assert short_of(sizes, {"CPU": 0.1, "GPU": 1.0}, nodes) == short
    assert short_of([8], {"CPU": 10.0}, nodes) == "CPU"


# -- on a cluster ------------------------------------------------------------------------------------------------------


def test_a_pool_that_can_never_fit_fails_at_once(ray_cluster: Any) -> None:
    with pytest.raises(ResourceError, match=r"HF502: .* 8 GPUs \(4 \+ 4 by node\), .* has 4 .*\(\[4\]\) is the most"):
        RayWorkerGroup(RayResourcePool([4, 4]), RayClassWithInitArgs(roles.Accumulator))
    with pytest.raises(ResourceError, match=r"HF505: pool .* 100 CPUs .* has 4 .*RayResourcePool\(\[4\]\) is the most"):
        cpu_pool(100, max_colocate_count=100).place()
    assert pending(ray_cluster) == []


def test_a_cluster_without_gpus_is_reported_as_such(ray_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfdsl.single_controller.cluster.node_totals", lambda: [{"CPU": 4.0}])
    with pytest.raises(ResourceError, match=r"HF502: pool .* 1 GPUs .* has 0 .* no slot fits"):
        RayResourcePool([1]).place()


def test_a_pool_that_finds_no_room_fails_at_its_deadline(ray_cluster: Any) -> None:
    with cpu_pool(2, max_colocate_count=150) as holder:
        holder.place()
        with pytest.raises(ResourceError, match=r"HF505: .* asks for 3 CPUs.*waited 0.5 s"):
            cpu_pool(2, max_colocate_count=150, timeout=0.5).place()
        assert pending(ray_cluster) == []
    with cpu_pool(2, max_colocate_count=150) as again:  # the room is free again
        again.place()


def test_groups_on_unequal_nodes_on_halves_and_on_the_whole(ray_cluster: Any) -> None:
    accumulator = RayClassWithInitArgs(roles.Accumulator)
    first_pool, second_pool = cpu_pool(2), cpu_pool(1)
    both = merge_resource_pool(first_pool, second_pool)
    with first_pool, second_pool:
        groups = (
            RayWorkerGroup(first_pool, accumulator),
            RayWorkerGroup(second_pool, accumulator),
            RayWorkerGroup(both, accumulator),
        )
        with groups[0] as first, groups[1] as second, groups[2] as all3:
            assert first.execute_all_sync("add", 0) == [0, 1]
            assert second.execute_all_sync("add", 0) == [0]
            about = [facts[:4] for facts in all3.execute_all_sync("about")]
            assert about == [(0, 3, 0, 2), (1, 3, 1, 2), (2, 3, 0, 1)]
            assert [len(slot.users) for slot in both.slots] == [2, 2, 2]
        assert [len(slot.users) for slot in both.slots] == [0, 0, 0]
