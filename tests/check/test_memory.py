"""What roles keep of a GPU's memory: which groups of GPUs a finding names, its text and its help."""

from __future__ import annotations

from typing import Any

import hfdsl as hf
from hfdsl.check.findings import Finding
from hfdsl.deploy.pools import ResourcePool as Pool
from tests.check.test_resources import ROWS, Role, check, one


def too_much(places: list[Pool], cluster: hf.Cluster | None, memory: list[str | None]) -> Finding:
    [finding] = check(places, cluster, memory).findings
    return finding


def test_the_same_roles_on_two_lots_of_gpus_are_one_mistake() -> None:
    both = Pool([2], name="p").merge(Pool([2], name="q"))
    assert too_much([both, both], None, ["60%", "60%"]).message.endswith("of pool 'p', which they share")


def test_roles_on_different_slots_of_a_pool_share_no_gpu() -> None:
    left, right = Pool([4], name="p").split([2, 2])
    assert check([left, right], None, ["60%", "60%"]).findings == ()


def test_slots_without_gpus_have_no_gpu_memory() -> None:
    pool = Pool([4], use_gpu=False, name="host")
    assert check([pool, pool], None, ["60%", "60%"]).findings == ()


def test_one_role_alone_shares_with_nobody() -> None:
    parts: Any = {"weights": "60%", "optimizer": "60%"}
    place = hf.place(Role, pool=Pool([4], name="p"), gpu_memory=parts)
    [finding] = one.check(hf.Deployment(a=place), ROWS).findings
    assert finding.message == (
        "'a' (60% weights + 60% optimizer) keeps 120% of each GPU of pool 'p', more than all of it"
    )


def test_nodes_without_gpus_leave_the_size_of_a_gpu_certain() -> None:
    cluster = hf.Cluster(hf.Nodes(1, gpus=4, gpu_memory_gib=80, cpus=8), hf.Nodes(1, cpus=64))
    finding = too_much([Pool([4], name="p")], cluster, ["100GiB"])
    assert finding.message == "'a' (100GiB) keeps 100 GiB of each GPU of pool 'p', which has 80 GiB"


def test_parts_and_amounts_are_added_up_for_gpus_of_this_size() -> None:
    cluster = hf.Cluster(hf.Nodes(1, gpus=4, gpu_memory_gib=80, cpus=8))
    finding = too_much([Pool([4], name="p")] * 2, cluster, ["60%", "40GiB"])
    assert finding.message == "'a' (60%) and 'b' (40GiB) keep 88 GiB of each GPU of pool 'p', which has 80 GiB"
    assert finding.primary.text == "keeps 40GiB"
    assert [label.text for label in finding.related] == ["keeps 60%", f"the cluster: {cluster}"]


def test_a_pool_of_its_own_is_offered_only_where_there_is_room_for_certain() -> None:
    """A second pool would fill 40 nodes of 7 to the last GPU: no quick search finds that out."""
    pool = Pool([3] * 20 + [2] * 40, name="p")
    cluster = hf.Cluster(hf.Nodes(40, gpus=7, gpu_memory_gib=80, cpus=96))
    assert too_much([pool, pool], cluster, ["60%", "60%"]).help == ()
