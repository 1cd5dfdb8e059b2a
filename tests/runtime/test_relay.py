"""Relays: the same bits, errors and timelines as without, and one call a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import HfError, RoleError
from hfdsl.plan.optimize import NOTHING, Optimize
from hfdsl.plan.plan import Plan
from hfdsl.runtime.relay import A_NODE, ACKNOWLEDGED, RANKS, Relays, pays
from tests.runtime import plane_programs as p
from tests.runtime import ray_programs as faults
from tests.runtime.plane_programs import pool, xs
from tests.runtime.test_plane import apart, one_pool, run
from tests.runtime.test_ray import faulty

ON = Optimize(relay=True)
ON_ALONE = replace(NOTHING, relay=True)


class Nodes(Relays):
    """As if every so many ranks of a group were on a node of their own."""

    ranks = 1

    def __init__(self, workers: Any, nodes: Mapping[str, Any], left: Any) -> None:
        apart = {g: [f"{node}|{g}|{rank // self.ranks}" for rank, node in enumerate(nodes[g])] for g in workers}
        super().__init__(workers, apart, left)

    def _start(self, node: str, ranks: Any) -> Any:
        return super()._start(node.partition("|")[0], ranks)


class Pairs(Nodes):
    ranks = 2


@pytest.fixture
def nodes(ray_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank is on a node of its own, so that all that is read elsewhere goes from relay to relay."""
    monkeypatch.setattr("hfdsl.runtime.ray.Relays", Nodes)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of actors that this process makes, by the names of the methods."""
    from ray.actor import ActorHandle

    methods: list[str] = []
    original = ActorHandle._actor_method_call

    def counted(self: Any, method_name: str, *args: Any, **kwargs: Any) -> Any:
        methods.append(method_name)
        return original(self, method_name, *args, **kwargs)

    monkeypatch.setattr(ActorHandle, "_actor_method_call", counted)
    return methods


# -- the same


def test_no_bit_changes_on_one_node(ray_cluster: Any) -> None:
    assert run(apart(), ON, "ray") == run(one_pool(colocate=True), NOTHING, "local")


@pytest.mark.parametrize(
    ("deploy", "optimize"),
    [
        (apart, ON),
        pytest.param(lambda: one_pool(False), ON, marks=pytest.mark.nightly),
        pytest.param(apart, ON_ALONE, marks=pytest.mark.nightly),
    ],
)
def test_no_bit_changes(nodes: None, deploy: Callable[[], hf.Deployment], optimize: Optimize) -> None:
    assert run(deploy(), optimize, "ray") == run(one_pool(colocate=True), NOTHING, "local")


@pytest.mark.parametrize("flow", [p.counted, p.sifted])
def test_what_waits_for_a_filter_is_the_same(nodes: None, flow: hf.Dataflow[..., Any]) -> None:
    names = ("judge", "counter") if flow is p.counted else ("p", "q")
    roles = (p.Worker, p.Counter if flow is p.counted else p.Worker)
    places = {name: hf.place(role, pool=pool(2)) for name, role in zip(names, roles, strict=True)}
    found = []
    for optimize in (Optimize(relay=False), ON):
        with flow.compile(hf.Deployment(**places), {p.B: 4}, optimize=optimize).launch("ray") as running:
            steps = [running.step(xs(*rows)) for rows in ((1.0, -1.0, 2.0, 3.0), (-1.0, 4.0, 1.0, 2.0))]
        found.append([[x.x.tensor.tolist() for x in (s if isinstance(s, tuple) else (s,))] for s in steps])
    assert found[0] == found[1]


def test_large_values_are_the_callers_own_and_held_nowhere_else(nodes: None, ray_cluster: Any) -> None:
    rows = 60_000
    with p.keeps.compile(apart(), {p.B: rows}, optimize=ON).launch("ray") as running:
        made, _, _ = running.step(p.X(x=torch.ones(rows)))
        made.x.tensor.add_(5)
        _, before, last = running.step(p.X(x=torch.ones(rows)))
        backend: Any = running._processes.backend
        names = [relay.__ray_call__.remote(lambda self: list(self._held)) for relay in backend._relays._relays]
        assert {place for held in ray_cluster.get(names) for _, _, place in held} == {ACKNOWLEDGED}
    assert before == [rows, rows]
    assert torch.equal(last.x.tensor, torch.full((rows,), 2.0))


def test_what_goes_from_relay_to_relay_is_not_kept_for_ever(nodes: None, ray_cluster: Any) -> None:
    """Ray keeps small values with who called for them, and leaves them there if a borrower is the last to let go."""

    def kept(self: Any) -> int:
        store: Any = ray_cluster._private.worker.global_worker.core_worker
        return int(store.get_memory_store_size())

    with p.mixed.compile(apart(), {p.B: 8}, optimize=ON).launch("ray") as running:
        backend: Any = running._processes.backend
        relays, most = backend._relays._relays, []
        for steps in (5, 20):
            for _ in range(steps):
                running.step(xs(*map(float, range(8))))
            most.append(sum(ray_cluster.get([relay.__ray_call__.remote(kept) for relay in relays])))
    assert most[1] <= most[0] + len(relays)


def test_the_timeline_is_the_same(nodes: None) -> None:
    def told(optimize: Optimize) -> Any:
        with p.mixed.compile(apart(), {p.B: 8}, optimize=optimize).launch("ray") as running:
            running.step(xs(*map(float, range(8))))
            line = running.timeline
        moved = sorted((t.source, t.target, t.name, t.bytes) for t in line.transfers)
        return sorted((s.process, s.kind, s.name) for s in line.spans if s.kind in ("call", "fused")), moved

    assert told(ON) == told(Optimize(relay=False))


# -- what goes wrong


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        ("raise", RoleError, "HF806: 'reward.score' raised on rank 1 in step 0: ValueError: bad rollout"),
        ("die", RoleError, "HF806: a worker's process is gone"),
        ("slow", HfError, "HF807: 2 of 2 parts of the step were not done after 3 s"),
    ],
)
def test_failures_are_told_as_without(nodes: None, fault: str, error: type[HfError], said: str) -> None:
    """A peer waits for the rank that fails."""
    plan = faults.fails.compile(faulty(fault), {faults.B: 4, faults.P: 2, faults.R: 3}, optimize=ON)
    with plan.launch("ray", deadline=3.0 if fault == "slow" else 60.0) as running:
        with pytest.raises(error) as told:
            running.step(faults.batch(4))
        assert str(told.value).startswith(said)
        with pytest.raises(HfError, match="HF808"):
            running.step(faults.batch(4))


def test_a_rank_that_fails_is_told_while_the_driver_waits_for_its_peer(nodes: None) -> None:
    plan = p.judges.compile(hf.Deployment(p=hf.place(p.Worker, pool=pool(2))), {p.B: 4}, optimize=ON)
    with plan.launch("ray", deadline=60) as running, pytest.raises(RoleError, match="raised on rank 1 in step 0"):
        running.step(xs(1.0, 2.0, 3.0, 4.0))


# -- when, and how many calls


def test_the_driver_makes_one_call_a_node(ray_cluster: Any, called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = hf.Deployment(p=hf.place(p.Worker, pool=pool(4)))
    for kind, optimize, expected in (
        (Relays, Optimize(relay=False), ["run"] * 4),
        (Relays, ON, ["answer"]),
        (Pairs, ON, ["answer"] * 2),
    ):
        monkeypatch.setattr("hfdsl.runtime.ray.Relays", kind)
        with doubled.compile(deployment, {p.B: 8}, optimize=optimize).launch("ray") as running:
            for _ in range(3):
                called.clear()
                assert running.step(xs(*[1.0] * 8)).x.tensor.tolist() == [3.0] * 8
                assert called == expected


@hf.dataflow
def doubled(a: p.X, p: p.Worker) -> p.X:
    return p.shift(p.shift(a))


def compiled(flow: Any, optimize: Optimize | None = None, **places: Any) -> Plan:
    plan: Plan = flow.compile(hf.Deployment(**places), optimize=optimize)
    return plan


def test_where_relays_pay() -> None:
    place = hf.place(p.Worker, pool=pool(RANKS))
    nodes = {compiled(doubled, p=place).groups[0].name: [str(rank // A_NODE) for rank in range(RANKS)]}
    assert pays(compiled(doubled, p=place), nodes, ())
    assert not pays(compiled(doubled, Optimize(relay=False), p=place), nodes, ())
    [group] = nodes
    for few in (nodes[group][1:], [str(rank // (A_NODE - 1)) for rank in range(RANKS)], ["0"] * RANKS):
        assert not pays(compiled(doubled, p=place), {group: few}, ())
        assert pays(compiled(doubled, ON, p=place), {group: few}, ())


def test_where_the_driver_has_to_call_ranks_itself() -> None:
    place = hf.place(p.Worker, pool=pool(8))
    plan = compiled(doubled, ON, p=place)
    nodes = {plan.groups[0].name: ["0"] * 8}
    assert not pays(plan, nodes, nodes.keys())
    one = pool(2)
    custom = compiled(
        faults.custom,
        ON,
        actor=hf.place(faults.Actor, faults.Config(), pool=one),
        reward=hf.place(faults.Custom, pool=one),
    )
    assert not pays(custom, {group.name: ["0", "0"] for group in custom.groups}, ())
