"""Offload: random programs against probes that know what lies where, and against the least that GPUs can hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.deploy.memory import GpuMemory
from hfdsl.deploy.pools import devices
from hfdsl.errors import ResourceError, RoleError
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.protocols.offloading import PARTS, parts_of
from tests.nightly import examples

BOTH = frozenset(PARTS)
CLUSTER = hf.Cluster(hf.Nodes(1, gpus=8, gpu_memory_gib=80, cpus=64))


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


@dataclass
class Host:
    """What every rank of every role has on its GPU, and the most that each GPU has kept while a body ran."""

    there: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    most: dict[tuple[str, int], Fraction] = field(default_factory=dict)
    moves: list[tuple[str, str, str]] = field(default_factory=list)
    deployment: hf.Deployment | None = None

    def bodies(self, role: str, rank: int, used: frozenset[str]) -> None:
        assert used <= self.there[role, rank], f"{role} works without {used - self.there[role, rank]}"
        assert self.deployment is not None
        places = self.deployment.placements
        gpu = devices(places[role].pool)[rank]
        resident = Fraction(0)
        for name, place in places.items():
            here = [r for r, slot in enumerate(devices(place.pool)) if slot == gpu]
            for r in here:
                resident += amount(place, self.there[name, r])
        self.most[gpu] = max(self.most.get(gpu, Fraction(0)), resident)


def amount(place: Any, parts: set[str] | frozenset[str]) -> Fraction:
    """GiB of an 80 GiB GPU."""
    memory: GpuMemory | None = place.gpu_memory
    if memory is None or not parts & set(parts_of(place.role)):
        return Fraction(0)
    each = memory.parts or {"": memory}
    return sum((m.gib + m.fraction * 80 for part, m in each.items() if not part or part in parts), Fraction(0))


host: ContextVar[Host] = ContextVar("host")


class Fixed(hf.Worker):
    """A role that cannot be offloaded."""

    def __init__(self, name: str) -> None:
        self.name, self.weight = name, 1.0
        host.get().there[name, self.rank] = set(BOTH)

    def uses(self, *parts: str) -> None:
        host.get().bodies(self.name, self.rank, frozenset(parts))

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("w")
    def look(self, rows: Rows) -> Rows:
        self.uses("weights")
        return Rows(x=rows.x.tensor * self.weight)

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("w")
    def learn(self, rows: Rows) -> Rows:
        self.uses("weights", "optimizer")
        self.weight += 0.5
        return Rows(x=rows.x.tensor + self.weight)

    @hf.register(hf.Dispatch.ALL_TO_ALL, hf.Execute.RANK_ZERO)
    def first(self, rows: Rows) -> Rows:
        self.uses("weights")
        return Rows(x=rows.x.tensor - self.weight)

    def state(self) -> dict[str, float]:
        assert host.get().there[self.name, self.rank] == BOTH
        return {"weight": self.weight}

    def load_state(self, state: dict[str, float]) -> None:
        assert host.get().there[self.name, self.rank] == BOTH
        self.weight = state["weight"]


class Movable(Fixed):
    def offload(self, part: str) -> None:
        host.get().there[self.name, self.rank].remove(part)
        host.get().moves.append(("offload", self.name, part))

    def onload(self, part: str) -> None:
        assert part not in host.get().there[self.name, self.rank]
        host.get().there[self.name, self.rank].add(part)
        host.get().moves.append(("onload", self.name, part))


Calls = Sequence[tuple[str, str]]


def flow(calls: Calls, name: str = "step") -> Any:
    def body(rows: Rows, a: Fixed, b: Fixed, c: Fixed, d: Fixed) -> list[Rows]:
        roles = {"a": a, "b": b, "c": c, "d": d}
        return [getattr(roles[role], method)(rows) for role, method in calls]

    body.__name__ = name
    return hf.dataflow(body)


@contextmanager
def watched() -> Iterator[Host]:
    token = host.set(Host())
    try:
        yield host.get()
    finally:
        host.reset(token)


memory = st.one_of(
    st.none(),
    st.sampled_from(["10GiB", "25GiB", "40GiB", "45%", "70GiB"]),
    st.fixed_dictionaries(
        {"weights": st.sampled_from(["10GiB", "20GiB"]), "optimizer": st.sampled_from(["30GiB", "50%"])}
    ),
)


@st.composite
def deployments(draw: st.DrawFn) -> hf.Deployment:
    all_gpus = hf.ResourcePool([2, 2], name="whole")
    left, right = all_gpus.split([2, 2])
    pools = [all_gpus, all_gpus, left, right, hf.ResourcePool([2], name="other")]
    places = {}
    for name in "abcd":
        kind = draw(st.sampled_from([Movable, Movable, Movable, Fixed]))
        places[name] = hf.place(
            kind,
            name,
            pool=draw(st.sampled_from(pools)),
            colocate=draw(st.booleans()),
            gpu_memory=draw(memory),
            offload=draw(st.sampled_from([None, True, False])) if kind is Movable else None,
        )
    return hf.Deployment(**places)


calls = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["look", "learn", "learn", "first"])), min_size=1, max_size=9
)
many = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
BATCH = Rows(x=torch.arange(8.0))


def whole_values(deployment: hf.Deployment, steps: Calls, times: int) -> list[list[torch.Tensor]]:
    plan = flow(steps).compile(deployment, {B: 8}, optimize=hf.Optimize(offload=False))
    with plan.launch() as running:
        return [[rows.x.tensor for rows in running.step(BATCH)] for _ in range(times)]


def without_amounts(deployment: hf.Deployment) -> hf.Deployment:
    return hf.Deployment(
        **{n: hf.place(p.role, n, pool=p.pool, colocate=p.colocate) for n, p in deployment.placements.items()}
    )


def least(deployment: hf.Deployment, steps: Calls) -> dict[tuple[str, int], Fraction]:
    """The least that each GPU can keep: of roles that may move no more than the call uses."""
    most: dict[tuple[str, int], Fraction] = {}
    places = deployment.placements
    first_only = {role for role, method in steps if method == "first"}
    for gpu in {gpu for place in places.values() for gpu in devices(place.pool)}:
        callers = {name for name, place in places.items() if gpu in devices(place.pool)}
        if not any(caller in callers for caller, _ in steps):
            most[gpu] = sum((amount(places[name], BOTH) for name in callers), Fraction(0))
        for caller, method in steps:
            if caller not in callers:
                continue
            resident = Fraction(0)
            for name in callers:
                movable = places[name].role is Movable and places[name].offload is not False
                used = BOTH if not movable or name in first_only else frozenset[str]()
                if name == caller:
                    used = used | (BOTH if method == "learn" else {"weights"})
                group = [n for n in places if n == name or (places[n].pool == places[name].pool and places[n].colocate)]
                group = group if places[name].colocate else [name]
                if not any(role in group for role, _ in steps):
                    used = BOTH  # nobody calls its processes
                resident += amount(places[name], used)
            most[gpu] = max(most.get(gpu, Fraction(0)), resident)
    return most


@many
@given(deployments(), calls, st.data())
def test_calls_find_their_parts_and_gpus_keep_the_planned_amount(
    deployment: hf.Deployment, steps: Calls, data: st.DataObject
) -> None:
    report = flow(steps).check(deployment, {B: 8}, cluster=CLUSTER)
    full = "HF504" in report.codes
    if not any(method == "first" for _, method in steps):
        assert full == any(gib > 80 for gib in least(deployment, steps).values())
    if full:
        return
    plan: CompiledPlan = flow(steps).compile(deployment, {B: 8}, cluster=CLUSTER)
    with watched() as host:
        host.deployment = deployment
        with plan.launch() as running:
            outputs = [[rows.x.tensor for rows in running.step(BATCH)] for _ in range(3)]
        most = dict(host.most)
    for resident in plan.resident:
        planned = resident.part * 80 + resident.gib
        slots = {slot: most.get((resident.root.name, slot), Fraction(0)) for slot in resident.slots}
        assert all(gib <= planned for gib in slots.values()), (slots, planned)
        assert resident.node is None or planned <= 80
    assert all(gib <= 80 for gib in most.values())
    moved = {(period.role, period.part) for period in plan.offloads}
    assert {(role, part) for _, role, part in host.moves} <= moved
    assert not any(deployment[role].offload is False or deployment[role].role is Fixed for role, _ in moved)
    with watched() as still:
        still.deployment = deployment
        bare = without_amounts(deployment)
        expected = whole_values(bare, steps, 3)
        assert not still.moves
    assert all(torch.equal(x, y) for xs, ys in zip(outputs, expected, strict=True) for x, y in zip(xs, ys, strict=True))


POOL = hf.ResourcePool([2], name="train")
PPO: Calls = [
    ("a", "look"),
    ("b", "look"),
    ("c", "look"),
    ("b", "learn"),
    ("a", "learn"),
    ("b", "learn"),
    ("a", "learn"),
]
UNUSED = hf.place(Fixed, "d", pool=hf.ResourcePool([2], name="rest"))


def roles(**options: Any) -> hf.Deployment:
    """Two that train and a frozen one on the same GPUs, and one apart that a program need not call."""
    return hf.Deployment(**{n: hf.place(Movable, n, pool=POOL, **options.get(n, {})) for n in "abc"}, d=UNUSED)


def offloading(*names: str) -> hf.Deployment:
    return roles(**{name: {"offload": True} for name in names})


def idles(plan: CompiledPlan) -> set[tuple[str, str, str | None, str | None]]:
    labels = {step.node: step.label for step in plan.steps} | {None: None}
    return {(period.role, period.part, labels[period.after], labels[period.before]) for period in plan.offloads}


def test_a_part_is_away_while_others_work_but_not_between_the_turns_of_a_loop() -> None:
    plan = flow(PPO).compile(offloading("a", "b", "c"), {B: 8})
    assert idles(plan) == {
        ("a", "weights", "a.look", "a.learn#1"),
        ("a", "optimizer", "a.learn#2", "a.learn#1"),
        ("b", "weights", "b.look", "b.learn#1"),
        ("b", "weights", "b.learn#2", "b.look"),
        ("b", "optimizer", "b.learn#2", "b.learn#1"),
        ("c", "weights", "c.look", "c.look"),
        ("c", "optimizer", None, None),
    }


def test_nothing_moves_unless_somebody_asks_or_gpus_are_too_small() -> None:
    assert flow(PPO).compile(roles(), {B: 8}).offloads == ()
    assert flow(PPO).compile(offloading("a"), {B: 8}, optimize=hf.Optimize(offload=False)).offloads == ()
    fits = {n: {"gpu_memory": {"weights": "10GiB", "optimizer": "15GiB"}} for n in "abc"}
    assert flow(PPO).compile(roles(**fits), {B: 8}, cluster=CLUSTER).offloads == ()
    alone: Calls = [("a", "look"), ("a", "learn")]
    assert idles(flow(alone).compile(offloading("a"), {B: 8})) == {("a", "optimizer", "a.learn", "a.learn")}


def test_no_more_moves_than_the_gpus_need() -> None:
    """Of 100 GiB, 80 fit: the frozen role goes, and while it is there itself one of the two optimizers."""
    sizes = {n: {"gpu_memory": {"weights": "10GiB", "optimizer": "30GiB"}} for n in "ab"}
    plan = flow(PPO).compile(roles(**sizes, c={"gpu_memory": "20GiB"}), {B: 8}, cluster=CLUSTER)
    assert [(resident.gib, resident.root.name) for resident in plan.resident] == [(80, "train")]
    assert idles(plan) == {
        ("c", "weights", "c.look", "c.look"),
        ("c", "optimizer", None, None),
        ("a", "optimizer", "a.learn#2", "a.learn#1"),
    }
    halves = {n: {"gpu_memory": {"weights": "40%", "optimizer": "50%"}} for n in "ab"}
    assert {period.part for period in flow(PPO).compile(roles(**halves), {B: 8}).offloads} == BOTH


def test_memory_that_cannot_fit_is_reported_with_the_call_and_its_parts() -> None:
    forty: dict[str, Any] = {"gpu_memory": "40GiB"}
    sizes = {"a": {"gpu_memory": {"weights": "30GiB", "optimizer": "60GiB"}}, "b": forty}
    report = flow(PPO).check(roles(**sizes), {B: 8}, cluster=CLUSTER)
    [finding] = report.errors
    message = (
        "while 'a.learn' runs, 'a' (30GiB weights + 60GiB optimizer) keeps 90 GiB of each GPU of pool 'train', which"
    )
    assert (finding.code, finding.message) == ("HF504", f"{message} has 80 GiB")
    one_stays = roles(a=forty, b={**forty, "offload": False}, c=forty)
    assert flow(PPO).check(one_stays, {B: 8}, cluster=CLUSTER).ok
    stays = {n: {**forty, "offload": False} for n in "abc"}
    assert not flow(PPO).check(roles(**stays), {B: 8}, cluster=CLUSTER).ok
    off = hf.Optimize(offload=False)
    with pytest.raises(hf.CheckError, match="HF504"):
        flow(PPO).compile(roles(**dict.fromkeys("abc", forty)), {B: 8}, cluster=CLUSTER, optimize=off)


def test_the_plan_in_print_says_what_is_where() -> None:
    sizes = {n: {"gpu_memory": {"weights": "14GiB", "optimizer": "42GiB"}, "offload": True} for n in "ab"}
    text = str(flow(PPO).compile(roles(**sizes, c={"gpu_memory": "14GiB"}), {B: 8}, cluster=CLUSTER))
    assert "offload  a.weights (14 GiB) on the host from a.look to a.learn#1\n" in text
    assert "         a.optimizer (42 GiB) on the host from a.learn#2 to the next a.learn#1\n" in text
    assert "         train keeps at most 70 GiB of each GPU at b.learn#1, 126 GiB without offload\n" in text
    assert "offload" not in str(flow(PPO).compile(roles(), {B: 8}))


def test_another_plan_of_the_run_finds_what_it_uses_and_leaves_no_more_than_it_may() -> None:
    deployment = offloading("a", "b", "c")
    train, look = flow(PPO).compile(deployment, {B: 8}), flow([("c", "look")], "evaluate").compile(deployment, {B: 8})
    with watched() as host:
        host.deployment = deployment
        with train.launch() as running:
            assert host.there["c", 0] == host.there["a", 1] == set()
            evaluation = running.also(look)
            for _ in range(2):
                running.step(BATCH)
                assert host.there["a", 0] == {"weights"}
                evaluation.step(BATCH)
                assert (host.there["a", 0], host.there["c", 1]) == (set(), {"weights"})


def test_roles_are_offloaded_one_at_a_time_with_all_their_parts(tmp_path: Path) -> None:
    plan = flow(PPO).compile(offloading("a", "b", "c"), {B: 8})
    with watched() as host:
        host.deployment = plan.deployment
        with plan.launch() as running:
            running.step(BATCH)
            running.save(tmp_path)
            expected = running.step(BATCH)
        with plan.launch() as running:
            running.load(tmp_path)
            outputs = running.step(BATCH)
    assert all(torch.equal(output.x.tensor, actual.x.tensor) for output, actual in zip(outputs, expected, strict=True))


class Broken(Movable):
    def onload(self, part: str) -> None:
        raise MemoryError(part)


class Half(Fixed):
    def offload(self) -> None: ...

    def onload(self, part: str) -> None: ...


def test_a_move_that_fails_names_role_and_part() -> None:
    deployment = hf.Deployment(a=hf.place(Broken, "a", pool=POOL, offload=True), **{n: roles()[n] for n in "bcd"})
    with watched() as host, flow(PPO).compile(deployment, {B: 8}).launch() as running:
        host.deployment = deployment
        with pytest.raises(RoleError) as error:
            running.step(BATCH)
    assert error.value.code == "HF806"
    assert "'a.onload('weights')' raised on rank 0 in step 0: MemoryError: weights" in str(error.value)


@pytest.mark.parametrize(
    ("role", "pool", "why"),
    [
        (Fixed, POOL, "it has no method 'offload(self, part)'"),
        (Half, POOL, "its method 'offload' does not take one argument, the part"),
        (Movable, hf.ResourcePool([2], use_gpu=False, name="cpus"), "pool 'cpus' has no GPUs"),
    ],
)
def test_a_role_that_cannot_be_offloaded(role: type[Fixed], pool: hf.ResourcePool, why: str) -> None:
    with pytest.raises(ResourceError) as error:
        hf.place(role, "a", pool=pool, offload=True)
    assert (error.value.code, error.value.message) == ("HF525", f"place({role.__name__}): offload=True, and {why}")


@pytest.mark.parametrize(
    ("given_memory", "why"),
    [
        ({"activations": "1GiB"}, "has an amount for 'activations'; the parts are 'weights' and 'optimizer'"),
        ({"weights": "much"}, "is text with a unit, such as"),
        ({}, "has no amount"),
    ],
)
def test_amounts_of_parts_that_are_none(given_memory: Any, why: str) -> None:
    with pytest.raises(ResourceError, match=why) as error:
        hf.place(Movable, "a", pool=POOL, gpu_memory=given_memory)
    assert error.value.code == "HF504"
