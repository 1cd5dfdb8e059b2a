# mypy: disable-error-code="empty-body"
"""Which of the parts of roles are chosen to move, where several would do."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from hfdsl.check.context import Context
from hfdsl.check.offloads import ResidentMemory, SharedGpus
from hfdsl.check.run import build_context
from hfdsl.deploy.memory import GpuMemory

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


def program_of(calls: list[tuple[str, str]], colocate: bool = True, **options: Any) -> Context:
    """Calls of four roles on the same GPUs."""

    def program(rows: Rows, a: Role, b: Role, c: Role, d: Role) -> list[Rows]:
        roles = {"a": a, "b": b, "c": c, "d": d}
        return [getattr(roles[role], method)(rows) for role, method in calls]

    places = {n: hf.place(Role, pool=POOL, colocate=colocate, **options.get(n, {})) for n in "abcd"}
    return build_context(program, hf.Deployment(**places), {B: 8}, CLUSTER)


def fits(context: Context) -> bool:
    return not any(gpu.more_than(size) for gpu, size in SharedGpus(context).fullest)


def moved(context: Context) -> set[tuple[str, str]]:
    """The roles and parts that lie on the host at some time."""
    return {(period.role, period.part) for period in SharedGpus(context).idle_periods}


def idles(context: Context) -> set[tuple[str, str, int | None, int | None, bool]]:
    """The same with the calls before and after, by their places in the step."""
    places: dict[int | None, int] = {node.id: i for i, node in enumerate(context.program.graph.calls)}
    return {
        (i.role, i.part, places.get(i.after), places.get(i.before), i.around) for i in SharedGpus(context).idle_periods
    }


def memory(weights: int, optimizer: int) -> dict[str, Any]:
    return {"gpu_memory": {"weights": f"{weights}GiB", "optimizer": f"{optimizer}GiB"}}


def test_parts_that_no_call_reaches_do_not_move() -> None:
    fifty: dict[str, Any] = {"a": memory(25, 25), "c": memory(25, 25)}
    together = program_of([("a", "learn")], **fifty)
    assert fits(together)
    assert moved(together) == {("c", "optimizer")}, "the processes of 'a' move it"
    apart = program_of([("a", "learn")], colocate=False, **fifty)
    assert not fits(apart), "nobody calls the processes of 'c'"
    assert moved(apart) == set()


def test_parts_called_on_one_rank_alone_do_not_move() -> None:
    fifty: dict[str, Any] = {"a": memory(25, 25), "c": memory(25, 25)}
    assert fits(program_of([("c", "look"), ("a", "learn")], colocate=False, **fifty))
    assert not fits(program_of([("c", "first"), ("a", "learn")], colocate=False, **fifty))


def test_one_move_serves_all_calls_that_it_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfdsl.check.offloads.MAX_PRUNED_MOVES", 0)  # nothing that was chosen is left out again
    context = program_of([("b", "look"), ("c", "learn")], a=memory(30, 30), b=memory(20, 10), c=memory(30, 30))
    assert fits(context)
    assert moved(context) == {("a", "weights"), ("a", "optimizer"), ("b", "optimizer")}


def test_calls_elsewhere_ask_nothing_of_these_gpus() -> None:
    def program(rows: Rows, a: Role, b: Role, c: Role) -> list[Rows]:
        return [a.look(rows), c.look(rows), b.look(rows), c.look(rows)]

    other = hf.place(Role, pool=hf.ResourcePool([2], name="other"))
    places = {n: hf.place(Role, pool=POOL, **memory(50, 1)) for n in "ab"}
    nodes = hf.Nodes(2, gpus=2, gpu_memory_gib=80, cpus=16), hf.Nodes(4, cpus=64)
    context = build_context(program, hf.Deployment(**places, c=other), {B: 8}, hf.Cluster(*nodes))
    assert fits(context)
    assert {("a", "weights"), ("b", "weights")} <= moved(context)


def test_too_much_memory_is_reported_with_the_call_that_needs_it() -> None:
    role = hf.place(Role, pool=POOL, gpu_memory={"weights": "50GiB", "optimizer": "40GiB"})

    @hf.dataflow
    def program(rows: Rows, a: Role) -> Rows:
        return a.learn(a.look(rows))

    [finding] = program.check(hf.Deployment(a=role), {B: 8}, CLUSTER).errors
    assert finding.message.startswith("while 'a.learn' runs, 'a' (50GiB weights + 40GiB optimizer) keeps 90 GiB")


LEND: dict[str, Any] = {"offload": True}


def weights(gib: int) -> dict[str, Any]:
    return {"gpu_memory": {"weights": f"{gib}GiB"}}


def test_a_role_that_is_to_move_does_so_between_its_uses_but_for_the_turns_of_a_loop() -> None:
    calls = [("a", "look"), ("b", "look"), ("a", "look"), ("b", "look"), ("a", "learn"), ("b", "look")]
    context = program_of(calls, a=LEND)
    assert idles(context) == {
        ("a", "weights", 2, 4, False),
        ("a", "weights", 4, 0, True),
        ("a", "optimizer", 4, 4, True),
    }
    assert SharedGpus(replace(context, offload=False)).idle_periods == ()
    assert idles(program_of([("a", "look")], c=LEND)) == {
        ("c", "weights", None, None, True),
        ("c", "optimizer", None, None, True),
    }


LEFT, RIGHT = POOL.split([1, 1])


@pytest.mark.parametrize("pool", [RIGHT, hf.ResourcePool([2], name="other")])
def test_a_role_does_not_move_for_calls_on_other_gpus(pool: hf.ResourcePool) -> None:
    def program(rows: Rows, a: Role, b: Role) -> list[Rows]:
        return [a.learn(rows), b.learn(rows)]

    places = hf.Deployment(a=hf.place(Role, pool=LEFT, offload=True), b=hf.place(Role, pool=pool, offload=True))
    assert SharedGpus(build_context(program, places, {B: 8})).idle_periods == ()


def test_a_role_that_is_to_stay_does_so_though_gpus_are_too_small() -> None:
    stay: dict[str, Any] = {**weights(50), "offload": False}
    context = program_of([("a", "look"), ("b", "look")], a=stay, b=stay)
    assert not fits(context)
    assert moved(context) == set()


def test_of_equally_full_calls_the_first_is_reported() -> None:
    [(resident, size)] = SharedGpus(program_of([("a", "look"), ("a", "learn")], a={"gpu_memory": "90GiB"})).fullest
    assert (resident.place, resident.gib) == (0, Fraction(90))
    assert size == 80
    assert resident.node is not None
    assert SharedGpus(program_of([("a", "look")])).fullest == [], "nobody says what it keeps"


def test_parts_of_a_gpu_are_compared_with_amounts_as_of_one_of_100_gib_where_its_size_is_unknown() -> None:
    amounts = {text: GpuMemory.read(text, "") for text in ("50%", "10GiB")}
    resident = ResidentMemory(POOL, range(2), amounts, None, -1)
    assert resident.of(None) == 60
    assert resident.of(Fraction(80)) == 50


def test_parts_of_a_gpu_and_amounts_are_added_up() -> None:
    amounts = {text: GpuMemory.read(text, "") for text in ("50%", "45GiB")}
    resident = ResidentMemory(POOL, range(2), amounts, None, -1)
    assert resident.more_than(Fraction(80)), "40 and 45"
    assert not resident.more_than(Fraction(90)), "45 and 45"
    assert not resident.more_than(None)


@pytest.mark.parametrize(("few", "parts"), [(2, {"optimizer"}), (1, {"weights", "optimizer"})])
def test_few_moves_are_tried_without_each_and_first_without_those_in_a_loop(
    few: int, parts: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two calls of 'a' both of its parts are idle, and either would do."""
    monkeypatch.setattr("hfdsl.check.offloads.MAX_PRUNED_MOVES", few)
    context = program_of([("a", "look"), ("b", "look"), ("a", "look")], a=memory(30, 30), b={**weights(30), **LEND})
    assert {part for role, part in moved(context) if role == "a"} == parts


@pytest.mark.parametrize(
    ("calls", "roles", "chosen"),
    [
        # Of 92 GiB the 30 of 'c' are enough at once; those of 'a' and of 'd' only together.
        (
            [("c", "look"), ("b", "look"), ("c", "learn")],
            {"a": weights(6), "b": {**weights(50), **LEND}, "c": weights(30), "d": weights(6)},
            "c",
        ),
        # 'a' is idle for longer than 'c', but in each turn of a loop.
        (
            [("a", "look"), ("c", "look"), ("b", "look"), ("c", "learn"), ("a", "look")],
            {"a": weights(20), "b": {**weights(50), **LEND}, "c": weights(20)},
            "c",
        ),
        # 'd' is idle always, 'c' while 'b' is called.
        (
            [("c", "look"), ("b", "look"), ("c", "learn")],
            {"b": {**weights(50), **LEND}, "c": weights(20), "d": weights(20)},
            "d",
        ),
        ([("b", "look")], {"a": weights(15), "b": weights(60), "c": weights(20)}, "c"),
    ],
    ids=["what is enough", "not in a loop", "the longest idleness", "the largest"],
)
def test_the_role_that_moves_where_several_could(
    calls: list[tuple[str, str]], roles: dict[str, Any], chosen: str
) -> None:
    context = program_of(calls, **roles)
    assert fits(context)
    assert moved(context) - {("b", "weights"), ("b", "optimizer")} == {(chosen, "weights")}
