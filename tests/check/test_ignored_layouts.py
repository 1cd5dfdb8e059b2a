# mypy: disable-error-code="empty-body"
"""Declared layouts that a program ignores, since one rank returns the weights, or since nobody exports them."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from hfdsl.protocols.layouts import Layout, Parameter, Replicas, Slices

WEIGHTS = [Parameter("up.weight", (8, 8))]

OF_ONE_RANK = (
    "'trainer.weights' declares a layout of 'policy' by which ranks hold parts, but rank 0 alone runs it and has to "
    "return whole parameters: the layout has no effect"
)
OF_NOBODY = (
    "'judge.load' declares a layout of 'policies', but no role of the program exports 'policies': the layout has no "
    "effect, and each rank gets the whole value"
)


class B(hf.Dim): ...


class Rows(hf.Batch):
    ids: hf.i64[B]


class Trainer(hf.Worker):
    def __init__(self, layout: Layout) -> None: ...

    @staticmethod
    def state_parameters(layout: Layout) -> dict[str, list[Parameter]]:
        return {"policy": WEIGHTS}

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rows: Rows) -> None: ...

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy", layout=lambda mesh, layout: layout)
    def weights(self) -> dict[str, list[float]]: ...


class WithNone(Trainer):
    """One of its parameters has no elements, so no rank holds a part of it."""

    @staticmethod
    def state_parameters(layout: Layout) -> dict[str, list[Parameter]]:
        return {"policy": [*WEIGHTS, Parameter("none", (0, 8))]}


class Everywhere(hf.Worker):
    state_parameters = staticmethod(Trainer.state_parameters)

    def __init__(self, layout: Layout) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rows: Rows) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=lambda mesh, layout: layout)
    def weights(self) -> dict[str, list[float]]: ...


class Holding(Everywhere):
    def held_weights(self, state: str) -> dict[str, list[float]]: ...


class Exporting(Holding):
    """Has another method than the class that says what ranks hold."""

    state_parameters = staticmethod(Trainer.state_parameters)

    @register(Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=lambda mesh, layout: layout)
    def weights(self) -> dict[str, list[float]]: ...


class HoldingToo(Exporting):
    held_weights = Holding.held_weights


class Engine(hf.Worker):
    state_parameters = staticmethod(Trainer.state_parameters)

    def __init__(self, layout: Layout) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def look(self, rows: Rows) -> Rows: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=lambda mesh, layout: layout)
    def load(self, weights: dict[str, list[float]]) -> None: ...


class LoadsNone(Engine):
    state_parameters = staticmethod(WithNone.state_parameters)


class Judge(hf.Worker):
    """Loads a state of its own, which nobody exports under that name."""

    def __init__(self, layout: Layout) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.reads("policies")
    def look(self, rows: Rows) -> Rows: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policies", layout=lambda mesh, layout: layout)
    def load(self, weights: dict[str, list[float]]) -> None: ...


@hf.dataflow
def synced(rows: Rows, trainer: Trainer, engine: Engine, other: Engine) -> None:
    trainer.update(engine.look(rows))
    weights = trainer.weights()
    engine.load(weights)
    other.load(weights)


@hf.dataflow
def joined(rows: Rows, trainer: Everywhere, engine: Engine, other: Engine) -> None:
    trainer.update(engine.look(rows))
    hf.sync(trainer, engine)
    hf.sync(trainer, other)


@hf.dataflow
def misnamed(rows: Rows, trainer: Trainer, judge: Judge) -> None:
    trainer.update(judge.look(rows))
    judge.load(trainer.weights())


@hf.dataflow
def unloaded(rows: Rows, judge: Judge) -> Rows:
    return judge.look(rows)


def messages(dataflow: Any, **roles: Any) -> list[str]:
    """The findings on layouts, of roles on two ranks each."""
    report = dataflow.check(hf.Deployment(**{name: place(*role) for name, role in roles.items()}), {B: 8})
    found = [finding for finding in report.findings if finding.code.startswith("HF73")]
    assert {finding.code for finding in found} <= {"HF738"}
    return [finding.message for finding in found]


def place(role: Any, layout: Layout, tp: int = 2) -> Any:
    return hf.place(role, layout, pool=hf.ResourcePool([tp], name=role.__name__), mesh=hf.Mesh(tp=tp))


@pytest.mark.parametrize(
    ("role", "layout", "tp", "is_ignored"),
    [
        (Trainer, Slices(0), 2, True),
        (Trainer, Slices(0, blocks=(4, 4), interleaved=2, axis="dp"), 2, True),  # all of it, in another order
        (Trainer, Replicas(), 2, False),
        (WithNone, Replicas(), 2, False),
        (WithNone, Slices(0), 2, True),
        (Trainer, Slices(0, "dp"), 2, False),  # all of it on each rank
        (Trainer, Slices(0), 1, False),
        (Everywhere, Slices(0), 2, False),
    ],
)
def test_the_layout_of_what_one_rank_returns(role: type, layout: Layout, tp: int, is_ignored: bool) -> None:
    dataflow = synced if issubclass(role, Trainer) else joined
    engines = LoadsNone if role is WithNone else Engine, Replicas()
    found = messages(dataflow, trainer=(role, layout, tp), engine=engines, other=engines)
    assert found == [OF_ONE_RANK] * is_ignored


@pytest.mark.parametrize(
    ("role", "layout", "is_ignored"),
    [
        (Exporting, Slices(0), True),
        (Exporting, Replicas(), False),
        (Holding, Slices(0), False),
        (HoldingToo, Slices(0), False),
    ],
)
def test_the_layout_of_a_method_below_what_ranks_hold(role: type, layout: Layout, is_ignored: bool) -> None:
    """A sync would send what its first rank returns, a part, as if it were all."""
    found = messages(joined, trainer=(role, layout), engine=(Engine, Replicas()), other=(Engine, Replicas()))
    assert len(found) == is_ignored
    says = "'trainer.weights' declares a layout of 'policy', but Exporting has its own weights, below Holding, whose "
    assert all(message.startswith(f"{says}held_weights gives the parts of ranks") for message in found)


@pytest.mark.parametrize(("layout", "is_ignored"), [(Slices(0), True), (Replicas(), False), (Slices(0, "dp"), False)])
def test_the_layout_of_a_state_that_nobody_exports(layout: Layout, is_ignored: bool) -> None:
    found = messages(misnamed, trainer=(Trainer, Replicas()), judge=(Judge, layout))
    assert found == [OF_NOBODY] * is_ignored
    assert messages(unloaded, judge=(Judge, layout)) == []
