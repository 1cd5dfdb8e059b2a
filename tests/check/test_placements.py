# mypy: disable-error-code="empty-body"
"""Places of roles: who has none, who is none, and what fits neither its constructor nor its mesh."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check.repair import trials


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Actor(hf.Worker):
    def __init__(self, size: int = 1) -> None: ...

    @register(Dispatch.DP_PROTO)
    def learn(self, rows: Rows) -> Rows: ...


class Maker(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def number(self, rows: Rows) -> int: ...

    @register(Dispatch.DP_PROTO)
    def column(self, seed: int, scale: int = 1) -> hf.f32[B]: ...

    @register(Dispatch.DP_PROTO, rows=hf.Whole)
    def whole(self, rows: Rows) -> None: ...


class Other(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def learn(self, rows: Rows) -> Rows: ...


@hf.dataflow
def program(rows: Rows, actor: Actor) -> Rows:
    return actor.learn(rows)


POOL = hf.ResourcePool([4], use_gpu=False)


def check(body: Any, **roles: type[hf.Worker]) -> hf.Report:
    flow = body if isinstance(body, hf.Dataflow) else hf.dataflow(body)
    places: dict[str, Any] = {name: hf.place(role, pool=POOL) for name, role in roles.items()}
    report: hf.Report = flow.check(hf.Deployment(**places), {B: 8})
    return report


def test_the_place_with_the_nearest_name_is_the_one_that_is_meant() -> None:
    finding, second = check(program, actor_=Actor, actor_2=Actor).findings
    assert (finding.code, finding.help) == ("HF507", ("rename 'actor_' to 'actor'",))
    assert (second.code, second.message) == ("HF508", "'actor_2' is placed but 'program' has no such role")


def test_a_place_of_another_class_is_not_meant() -> None:
    finding, second = check(program, actor_=Other).findings
    assert (finding.code, finding.notes) == ("HF507", ("add actor=hf.place(Actor, ..., pool=...)",))
    assert (second.code, second.message) == ("HF508", "'actor_' is placed but 'program' has no such role")


def test_where_nothing_is_tried_the_other_name_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "MAX_PLACES", 0)
    [finding] = check(program, actor_=Actor).findings
    assert (finding.help, finding.notes) == ((), ("rename 'actor_' to 'actor'",))


def test_a_role_that_another_mistake_hides_is_no_spare_place() -> None:
    def mistyped(rows: Rows, actor: int) -> Rows:
        return rows

    def outside(rows: Rows) -> Rows:
        return Actor().learn(rows)

    def column(rows: Rows, actor: Actor) -> Rows:
        rows.spare  # type: ignore[attr-defined]  # noqa: B018  # the mistake
        return actor.learn(rows)

    assert check(mistyped, actor=Actor).codes == ("HF119",)
    assert check(outside, actor=Actor).codes == ("HF607",)
    assert check(column, actor=Actor, spare=Actor).codes == ("HF201", "HF508")


def test_an_argument_that_a_constructor_does_not_take_is_named() -> None:
    place = hf.place(Actor, size=1, sise=2, name="a", pool=POOL)  # the mistakes
    [finding] = program.check(hf.Deployment(actor=place), {B: 8}).findings
    assert finding.code == "HF516"
    assert "cannot be built: it has no parameter 'sise'; did you mean 'size'?" in finding.message


def number(rows: Rows, maker: Maker) -> int:
    return maker.number(rows)


def column(rows: Rows, maker: Maker) -> hf.f32[B]:
    return maker.column(7)


def whole(rows: Rows, maker: Maker) -> None:
    maker.whole(rows)


@pytest.mark.parametrize(("body", "code"), [(number, "HF417"), (column, "HF413"), (whole, "HF421")])
def test_programs_that_run_on_one_rank_and_not_on_two(body: Any, code: str) -> None:
    def codes(ranks: int) -> tuple[str, ...]:
        place = hf.place(Maker, pool=hf.ResourcePool([ranks], use_gpu=False))
        return hf.dataflow(body).check(hf.Deployment(maker=place), {B: 8}).codes

    assert (codes(1), codes(2)) == ((), (code,))


class Lister(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def numbers(self, rows: Rows) -> hf.PerRank[int]: ...


def test_a_list_from_every_chunk_is_joined_on_no_mesh() -> None:
    @hf.dataflow
    def program(rows: Rows, lister: Lister) -> hf.PerRank[int]:
        return lister.numbers(rows)

    for ranks, chunks in ((1, "1 chunk"), (2, "each of 2 chunks")):
        place = hf.place(Lister, pool=hf.ResourcePool([ranks], use_gpu=False))
        [finding] = program.check(hf.Deployment(lister=place), {B: 8}).findings
        assert finding.code == "HF413"
        assert finding.message == f"'lister.numbers' gives PerRank[int] from {chunks}, which DP_PROTO cannot join"


def test_a_list_of_numbers_needs_no_reduction() -> None:
    class Counter(hf.Worker):
        @register(hf.Protocol("SCATTER", split=("rank",), gives="per_rank"))
        def count(self, rows: Rows) -> int: ...

    def counting(rows: Rows, counter: Counter) -> hf.PerRank[int]:
        return counter.count(rows)  # type: ignore[return-value]  # a list: the protocol is of its own

    counting.__annotations__ |= {"counter": Counter}
    assert check(counting, counter=Counter).ok


def test_a_protocol_that_is_for_another_mesh_is_one_mistake() -> None:
    class Late(hf.Worker):
        @register(hf.Protocol("LATE", split=("dp",), collect={"dp": "join", "pp": 1, "tp": "first"}), rows=hf.Whole)
        def learn(self, rows: Rows) -> Rows: ...

    def late(rows: Rows, role: Late) -> Rows:
        return role.learn(rows)

    late.__annotations__ |= {"role": Late}
    assert check(late, role=Late).codes == ("HF404",)
