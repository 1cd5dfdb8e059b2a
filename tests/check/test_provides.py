"""``hf.provides``: what a method says of its optional columns, where it is wrong, and what a plan makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register


class B(hf.Dim): ...


class R(hf.Dim): ...


class Narrow(hf.Batch):
    ids: i64[B, R]


class Rollout(Narrow):
    values: f32[B, R] | None = None
    other: f32[B, R] | None = None
    name: hf.Obj[str, B] | None = None
    keep: hf.bool_[B] | None = None


class Full(Narrow):
    values: f32[B, R]


@dataclass(frozen=True)
class Config:
    critic: bool


class Actor(hf.Worker):
    def __init__(self, config: Config) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.provides("values", "keep", when="critic")
    @hf.provides("name")
    def generate(self, rollout: Narrow) -> Rollout:
        return Rollout(ids=rollout.ids)

    @register(Dispatch.DP_PROTO)
    @hf.provides("values", when="critics")
    def misspelled(self, rollout: Narrow) -> Rollout:
        return Rollout(ids=rollout.ids)

    @register(Dispatch.DP_PROTO)
    @hf.provides("values", when="critic")
    def always(self, rollout: Narrow) -> Full:
        return Full(ids=rollout.ids, values=f32(rollout.ids.tensor))

    @register(Dispatch.DP_PROTO)
    @hf.provides("values", when="R > 4")
    def wide(self, rollout: Narrow) -> Rollout:
        return Rollout(ids=rollout.ids)

    @register(Dispatch.DP_PROTO)
    @hf.provides("values", when="B ** R > 4")
    def power(self, rollout: Narrow) -> Rollout:
        return Rollout(ids=rollout.ids)

    @register(Dispatch.DP_PROTO)
    @hf.provides("values", when="R ** 2 > 4")
    def square(self, rollout: Narrow) -> Rollout:
        return Rollout(ids=rollout.ids)


@hf.function
def total(values: f32[B, R]) -> f32[B]:
    return f32(values.tensor.sum(1))


@hf.function
def named(name: hf.Obj[str, B]) -> f32[B]:
    return f32(name.objects)  # type: ignore[arg-type]  # never run


@hf.provides(when="R > 4")
@hf.function
def long(values: f32[B, R]) -> f32[B, R] | None:
    return values


def placed(config: Any) -> hf.Deployment:
    return hf.Deployment(actor=hf.place(Actor, config, pool=hf.ResourcePool([2], use_gpu=False)))


def report(body: Any, config: Any = Config(False)) -> hf.Report:
    checked: hf.Report = hf.dataflow(body).check(placed(config), {B: 4, R: 4})
    return checked


def test_each_column_has_its_own_condition() -> None:
    def program(rollout: Narrow, actor: Actor) -> f32[B]:
        return named(hf.present(actor.generate(rollout).name))

    assert report(program).findings == ()


def test_a_plan_knows_what_is_there() -> None:
    def program(rollout: Narrow, actor: Actor) -> Rollout:
        return actor.generate(rollout)

    for critic in (False, True):
        [presence] = hf.dataflow(program).compile(placed(Config(critic)), {B: 4, R: 4}).presence.values()
        assert presence == {"values": critic, "keep": critic, "name": True}, "of 'other' nobody says anything"


def test_a_result_is_called_one() -> None:
    def program(full: Full, actor: Actor) -> tuple[Rollout, f32[B]]:
        return actor.generate(full), total(hf.present(long(full.values)))

    [finding] = report(program).findings
    assert finding.message == "hf.present: the result of 'long' is absent: it is present when R > 4"


def test_a_condition_of_sizes_is_reported_without_a_config() -> None:
    def program(rollout: Narrow, actor: Actor) -> f32[B]:
        return total(hf.present(actor.wide(rollout).values))

    [finding] = report(program).findings
    assert [label.text for label in finding.related] == ["declared provides('values', when='R > 4')"]


def test_a_filter_keeps_the_columns_that_there_are() -> None:
    def program(rollout: Narrow, actor: Actor) -> f32[B]:
        generated = actor.generate(rollout)
        return total(hf.present(hf.filter(generated, marked(generated.ids)).values))

    @hf.function
    def marked(ids: i64[B, R]) -> hf.bool_[B]:
        return hf.bool_(ids.tensor[:, 0] > 0)

    [finding] = report(program).findings
    assert finding.message.startswith("hf.present: column 'values' of 'actor.generate' is absent")


@pytest.mark.parametrize("column", ["values", "other"])
def test_a_column_is_seen_under_another_name(column: str) -> None:
    def program(rollout: Narrow, actor: Actor) -> f32[B]:
        generated = actor.generate(rollout)
        return total(hf.present(Rollout(ids=generated.ids, other=getattr(generated, column)).other))

    assert report(program).codes == (("HF231",) if column == "values" else ())


def test_a_column_that_is_left_out_is_absent_wherever_it_goes() -> None:
    def program(rollout: Narrow, actor: Actor) -> tuple[Rollout, f32[B], f32[B]]:
        bare = Rollout(ids=rollout.ids)
        promised = total(hf.present(bare.values))
        return actor.generate(rollout), promised, total(bare.values)  # type: ignore[arg-type]  # a mistake on purpose

    promise, wired = report(program).findings
    assert [label.text for label in promise.related] == ["without this column"]
    assert wired.message == (
        "port 'values' of 'total' takes f32[B, R] but is wired to f32[B, R] | None: "
        "column 'values' of 'Rollout' is absent: built without it"
    )
    assert wired.notes == ()


def test_a_wrong_value_is_no_absent_one() -> None:
    def program(rollout: Narrow, actor: Actor) -> tuple[Rollout, f32[B]]:
        wrong = Rollout(ids=rollout.ids, values=3)  # type: ignore[arg-type]  # a mistake on purpose
        return actor.generate(rollout), total(hf.present(wrong.values))

    assert report(program).codes == ("HF206",)


def test_a_condition_without_meaning_says_nothing_of_the_column() -> None:
    def program(rollout: Narrow, actor: Actor) -> f32[B]:
        return total(hf.present(actor.misspelled(rollout).values))

    [finding] = report(program).findings
    assert (finding.code, [label.text for label in finding.related]) == ("HF323", ["placed here"])


def test_a_condition_of_a_column_that_is_always_there_says_nothing_of_it() -> None:
    def program(rollout: Narrow, actor: Actor) -> f32[B]:
        generated = actor.always(rollout)
        return total(hf.present(Rollout(ids=generated.ids, values=generated.values).values))

    [finding] = report(program).findings
    assert finding.code == "HF201"
    assert "'Full' has no optional column 'values'; there are: none" in finding.message


@pytest.mark.parametrize("method", ["power", "square"])
@pytest.mark.parametrize("config", [Config(True), "a role that cannot be built"])
def test_a_condition_of_sizes_alone_is_judged_without_the_config(method: str, config: object) -> None:
    def program(rollout: Narrow, actor: Actor) -> Rollout:
        return getattr(actor, method)(rollout)  # type: ignore[no-any-return]  # by a variable name

    pool = hf.ResourcePool([2], use_gpu=False)
    wrong: Any = hf.place(Actor, pool=pool) if isinstance(config, str) else hf.place(Actor, config, pool=pool)
    report = hf.dataflow(program).check(hf.Deployment(actor=wrong), {B: 4, R: 4})
    assert report.codes == (("HF114", "HF516") if isinstance(config, str) else ("HF114",))
    assert report.findings[0].related == ()


def test_a_condition_that_asks_for_a_config_needs_one() -> None:
    def program(rollout: Narrow, actor: Actor) -> Rollout:
        return actor.misspelled(rollout)

    wrong: Any = hf.place(Actor, pool=hf.ResourcePool([2], use_gpu=False))
    assert hf.dataflow(program).check(hf.Deployment(actor=wrong), {B: 4, R: 4}).codes == ("HF516",)


def test_a_function_has_no_config() -> None:
    @hf.provides(when="critic")
    @hf.function
    def wrong(values: f32[B, R]) -> f32[B, R] | None:
        return values

    @hf.provides("values")
    @hf.function
    def loose(values: f32[B, R]) -> f32[B, R] | None:
        return values

    def program(full: Full, actor: Actor) -> tuple[Rollout, object, object]:
        return actor.generate(full), wrong(full.values), loose(full.values)

    column, condition = sorted(report(program).findings, key=lambda finding: finding.code)
    assert "'f32[B, R] | None' has no optional column 'values'; there are: none" in column.message
    assert (condition.code, condition.related) == ("HF323", ())
    assert "'critic' is no dim of the program" in condition.message
