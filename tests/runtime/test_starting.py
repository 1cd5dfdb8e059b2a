"""The start of a launch: roles on different devices are constructed at the same time, those on one in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.deploy.deployment import ProcessGroup
from hfdsl.deploy.pools import devices
from hfdsl.errors import RoleError
from hfdsl.runtime.ray.groups import sharing_devices
from tests.runtime.starting_programs import Starting, numbers


def test_roles_on_other_devices_are_constructed_at_the_same_time(ray_cluster: Any, tmp_path: Path) -> None:
    """Each of three waits for another one to begin."""
    awaited = {"first": "second", "second": "third", "third": "first"}
    places = {
        name: hf.place(Starting, str(tmp_path), name, other, pool=hf.ResourcePool([1], use_gpu=False))
        for name, other in awaited.items()
    }
    with numbers.compile(hf.Deployment(**places)).launch("ray", deadline=60) as running:
        assert running.step() == ([1], [1], [1])


def test_roles_on_one_device_are_constructed_one_after_another(ray_cluster: Any, tmp_path: Path) -> None:
    """In one process or in several, so that each can make room for the next."""
    pool = hf.ResourcePool([1], use_gpu=False)
    places = {
        name: hf.place(Starting, str(tmp_path), name, pool=pool, colocate=name != "second")
        for name in ("first", "second", "third")
    }
    with numbers.compile(hf.Deployment(**places)).launch("ray", deadline=60) as running:
        assert running.step() == ([1], [1], [1])
    log = (tmp_path / "log").read_text().split("\n")[:-1]
    assert [line.removesuffix("begins") for line in log[::2]] == [line.removesuffix("ends") for line in log[1::2]]
    assert len(log) == 6


def test_a_constructor_that_raises_ends_a_launch_while_others_run(ray_cluster: Any, tmp_path: Path) -> None:
    """The third would wait forever."""
    faults = {"first": ("", ""), "second": ("", "no weights here"), "third": ("nobody", "")}
    places = {
        name: hf.place(Starting, str(tmp_path), name, *arguments, pool=hf.ResourcePool([1], use_gpu=False))
        for name, arguments in faults.items()
    }
    with pytest.raises(RoleError, match=r"HF806: 'second.__init__ \(Starting\)' raised on rank 0: ValueError: no wei"):
        numbers.compile(hf.Deployment(**places)).launch("ray", deadline=600)


@given(st.data())
def test_lists_of_groups_are_the_connected_components_of_shared_devices(data: st.DataObject) -> None:
    """Against networkx; groups of one list have the order that they were given in, as far as they share devices."""
    roots = [hf.ResourcePool([4], name=name) for name in ("left", "right")]
    parts = [part for root in roots for part in root.split([1, 3])]
    pools = [*roots, *parts, parts[0].merge(parts[2]), parts[1].merge(parts[3])]
    chosen = data.draw(st.lists(st.sampled_from(pools), max_size=6))
    groups = [ProcessGroup(f"group {number}", pool, (f"role {number}",)) for number, pool in enumerate(chosen)]
    graph = nx.Graph()
    graph.add_nodes_from(group.name for group in groups)
    for first in groups:
        for second in groups:
            if set(devices(first.pool)) & set(devices(second.pool)):
                graph.add_edge(first.name, second.name)
                if groups.index(first) < groups.index(second):
                    [shared] = [names for names in named(sharing_devices(groups)) if first.name in names]
                    assert shared.index(first.name) < shared.index(second.name)
    assert {frozenset(names) for names in named(sharing_devices(groups))} == set(
        map(frozenset, nx.connected_components(graph))
    )


def named(lists: list[list[ProcessGroup]]) -> list[list[str]]:
    return [[group.name for group in groups] for groups in lists]
