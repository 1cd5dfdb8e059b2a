"""Relays: the same bits, errors and timelines as without, and one call per node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import HfError, RoleError
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.optimize import NOTHING, Optimize
from hfdsl.runtime.ray.relay import ACKNOWLEDGMENT
from hfdsl.runtime.ray.relay_client import MIN_RANKS, MIN_RANKS_PER_HOST, Relays, relays_pay
from hfdsl.runtime.running import Running
from tests.runtime import plane_programs as p
from tests.runtime import ray_programs as faults
from tests.runtime.plane_programs import pool, xs
from tests.runtime.renamed import renamed
from tests.runtime.test_plane import bits, one_pool
from tests.runtime.test_ray import faulty

ON = Optimize(relay=True)
OFF = Optimize(relay=False)
ON_ALONE = replace(NOTHING, relay=True)
SEED = 4


class Apart(Relays):
    """As if ranks were on several nodes of their own."""

    def __init__(self, workers: Any, nodes: Mapping[str, Any], left: Any) -> None:
        apart = {g: [f"{node}|{self.node(g, rank)}" for rank, node in enumerate(nodes[g])] for g in workers}
        super().__init__(workers, apart, left)

    def node(self, group: str, rank: int) -> str:
        raise NotImplementedError

    def _start(self, node: str, ranks: Any) -> Any:
        return super()._start(node.partition("|")[0], ranks)


class Nodes(Apart):
    """Every rank is on a node of its own, so that all that is read elsewhere goes from relay to relay."""

    def node(self, group: str, rank: int) -> str:
        return f"{group}|{rank}"


class Pairs(Apart):
    """Every node has a rank of every group."""

    def node(self, group: str, rank: int) -> str:
        return str(rank)


@pytest.fixture
def nodes(ray_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of a test's own have a relay per rank."""
    monkeypatch.setattr("hfdsl.runtime.ray.groups.Relays", Nodes)


@pytest.fixture(scope="module")
def launched(ray_cluster: Any) -> Iterator[Running]:
    """A launch for all tests in which nothing goes wrong: processes take long to start."""
    first_pool, second_pool = pool(2), pool(2)
    place = hf.Deployment(
        p=hf.place(p.Worker, pool=first_pool),
        q=hf.place(p.Worker, pool=second_pool),
        counter=hf.place(p.Counter, pool=second_pool),
    )
    with p.mixed.compile(place, {p.B: 8}, optimize=OFF).launch("ray", seed=SEED) as running:
        yield running


@dataclass
class Through:
    """A launch with relays of several kinds, one of which is at work."""

    launched: Running
    known: dict[type[Relays], Relays] = field(default_factory=dict)

    @property
    def backend(self) -> Any:
        return self.launched._processes.backend

    def start(self, kind: type[Relays]) -> None:
        workers = {name: group.workers for name, group in self.backend._groups.items()}
        self.known[kind] = kind(workers, self.backend._hosts, self.backend._calls.time_left)

    def switch(self, kind: type[Relays]) -> None:
        self.backend._calls.relays = self.known[kind]

    def plan(self, flow: hf.Dataflow[..., Any], rows: int = 8, optimize: Optimize = ON) -> Running:
        return self.launched.also(flow.compile(self.launched.plan.deployment, {p.B: rows}, optimize=optimize))

    def let_go(self) -> None:
        """What relays that are not at work hold of their last step is no leak of a test."""
        for relays in self.known.values():
            relays.begin()

    def close(self) -> None:
        self.backend._calls.relays = None
        for relays in self.known.values():
            relays.close()


@pytest.fixture(scope="module")
def kinds(launched: Running) -> Iterator[Through]:
    through = Through(launched)
    for kind in (Relays, Nodes, Pairs):
        through.start(kind)
    yield through
    through.close()


@pytest.fixture
def through(kinds: Through) -> Iterator[Through]:
    """The launch as a test finds it: every rank is on a node of its own."""
    kinds.switch(Nodes)
    yield kinds
    kinds.let_go()


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


def two_steps(running: Running) -> list[Any]:
    return [bits(running.step(xs(*(step + i / 7 for i in range(8))))) for step in range(2)]


def alone(flow: hf.Dataflow[..., Any]) -> list[Any]:
    """What ``mixed`` gives in one process; the random streams of a flow of another name are others."""
    with flow.compile(one_pool(colocate=True), {p.B: 8}, optimize=NOTHING).launch("local", seed=SEED) as running:
        return two_steps(running)


@pytest.mark.parametrize(
    ("name", "kind", "optimize"),
    [("one_node", Relays, ON), ("apart", Nodes, ON), ("on_alone", Nodes, ON_ALONE), ("pairs", Pairs, ON)],
)
def test_no_bit_changes(through: Through, name: str, kind: type[Relays], optimize: Optimize) -> None:
    flow = renamed(p.mixed, f"mixed_{name}")
    through.switch(kind)
    assert two_steps(through.plan(flow, optimize=optimize)) == alone(flow)


@pytest.mark.nightly
def test_no_bit_changes_where_roles_share_slots(nodes: None) -> None:
    with p.mixed.compile(one_pool(colocate=False), {p.B: 8}, optimize=ON).launch("ray", seed=SEED) as running:
        assert two_steps(running) == alone(p.mixed)


@pytest.mark.parametrize("flow", [renamed(p.counted, "counted", judge="p"), p.sifted])
def test_steps_after_a_filter_are_the_same(through: Through, flow: hf.Dataflow[..., Any]) -> None:
    values = []
    with flow.compile(through.launched.plan.deployment, {p.B: 4}).launch("local") as local:
        for running in (local, through.plan(flow, 4)):
            steps = [running.step(xs(*rows)) for rows in ((1.0, -1.0, 2.0, 3.0), (-1.0, 4.0, 1.0, 2.0))]
            values.append([[x.x.tensor.tolist() for x in (s if isinstance(s, tuple) else (s,))] for s in steps])
    assert values[0] == values[1]


def test_large_values_are_the_callers_own_and_held_nowhere_else(through: Through, ray_cluster: Any) -> None:
    rows = 60_000
    running = through.plan(p.keeps, rows)
    output, _, _ = running.step(p.X(x=torch.ones(rows)))
    output.x.tensor.add_(5)
    _, before, last = running.step(p.X(x=torch.ones(rows)))
    relays = through.known[Nodes]._relays
    names = [relay.__ray_call__.remote(lambda self: list(self._refs)) for relay in relays]
    assert {place for held in ray_cluster.get(names) for _, _, place in held} == {ACKNOWLEDGMENT}
    assert before == [rows, rows]
    assert torch.equal(last.x.tensor, torch.full((rows,), 2.0))


def test_values_between_relays_are_released(through: Through, ray_cluster: Any) -> None:
    """Ray keeps small values with who called for them, and leaves them there if a borrower is the last to let go."""

    def stored(self: Any) -> int:
        store: Any = ray_cluster._private.worker.global_worker.core_worker
        return int(store.get_memory_store_size())

    running, relays, most = through.plan(renamed(p.mixed, "mixed_often")), through.known[Nodes]._relays, []
    for steps in (5, 20):
        for _ in range(steps):
            running.step(xs(*map(float, range(8))))
        most.append(sum(ray_cluster.get([relay.__ray_call__.remote(stored) for relay in relays])))
    assert most[1] <= most[0] + len(relays)


def test_the_timeline_is_the_same(through: Through) -> None:
    def shown(running: Running) -> Any:
        running.step(xs(*map(float, range(8))))
        line = running.timeline
        moved = sorted((t.source, t.target, t.name, t.bytes) for t in line.transfers)
        return sorted((s.process, s.kind, s.name) for s in line.intervals if s.kind in ("call", "fused")), moved

    assert shown(through.plan(renamed(p.mixed, "mixed_timed"))) == shown(through.launched)


# -- what goes wrong


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        ("raise", RoleError, "HF806: 'reward.score' raised on rank 1 in step 0: ValueError: bad rollout"),
        ("die", RoleError, "HF806: a worker's process is gone"),
        ("slow", HfError, "HF807: 2 of 2 parts of the step were not done after 3 s"),
    ],
)
def test_failures_are_reported_as_without(nodes: None, fault: str, error: type[HfError], said: str) -> None:
    """A peer waits for the rank that fails."""
    plan = faults.fails.compile(faulty(fault), {faults.B: 4, faults.P: 2, faults.R: 3}, optimize=ON)
    with plan.launch("ray", deadline=3.0 if fault == "slow" else 60.0) as running:
        with pytest.raises(error) as failure:
            running.step(faults.batch(4))
        assert str(failure.value).startswith(said)
        with pytest.raises(HfError, match="HF808"):
            running.step(faults.batch(4))


def test_a_rank_that_fails_is_reported_while_the_driver_waits_for_its_peer(nodes: None) -> None:
    plan = p.judges.compile(hf.Deployment(p=hf.place(p.Worker, pool=pool(2))), {p.B: 4}, optimize=ON)
    with plan.launch("ray", deadline=60) as running, pytest.raises(RoleError, match="raised on rank 1 in step 0"):
        running.step(xs(1.0, 2.0, 3.0, 4.0))


def test_relays_that_do_not_start_are_reported(ray_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfdsl.runtime.ray.relay_client.START_SECONDS", 1e-6)
    plan = compiled(doubled, ON, p=hf.place(p.Worker, pool=pool(1)))
    with pytest.raises(HfError, match=r"HF807: relays did not start within 1e-06 s; hf.Optimize\(relay=False\)"):
        plan.launch("ray")


# -- when, and how many calls


def test_the_driver_makes_one_call_a_node(through: Through, called: list[str]) -> None:
    relayed, without = through.plan(twice), through.plan(renamed(twice, "twice_without"), optimize=OFF)
    for running, kind, expected in (
        (without, Relays, ["run"] * 4),
        (relayed, Relays, ["wait_for"]),
        (relayed, Pairs, ["wait_for"] * 2),
    ):
        through.switch(kind)
        for _ in range(3):
            called.clear()
            assert [batch.x.tensor.tolist() for batch in running.step(xs(*[1.0] * 8))] == [[3.0] * 8] * 2
            assert called == expected


@hf.dataflow
def twice(a: p.X, p: p.Worker, q: p.Worker) -> tuple[p.X, p.X]:
    return p.shift(p.shift(a)), q.shift(q.shift(a))


@hf.dataflow
def doubled(a: p.X, p: p.Worker) -> p.X:
    return p.shift(p.shift(a))


def compiled(flow: Any, optimize: Optimize | None = None, **places: Any) -> CompiledPlan:
    plan: CompiledPlan = flow.compile(hf.Deployment(**places), optimize=optimize)
    return plan


def test_where_relays_pay() -> None:
    place = hf.place(p.Worker, pool=pool(MIN_RANKS))
    nodes = {compiled(doubled, p=place).groups[0].name: [str(rank // MIN_RANKS_PER_HOST) for rank in range(MIN_RANKS)]}
    assert relays_pay(compiled(doubled, p=place), nodes, ())
    assert not relays_pay(compiled(doubled, Optimize(relay=False), p=place), nodes, ())
    [group] = nodes
    for few in (
        nodes[group][1:],
        [str(rank // (MIN_RANKS_PER_HOST - 1)) for rank in range(MIN_RANKS)],
        ["0"] * MIN_RANKS,
    ):
        assert not relays_pay(compiled(doubled, p=place), {group: few}, ())
        assert relays_pay(compiled(doubled, ON, p=place), {group: few}, ())


def test_where_the_driver_has_to_call_ranks_itself() -> None:
    place = hf.place(p.Worker, pool=pool(8))
    plan = compiled(doubled, ON, p=place)
    nodes = {plan.groups[0].name: ["0"] * 8}
    assert not relays_pay(plan, nodes, nodes.keys())
    node = pool(2)
    custom = compiled(
        faults.custom,
        ON,
        actor=hf.place(faults.Actor, faults.Config(), pool=node),
        reward=hf.place(faults.Custom, pool=node),
    )
    assert not relays_pay(custom, {group.name: ["0", "0"] for group in custom.groups}, ())
