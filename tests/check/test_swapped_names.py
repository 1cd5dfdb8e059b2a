# mypy: disable-error-code="empty-body"
"""Names are swapped only where two values have each other's port names and nothing else distinguishes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, f32, register


class B(hf.Dim): ...


class R(hf.Dim): ...


class Both(hf.Batch):
    new: f32[B, R]
    old: f32[B, R]
    other: f32[B, R]
    weight: f32[B]


class Trainer(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def ratio(self, new: f32[B, R], old: f32[B, R], *, other: f32[B, R] | None = None) -> Both: ...

    @register(Dispatch.DP_PROTO)
    def prefer(self, chosen: Both, rejected: Both) -> None: ...

    @register(Dispatch.DP_PROTO)
    def weigh(self, new: f32[B, R], weight: f32[B]) -> None: ...

    @register(Dispatch.DP_PROTO)
    def clip(self, both: Both, low: float, high: float, *, steps: int = 1) -> Both: ...


def codes(body: Callable[[Any, Any], object]) -> tuple[str, ...]:
    @hf.dataflow
    def program(both: Both, trainer: Trainer) -> object:
        return body(both, trainer)

    return program.check().codes


def swapped_variables(both: Any, trainer: Any) -> object:
    chosen, rejected = trainer.ratio(both.new, both.old), trainer.ratio(both.new, both.old)
    return trainer.prefer(rejected, chosen), trainer.prefer(chosen=rejected, rejected=chosen)


def swapped_attributes(both: Any, trainer: Any) -> object:
    class Pair:
        chosen = trainer.ratio(both.new, both.old)
        rejected = both

    return trainer.prefer(rejected=Pair.chosen, chosen=Pair.rejected)


def swapped_constants(both: Any, trainer: Any) -> object:
    class Config:
        low, high = 0.1, 0.3

    low, high = Config.low, Config.high
    return trainer.clip(both, high, low), trainer.clip(both, low=Config.high, high=Config.low)


def columns_in_other_variables(both: Any, trainer: Any) -> object:
    return [trainer.ratio(one, other) for one, other in 2 * [(both.old, both.new)]]


def swapped_with_a_mistake(both: Any, trainer: Any) -> object:
    chosen, rejected = trainer.raito(both.new, both.old), both  # reported by itself
    return trainer.prefer(rejected, chosen)


class Targets(hf.Batch):
    new: f32[B, R]
    old: f32[B, R]


@hf.dataflow
def inner(trainer: Trainer, new: f32[B, R], old: f32[B, R], *, low: float = 0.0, high: float = 1.0) -> Both:
    return trainer.clip(trainer.ratio(new, old), low, high)


@hf.dataflow
def two_trainers(first: Trainer, second: Trainer, both: Both) -> None:
    first.prefer(both, both)
    second.prefer(both, both)


def swapped_numbers_of_an_inner_dataflow(both: Any, trainer: Any) -> object:
    low, high = 0.1, 0.3
    return inner(trainer, both.new, both.old, low=high, high=low)


def swapped_records(both: Any, trainer: Any) -> object:
    new, old = trainer.ratio(both.new, both.other), trainer.ratio(both.other, both.old)
    return Targets(new=old.other, old=new.other), trainer.ratio(old.other, new.other)


def records_of_other_names(both: Any, trainer: Any) -> object:
    new, mean = trainer.ratio(both.new, both.other), trainer.ratio(both.other, both.old)
    return Targets(new=mean.other, old=new.other), Targets(new=new.other, old=mean.other)


def swapped_loose_columns(both: Any, trainer: Any) -> object:
    class Pair:
        new, old = both.old, both.new

    return Targets(new=Pair.new, old=Pair.old)


CROSSED = [
    (lambda both, trainer: Targets(new=both.old, old=both.new), 1),
    (lambda both, trainer: trainer.prefer(both, both) or Targets(old=both.new, new=both.old), 1),
    (lambda both, trainer: inner(trainer, both.old, both.new), 1),
    (lambda both, trainer: inner(trainer, old=both.new, new=both.old), 1),
    (swapped_numbers_of_an_inner_dataflow, 1),
    (swapped_loose_columns, 1),
    (swapped_records, 2),
    (lambda both, trainer: trainer.ratio(both.old, both.new), 1),
    (lambda both, trainer: trainer.ratio(new=both.old, old=both.new), 1),
    (lambda both, trainer: trainer.ratio(new=both.old, old=both.new), 1),
    (swapped_variables, 2),
    (swapped_attributes, 1),
    (swapped_constants, 2),
    (columns_in_other_variables, 1),
]


@pytest.mark.parametrize(("body", "count"), CROSSED)
def test_swapped_names_are_reported(body: Callable[[Any, Any], object], count: int) -> None:
    assert codes(body) == ("HF230",) * count


def both_orders(both: Any, trainer: Any) -> object:
    pairs = [(both.old, both.new), (both.new, both.old)]
    again = [trainer.ratio(one, other) for one, other in reversed(pairs)]
    return again, [trainer.ratio(one, other) for one, other in pairs]


def both_orders_of_others(both: Any, trainer: Any) -> object:
    pairs = [(both.old, both.new), (both.old, both.other)]
    return [trainer.ratio(one, other) for one, other in pairs]


def other_numbers(both: Any, trainer: Any) -> object:
    low, high, steps = 1, 2, 3
    steps_too = trainer.clip(both, low, steps, steps=high)  # which are of another type
    return steps_too, trainer.clip(both, 0.3, low), trainer.clip(both, high, 0.1)


def renamed(both: Any, trainer: Any) -> object:
    rejected = trainer.ratio(both.new, both.old)
    return trainer.prefer(rejected, both)  # one name alone says nothing


def exchanged_targets(both: Any, trainer: Any) -> object:
    targets = Targets(new=both.new, old=both.old)
    return Targets(new=targets.old, old=targets.new)


def both_sides(both: Any, trainer: Any) -> object:
    return [Targets(new=both.old, old=both.new), Targets(new=both.new, old=both.old)]


def one_role_twice(both: Any, trainer: Any) -> object:
    first = second = trainer
    return two_trainers(second, first, both)


STRAIGHT: list[Callable[[Any, Any], object]] = [
    records_of_other_names,
    exchanged_targets,
    both_sides,
    one_role_twice,
    lambda both, trainer: hf.merge(Targets, both),
    lambda both, trainer: Targets(new=both.old, old=both.other),
    lambda both, trainer: inner(trainer, both.old, both.other),
    lambda both, trainer: trainer.ratio(both.new, both.old),
    lambda both, trainer: trainer.ratio(both.old, both.old),
    lambda both, trainer: trainer.ratio(both.old, both.other),
    lambda both, trainer: trainer.ratio(both.other, both.new),
    lambda both, trainer: trainer.ratio(*(both.new, both.old)),
    both_orders,
    both_orders_of_others,
    other_numbers,
    renamed,
]


def test_names_are_crossed_whatever_else_is_wrong() -> None:
    assert codes(swapped_with_a_mistake) == ("HF202", "HF230")


def test_possible_meanings_are_no_fixes() -> None:
    @hf.dataflow
    def program(both: Both, trainer: Trainer) -> Both:
        return trainer.ratio(both.old, both.new)

    [finding] = program.check().findings
    assert (finding.help, finding.fixes) == (("swap what is wired to 'new' and 'old'",), ())


@pytest.mark.parametrize("body", STRAIGHT)
def test_other_names_are_not(body: Callable[[Any, Any], object]) -> None:
    assert codes(body) == ()


def test_values_that_types_tell_apart_are_another_mistake() -> None:
    assert "HF230" not in codes(lambda both, trainer: trainer.weigh(both.weight, both.new))


def test_values_of_which_one_alone_would_fit_are_not_swapped() -> None:
    class Steps(hf.Batch):
        flag: hf.bool_[B]
        count: hf.i64[B]

    class Judge(hf.Worker):
        @register(Dispatch.DP_PROTO)
        def judge(self, wide: f32[B, R], count: hf.i64[B]) -> None: ...

        @register(Dispatch.DP_PROTO)
        def weigh(self, count: hf.i64[B], wide: f32[B, R]) -> None: ...

    def program(steps: Steps, judge: Judge) -> None:
        judge.judge(steps.count, steps.flag)  # type: ignore[arg-type]  # two mistakes
        judge.weigh(steps.flag, steps.count)  # type: ignore[arg-type]  # the same

    program.__annotations__ |= {"steps": Steps, "judge": Judge}
    errors = hf.dataflow(program).check().errors
    assert [finding.code for finding in errors] == ["HF220", "HF221", "HF221", "HF220"]


def test_unpacked_arguments_are_not_swapped_as_one_value() -> None:
    class Steps(hf.Batch):
        score: f32[B]
        a: hf.i64[B]
        b: hf.i64[B]

    class Judge(hf.Worker):
        @register(Dispatch.DP_PROTO)
        def judge(self, score: f32[B], first: hf.i64[B], last: hf.i64[B]) -> None: ...

    def program(steps: Steps, judge: Judge) -> None:
        rest = (steps.score, steps.b)
        judge.judge(steps.a, *rest)  # type: ignore[arg-type]  # and judge(*rest, steps.a) has the last two wrong

    program.__annotations__ |= {"steps": Steps, "judge": Judge}
    [finding] = hf.dataflow(program).check().findings
    assert "swapped" in finding.message
    assert (finding.help, finding.fixes, finding.notes) == ((), (), ("swap the two",))
