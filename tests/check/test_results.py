"""Results against their annotation: every form that fits is silent, every one that differs is HF603."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, Literal, Protocol, TypeVar

import pytest

import hfdsl as hf
from hfdsl import Add, Dispatch, bf16, f32, register


class B(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


t = TypeVar("t")


class Prompts(hf.Batch):
    ids: f32[B, Add[P, R]]
    answer: hf.Obj[str, B]


class More(Prompts):
    reward: f32[B]


class Metrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Actor(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def more(self, prompts: Prompts) -> More:
        raise NotImplementedError

    @register(Dispatch.THREE_D_PROTO)
    def update(self, prompts: Prompts) -> Metrics:
        raise NotImplementedError

    @register(Dispatch.ONE_TO_ALL)
    def count(self) -> int:
        raise NotImplementedError

    @register(Dispatch.THREE_D_PP_ONLY)
    def layers(self) -> int:
        raise NotImplementedError


@hf.function
def same(x: f32[B, t]) -> f32[B, t]:
    return x


class Summed(Protocol):
    def total(self) -> float: ...


Body = Callable[[Prompts, Actor], Any]


def report(annotation: Any, body: Body) -> hf.Report:
    def program(prompts: Prompts, actor: Actor) -> Any:
        return body(prompts, actor)

    program.__annotations__ = {"prompts": Prompts, "actor": Actor, "return": annotation}
    return hf.dataflow(program).check()


BODIES: dict[str, Body] = {
    "record": lambda prompts, actor: actor.more(prompts),
    "records": lambda prompts, actor: [actor.more(prompts), actor.more(prompts)],
    "pair": lambda prompts, actor: (actor.more(prompts), 1),
    "named": lambda prompts, actor: {"more": actor.more(prompts)},
    "column": lambda prompts, actor: same(hf.repeat(prompts, 8).ids),
    "objects": lambda prompts, actor: prompts.answer,
    "metric": lambda prompts, actor: actor.update(prompts).loss,
    "list": lambda prompts, actor: actor.count(),
    "stages": lambda prompts, actor: actor.layers(),
    "number": lambda prompts, actor: 1,
    "nothing": lambda prompts, actor: None,
}

FITS: dict[str, tuple[Any, ...]] = {
    "record": (More, Prompts, hf.Batch, More | None, Metrics | Prompts, object, Any, Summed, Sized),
    "records": (list[More], list[Prompts], Sequence[Prompts], list[Any], list, Sequence[Metrics | More]),
    "pair": (tuple[More, int], tuple[Prompts, float], tuple[Any, ...], tuple[Prompts | int, ...], tuple),
    "named": (dict[str, More], Mapping[str, Prompts], dict, object),
    "column": (f32[B, Add[P, R]], f32[B, Add[R, P]], f32[B, t], f32, object),  # type: ignore[valid-type]
    "objects": (hf.Obj[str, B], hf.Obj[object, B], hf.Obj),
    "metric": (hf.Metric[float, Literal["mean"]], hf.Metric),
    "list": (hf.PerRank[int], hf.PerRank[float], hf.PerRank[Any], hf.PerRank, Sequence, Sequence[int], object),
    "stages": (hf.PerStage[int], hf.PerStage, Sequence),
    "number": (int, float, int | str, Literal[1, 2], object),
    "nothing": (None, More | None, object),
}

DIFFERS: dict[str, tuple[Any, ...]] = {
    "record": (Metrics, list[More], tuple[More, More], float, None, f32[B, R], hf.PerRank[More], Metrics | None),
    "records": (list[Metrics], tuple[More, More, More], More, dict[str, More], f32[B], Sequence[Metrics]),
    "pair": (tuple[More, str], tuple[More, int, int], tuple[More, ...], list[More], More),
    "named": (dict[str, Metrics], list[More], More),
    "column": (f32[B, R], f32[B], bf16[B, Add[P, R]], bf16, hf.Obj[str, B], Prompts, float, f32[B, Add[P, P]]),
    "objects": (hf.Obj[int, B], f32[B], str),
    "metric": (hf.Metric[float, Literal["sum"]], hf.Metric[int, Literal["mean"]], float),
    "list": (hf.PerStage[int], hf.PerStage, hf.PerRank[str], hf.PerRank[More], int),
    "stages": (hf.PerRank[int], hf.PerRank, list[int]),
    "number": (str, More, Literal[2], list[int]),
    "nothing": (More, int, f32[B]),
}


@pytest.mark.parametrize(("body", "annotation"), [(name, fitting) for name, all_ in FITS.items() for fitting in all_])
def test_results_that_fit_are_silent(body: str, annotation: Any) -> None:
    checked = report(annotation, BODIES[body])
    assert checked.errors == (), str(checked)


@pytest.mark.parametrize(
    ("body", "annotation"), [(name, differing) for name, all_ in DIFFERS.items() for differing in all_]
)
def test_a_result_that_differs_is_reported(body: str, annotation: Any) -> None:
    checked = report(annotation, BODIES[body])
    assert [finding.code for finding in checked.errors] == ["HF603"], str(checked)


def test_a_result_without_annotation_is_not_judged() -> None:
    @hf.dataflow
    def program(prompts: Prompts, actor: Actor):  # type: ignore[no-untyped-def]
        return actor.more(prompts)

    assert program.check().ok


@pytest.mark.parametrize(
    ("annotation", "body", "text"),
    [
        (f32[B, R], "column", "f32[B, R] and returns f32[B*8, P+R]"),
        (Metrics | None, "list", "Metrics or None and returns PerRank[int]"),
        (More, "number", "More and returns 1"),
        (More, "records", "More and returns a list of 2"),
        (list[Metrics], "records", "Metrics and returns More of B rows"),
        (tuple[More, More, More], "pair", "a tuple of 3 and returns a tuple of 2"),
        (More, "named", "More and returns a dict"),
        (dict[str, Metrics], "named", "Metrics and returns More of B rows at key 'more'"),
    ],
)
def test_the_message_has_the_annotation_and_the_result(annotation: Any, body: str, text: str) -> None:
    [finding] = report(annotation, BODIES[body]).findings
    assert finding.message == f"'program' is annotated to return {text}"


def test_the_result_of_a_program_that_stops_is_not_checked() -> None:
    def stops(prompts: Prompts, actor: Actor) -> Any:
        raise ValueError("no more")

    assert "HF603" not in report(More, stops).codes
