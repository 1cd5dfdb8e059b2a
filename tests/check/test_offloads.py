# mypy: disable-error-code="empty-body"
"""Which of the parts of roles are chosen to move, where several would do."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from hfdsl.check.offloads import fullest, offloads
from hfdsl.check.run import examine
from hfdsl.check.subject import Subject

CLUSTER = hf.Cluster(hf.Nodes(1, gpus=2, gpu_memory_gib=80, cpus=16))
POOL = hf.ResourcePool([2], name="train")


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.reads("w")
    def look(self, rows: Rows) -> Rows: ...

    @register(Dispatch.DP_PROTO)
    @hf.writes("w")
    def learn(self, rows: Rows) -> Rows: ...

    @register(Dispatch.ALL_TO_ALL, Execute.RANK_ZERO)
    def first(self, rows: Rows) -> Rows: ...

    def offload(self, part: str) -> None: ...

    def onload(self, part: str) -> None: ...


def program_of(calls: list[tuple[str, str]], colocate: bool = True, **options: Any) -> Subject:
    """Calls of three roles on the same GPUs."""

    def program(rows: Rows, a: Role, b: Role, c: Role) -> list[Rows]:
        roles = {"a": a, "b": b, "c": c}
        return [getattr(roles[role], method)(rows) for role, method in calls]

    places = {n: hf.place(Role, pool=POOL, colocate=colocate, **options.get(n, {})) for n in "abc"}
    return examine(program, hf.Deployment(**places), {B: 8}, CLUSTER)


def fits(subject: Subject) -> bool:
    return not any(one.more_than(size) for one, size in fullest(subject))


def moved(subject: Subject) -> set[tuple[str, str]]:
    """The roles and parts that lie on the host at some time."""
    return {(idle.role, idle.part) for idle in offloads(subject)}


def kept(weights: int, optimizer: int) -> dict[str, Any]:
    return {"gpu_memory": {"weights": f"{weights}GiB", "optimizer": f"{optimizer}GiB"}}


def test_what_no_call_reaches_does_not_move() -> None:
    fifty: dict[str, Any] = {"a": kept(25, 25), "c": kept(25, 25)}
    together = program_of([("a", "learn")], **fifty)
    assert fits(together)
    assert moved(together) == {("c", "optimizer")}, "the processes of 'a' move it"
    apart = program_of([("a", "learn")], colocate=False, **fifty)
    assert not fits(apart), "nobody calls the processes of 'c'"
    assert moved(apart) == set()


def test_what_one_rank_alone_is_called_for_does_not_move() -> None:
    fifty: dict[str, Any] = {"a": kept(25, 25), "c": kept(25, 25)}
    assert fits(program_of([("c", "look"), ("a", "learn")], colocate=False, **fifty))
    assert not fits(program_of([("c", "first"), ("a", "learn")], colocate=False, **fifty))


def test_one_move_serves_all_calls_that_it_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfdsl.check.offloads.FEW", 0)  # nothing that was chosen is left out again
    subject = program_of([("b", "look"), ("c", "learn")], a=kept(30, 30), b=kept(20, 10), c=kept(30, 30))
    assert fits(subject)
    assert moved(subject) == {("a", "weights"), ("a", "optimizer"), ("b", "optimizer")}


def test_calls_elsewhere_ask_nothing_of_these_gpus() -> None:
    def program(rows: Rows, a: Role, b: Role, c: Role) -> list[Rows]:
        return [a.look(rows), c.look(rows), b.look(rows), c.look(rows)]

    other = hf.place(Role, pool=hf.ResourcePool([2], name="other"))
    places = {n: hf.place(Role, pool=POOL, **kept(50, 1)) for n in "ab"}
    nodes = hf.Nodes(2, gpus=2, gpu_memory_gib=80, cpus=16), hf.Nodes(4, cpus=64)
    subject = examine(program, hf.Deployment(**places, c=other), {B: 8}, hf.Cluster(*nodes))
    assert fits(subject)
    assert {("a", "weights"), ("b", "weights")} <= moved(subject)


def test_what_is_too_much_is_told_with_the_call_in_which_it_is() -> None:
    role = hf.place(Role, pool=POOL, gpu_memory={"weights": "50GiB", "optimizer": "40GiB"})

    @hf.dataflow
    def program(rows: Rows, a: Role) -> Rows:
        return a.learn(a.look(rows))

    [finding] = program.check(hf.Deployment(a=role), {B: 8}, CLUSTER).errors
    assert finding.message.startswith("while 'a.learn' runs, 'a' (50GiB weights + 40GiB optimizer) keeps 90 GiB")
