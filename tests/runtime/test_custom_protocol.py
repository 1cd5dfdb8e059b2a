"""Custom protocols: what their functions return has the entries and the rows that its readers count on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.errors import WiringError


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: f32[B]


class Total(hf.Batch):
    sum: hf.Metric[float, Literal["sum"]]


ROWS = 6
COLLECTED = ROWS
"""How many rows the collect function returns; tests change it."""


def to_all(group: Any, rows: Rows) -> tuple[tuple[list[Rows]], dict[str, Any]]:
    return ([rows] * group.world_size,), {}


def cut(group: Any, outputs: Sequence[Rows]) -> Rows:
    rows = torch.cat([output.x.tensor for output in outputs])
    return Rows(x=rows[:COLLECTED])


class Scores(hf.Worker):
    @register({"dispatch_fn": to_all, "collect_fn": cut})
    def score(self, rows: Rows) -> Rows:
        return rows

    @register({"dispatch_fn": to_all, "collect_fn": lambda group, outputs: outputs[0]})
    def total(self, rows: Rows) -> Total:
        return Total(sum=float(rows.x.tensor.sum()))


class Reader(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def total(self, rows: Rows) -> Total:
        return Total(sum=float(rows.x.tensor.sum()))


@hf.dataflow
def returned(rows: Rows, scores: Scores) -> Rows:
    return scores.score(rows)


@hf.dataflow
def read(rows: Rows, scores: Scores, reader: Reader) -> Total:
    return reader.total(scores.score(rows))


@hf.dataflow
def totals(rows: Rows, scores: Scores) -> Total:
    return scores.total(rows)


def step(flow: Any, **roles: type[hf.Worker]) -> Any:
    pool = hf.ResourcePool([2], use_gpu=False)
    placed = hf.Deployment(**{name: hf.place(role, pool=pool) for name, role in roles.items()})
    with flow.compile(placed, {B: ROWS}).launch() as running:
        return running.step(Rows(x=torch.ones(ROWS)))


@given(st.integers(0, 2 * ROWS))
def test_a_collected_value_has_the_declared_rows_or_is_refused(rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.COLLECTED", rows)
        if rows == ROWS:
            assert step(returned, scores=Scores).x.tensor.tolist() == [1.0] * ROWS
            assert step(read, scores=Scores, reader=Reader).sum.value == float(ROWS)
            return
        shown = "1 row" if rows == 1 else f"{rows} rows"
        for flow, roles in ((returned, {"scores": Scores}), (read, {"scores": Scores, "reader": Reader})):
            with pytest.raises(WiringError) as refused:
                step(flow, **roles)
            assert str(refused.value).startswith(
                f"HF805: the collect function of 'scores.score' returned {shown} of Rows, where the program has {ROWS}"
            )


def test_a_metric_has_no_rows() -> None:
    assert step(totals, scores=Scores).sum.value == float(ROWS)


# -- dispatch functions

RECEIVED: list[tuple[list[list[float]], dict[str, list[float]]]] = []


def noting(group: Any, *args: Rows, **kwargs: Rows) -> Any:
    RECEIVED.append(([a.x.tensor.tolist() for a in args], {name: k.x.tensor.tolist() for name, k in kwargs.items()}))
    n = group.world_size
    return tuple([value] * n for value in args), {name: [value] * n for name, value in kwargs.items()}


def first(group: Any, outputs: Sequence[Rows]) -> Rows:
    return outputs[0]


RETURNED: Any = None
"""What the dispatch function of ``by_returned`` returns; tests change it."""


class Differences(hf.Worker):
    @register({"dispatch_fn": noting, "collect_fn": first})
    def between(self, a: Rows, b: Rows, c: Rows | None = None, *, d: Rows | None = None) -> Rows:
        return Rows(x=a.x.tensor - b.x.tensor)

    @register({"dispatch_fn": lambda group, a, b: RETURNED(a, b), "collect_fn": first})
    def by_returned(self, a: Rows, b: Rows, c: Rows | None = None) -> Rows:
        return Rows(x=a.x.tensor - b.x.tensor)


@hf.dataflow
def in_order(a: Rows, b: Rows, roles: Differences) -> Rows:
    return roles.between(a, b)


@hf.dataflow
def by_keyword(a: Rows, b: Rows, roles: Differences) -> Rows:
    return roles.between(b=b, a=a)


@hf.dataflow
def by_returned(a: Rows, b: Rows, roles: Differences) -> Rows:
    return roles.by_returned(a, b)


def difference(flow: Any) -> list[float]:
    placed = hf.Deployment(roles=hf.place(Differences, pool=hf.ResourcePool([2], use_gpu=False)))
    with flow.compile(placed, {B: 2}).launch() as running:
        result: list[float] = running.step(Rows(x=torch.tensor([5.0, 6.0])), Rows(x=torch.ones(2))).x.tensor.tolist()
    return result


@pytest.mark.parametrize("flow", [in_order, by_keyword])
def test_a_dispatch_function_receives_arguments_in_the_order_of_the_parameters(flow: Any) -> None:
    RECEIVED.clear()
    assert difference(flow) == [4.0, 5.0]
    assert RECEIVED[-1] == ([[5.0, 6.0], [1.0, 1.0]], {})  # after the numbered rows of the launch


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (lambda a, b: ([a] * 2, [b] * 2), r"returned \(list, list\), but must return \(args, kwargs\)"),
        (lambda a, b: [[a] * 2], r"returned \(list\), but must return \(args, kwargs\)"),
        (lambda a, b: None, r"returned NoneType, but must return \(args, kwargs\)"),
        (lambda a, b: (([a] * 2, [b] * 2, [a] * 2), {}), "returned 3 positional arguments, but received 2"),
        (lambda a, b: (([a] * 2,), {}), "returned nothing for argument 'b'"),
        (lambda a, b: (([a] * 2, [b] * 2), {"b": [b] * 2}), "returned argument 'b' twice, by position and by keyword"),
        (lambda a, b: (([a] * 2, [b] * 2), {"e": [b] * 2}), "returned argument 'e', which the method does not have"),
        (
            lambda a, b: (([a] * 2, [b]), {}),
            "returned 1 entry for argument 'b', where a list with an entry for each of 2 r",
        ),
        (
            lambda a, b: (([a] * 2, b), {}),
            "returned Rows for argument 'b', where a list with an entry for each of 2 ranks",
        ),
    ],
)
def test_a_dispatch_function_that_does_not_cover_the_arguments_is_refused(
    returned: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.RETURNED", returned)
    with pytest.raises(WiringError, match=f"HF407: the dispatch function of 'roles.by_returned' {why}"):
        difference(by_returned)


def odd(*_: object) -> Any:
    raise ValueError("odd rows")


class Refusing(hf.Worker):
    @register({"dispatch_fn": odd, "collect_fn": first})
    def dispatched(self, a: Rows) -> Rows:
        return a

    @register({"dispatch_fn": noting, "collect_fn": odd})
    def collected(self, a: Rows) -> Rows:
        return a


@hf.dataflow
def refused(a: Rows, roles: Refusing, *, collecting: bool = False) -> Rows:
    return roles.collected(a) if collecting else roles.dispatched(a)


@pytest.mark.parametrize("collecting", [False, True])
def test_an_exception_in_a_function_of_a_protocol_names_the_call_and_the_line(collecting: bool) -> None:
    placed = hf.Deployment(roles=hf.place(Refusing, pool=hf.ResourcePool([2], use_gpu=False)))
    plan, name = refused.given(collecting=collecting).compile(placed, {B: 2}), "collect" if collecting else "dispatch"
    place = f"{__file__}:{odd.__code__.co_firstlineno + 1}"
    says = f"HF407: the {name} function of 'roles.{name}ed' raised ValueError: odd rows ({place})"
    with plan.launch() as running, pytest.raises(WiringError, match=re.escape(says)) as caught:
        running.step(Rows(x=torch.ones(2)))
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    "returned",
    [
        lambda a, b: (([a] * 2, [b] * 2), {}),
        lambda a, b: ((), {"b": [b] * 2, "a": [a] * 2}),
        lambda a, b: (([a] * 2,), {"b": [b] * 2, "c": [None] * 2}),
        lambda a, b: [[[a] * 2, [b] * 2], {}],
    ],
)
def test_arguments_may_be_returned_by_position_or_by_keyword(returned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.RETURNED", returned)
    assert difference(by_returned) == [4.0, 5.0]
