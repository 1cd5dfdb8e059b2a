# mypy: disable-error-code="empty-body, override, misc"
"""Placed classes: what their methods may declare otherwise than the class that the dataflow is written for."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, f32, register


class B(hf.Dim): ...


class Rows(hf.Batch):
    values: f32[B]


class More(Rows):
    others: f32[B]


class Scores(hf.Batch):
    reward: f32[B]


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO, rows=hf.Grouped(4))
    def score(self, rows: More, scale: float = 1.0) -> Scores: ...

    @register(Dispatch.DP_PROTO)
    def generate(self, rows: Rows) -> More: ...


@hf.dataflow
def program(rows: Rows, actor: Actor) -> Scores:
    return actor.score(actor.generate(rows))


def report(placed: Any) -> hf.Report:
    deployment = hf.Deployment(actor=hf.place(placed, pool=hf.ResourcePool([2])))
    return program.check(deployment, {B: 8})


class Wider(Actor):
    @register(Dispatch.DP_PROTO, rows=hf.Grouped(2))
    def score(self, rows: Rows, scale: float = 1.0, further: int = 3) -> Scores: ...


class Finer(Actor):
    @register("DP_PROTO", pad="cycle")
    def generate(self, rows: hf.Batch) -> More: ...  # a base of every record


class Unregistered(Actor):
    def score(self, rows: More, scale: float = 1.0) -> Scores: ...


class UnregisteredWider(Actor):
    def score(self, rows: Rows, scale: float = 1.0, further: int = 3) -> Scores: ...


class UnregisteredVariadic(Actor):
    def score(self, *args: Any, **kwargs: Any) -> Scores: ...


class Unannotated(Actor):
    @register(Dispatch.DP_PROTO, rows=hf.Grouped(4))
    def score(self, rows, scale=1.0):  # type: ignore[no-untyped-def]
        ...


class Uncalled(Actor):
    @register(Dispatch.ONE_TO_ALL)
    def another(self, rows: Scores) -> None: ...


class Abstract(Actor):
    @abstractmethod
    def later(self) -> None: ...


@pytest.mark.parametrize(
    "placed",
    [Actor, Wider, Finer, Unregistered, UnregisteredWider, UnregisteredVariadic, Unannotated, Uncalled, Abstract],
)
def test_an_override_that_accepts_and_returns_as_much_is_silent(placed: Any) -> None:
    assert report(placed).codes == ()


class Protocol(Actor):
    @register(Dispatch.THREE_D_PROTO, rows=hf.Grouped(4))
    def score(self, rows: More, scale: float = 1.0) -> Scores: ...


class Groups(Actor):
    @register(Dispatch.DP_PROTO, rows=hf.Grouped(8))
    def score(self, rows: More, scale: float = 1.0) -> Scores: ...


class AllRows(Actor):
    @register(Dispatch.DP_PROTO, rows=hf.Whole)
    def score(self, rows: More, scale: float = 1.0) -> Scores: ...


class Narrower(Actor):
    @register(Dispatch.DP_PROTO)
    def generate(self, rows: More) -> More: ...


class LessReturned(Actor):
    @register(Dispatch.DP_PROTO)
    def generate(self, rows: Rows) -> Rows: ...


class Renamed(Actor):
    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Rows) -> More: ...


class Needing(Actor):
    @register(Dispatch.DP_PROTO, rows=hf.Grouped(4))
    def score(self, rows: More, scale: float) -> Scores: ...


class UnregisteredNarrower(Actor):
    def generate(self, rows: More) -> More: ...


class UnregisteredRenamed(Actor):
    def generate(self, prompts: Rows) -> More: ...


class UnregisteredLess(Actor):
    def generate(self, rows: Rows) -> Rows: ...


@pytest.mark.parametrize(
    ("placed", "text"),
    [
        (Protocol, "registered with 3D_PROTO"),
        (Groups, "needs rows=Grouped(8)"),
        (AllRows, "needs rows=Whole"),
        (Narrower, "takes More as 'rows'"),
        (LessReturned, "returns Rows"),
        (Renamed, "has no port 'rows'"),
        (Needing, "needs 'scale', which is not wired"),
        (UnregisteredNarrower, "takes More as 'rows'"),
        (UnregisteredRenamed, "has no port 'rows'"),
        (UnregisteredLess, "returns Rows"),
    ],
)
def test_an_override_that_accepts_or_returns_less_is_reported_with_both_classes(placed: Any, text: str) -> None:
    finding = report(placed).findings[0]
    assert (finding.code, text in finding.message) == ("HF541", True), finding.message
    assert {finding.code for finding in report(placed)} == {"HF541"}
    lines = [finding.primary.span.line, *(label.span.line for label in finding.related)]
    assert len(set(lines)) == 4  # of both declarations, the call and the place
    assert all(label.span.file == __file__ for label in (finding.primary, *finding.related))


class Folding(hf.Worker):
    @register(Dispatch.THREE_D_ALL_MICRO_DP)
    def generate(self, rows: Rows) -> More: ...


class Flat(Folding):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, rows: Rows) -> More: ...


@hf.dataflow
def generated(rows: Rows, actor: Folding) -> More:
    return actor.generate(rows)


@pytest.mark.parametrize(
    ("mesh", "codes"),
    [(hf.Mesh(dp=2, tp=2), []), (hf.Mesh(tp=4, gen_tp=4), []), (hf.Mesh(tp=4, gen_tp=2), ["HF541"])],
    ids=str,
)
def test_protocols_that_mean_the_same_on_the_mesh_agree(mesh: hf.Mesh, codes: list[str]) -> None:
    deployment = hf.Deployment(actor=hf.place(Flat, pool=hf.ResourcePool([4]), mesh=mesh))
    assert [finding.code for finding in generated.check(deployment, {B: 8})] == codes


def test_an_inner_dataflow_calls_what_its_own_parameter_declares() -> None:
    @hf.dataflow
    def inner(rows: Rows, actor: Actor) -> Scores:
        return actor.score(actor.generate(rows))

    @hf.dataflow
    def outer(rows: Rows, actor: Protocol) -> Scores:
        return inner(rows, actor)

    assert [finding.code for finding in outer.check().errors] == ["HF541"]


class Bounded(Actor):
    @register(Dispatch.DP_PROTO, rows=hf.Grouped(4))
    def score(self, rows: More, scale: Annotated[float, hf.Within(above=0)] = 1.0) -> Scores: ...


@pytest.mark.parametrize(("scale", "codes"), [(0.5, ()), (0.0, ("HF940",)), (-1, ("HF940",))])
def test_a_number_is_within_the_bounds_of_the_placed_class(scale: float, codes: tuple[str, ...]) -> None:
    @hf.dataflow
    def scaled(rows: Rows, actor: Actor) -> Scores:
        return actor.score(actor.generate(rows), scale)

    deployment = hf.Deployment(actor=hf.place(Bounded, pool=hf.ResourcePool([2])))
    assert scaled.check(deployment, {B: 8}).codes == codes
