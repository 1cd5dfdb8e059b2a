"""Whether an optional column is there: proved, refuted or left to the run, and what type checkers refuse is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rollout(hf.Batch):
    ids: i64[B, R]
    values: f32[B, R] | None = None
    name: hf.Obj[str, B] | None = None


class Narrow(hf.Batch):
    ids: i64[B, R]


class Full(hf.Batch):
    ids: i64[B, R]
    values: f32[B, R]


class Sure(hf.Batch):
    values: f32[B, R]


class Unsure(Sure):
    values: f32[B, R] | None  # type: ignore[assignment]  # type checkers see it here; a check sees it where it matters
    ids: i64[B, R]


@dataclass(frozen=True)
class Config:
    critic: bool
    estimator: int = 1


class Actor(hf.Worker):
    def __init__(self, config: Config) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.provides("values", when="critic and not estimator == 2")
    @hf.provides("name")
    def generate(self, rollout: Narrow) -> Rollout:
        return Rollout(ids=rollout.ids)

    @register(Dispatch.DP_PROTO)
    def silent(self, rollout: Narrow) -> Rollout:
        return Rollout(ids=rollout.ids)

    @register(Dispatch.ONE_TO_ALL)
    @hf.provides("values")
    def everywhere(self, rollout: Narrow) -> Rollout:
        return Rollout(ids=rollout.ids)


@hf.function
def total(values: f32[B, R]) -> f32[B]:
    return f32(values.tensor.sum(1))


@hf.function
def maybe(values: f32[B, R] | None) -> f32[B, R] | None:
    return values


@hf.provides(when="R > 4")
@hf.function
def long(values: f32[B, R] | None) -> f32[B, R] | None:
    return values


@hf.function
def named(name: hf.Obj[str, B]) -> f32[B]:
    return f32(name.objects)  # type: ignore[arg-type]  # never run


@hf.function
def sure(record: Sure) -> Sure:
    return record


@hf.function
def first(records: hf.PerRank[Rollout]) -> Rollout:
    return records[0]


def report(body: Any, config: Config | None = None, size: int | None = None) -> hf.Report:
    pool = hf.ResourcePool([2], use_gpu=False)
    places = hf.Deployment(actor=hf.place(Actor, config, pool=pool)) if config else None
    checked: hf.Report = hf.dataflow(body).check(places, {B: 4, **({R: size} if size else {})})
    return checked


def present(rollout: Narrow, actor: Actor) -> f32[B]:
    return total(hf.present(actor.generate(rollout).values))


@pytest.mark.parametrize("config", [Config(True), Config(True, 3)])
def test_conditions_that_the_config_proves_are_silent(config: Config) -> None:
    assert report(present, config).findings == ()


@pytest.mark.parametrize("config", [Config(False), Config(True, 2), Config(False, 2)])
def test_a_condition_that_the_config_refutes_is_reported_with_both_ends(config: Config) -> None:
    [finding] = report(present, config).findings
    assert finding.code == "HF231"
    assert "critic and not estimator == 2" in finding.message
    assert f"critic = {config.critic}, estimator = {config.estimator}" in finding.message
    assert [label.text.partition("(")[0] for label in finding.related] == [
        "declared provides", f"placed with critic = {config.critic}, estimator = {config.estimator}",
    ]  # fmt: skip  # a line each


def test_without_a_deployment_or_a_declaration_it_is_left_to_the_run() -> None:
    def silent(rollout: Narrow, actor: Actor) -> f32[B]:
        return total(hf.present(actor.silent(rollout).values))

    def given(rollout: Rollout) -> f32[B]:
        return total(hf.present(rollout.values))

    assert report(present).findings == report(silent, Config(False)).findings == report(given).findings == ()


@pytest.mark.parametrize("config", [Config(True), Config(False)])
def test_presence_is_seen_through_repeats_minibatches_merges_and_records(config: Config) -> None:
    def through(rollout: Narrow, actor: Actor) -> tuple[Rollout, list[f32[B]]]:
        generated = hf.repeat(actor.generate(rollout), 2)
        again = Rollout(ids=generated.ids, values=generated.values)
        return again, [total(hf.present(hf.merge(Rollout, part).values)) for part in hf.minibatches(again, 2)]

    assert report(through, config).codes == (() if config.critic else ("HF231",))


def test_omitted_columns_are_absent_and_given_ones_present() -> None:
    def without(rollout: Full) -> f32[B]:
        return total(hf.present(hf.merge(Rollout, Narrow(ids=rollout.ids)).values))

    def given(rollout: Full) -> f32[B]:
        return total(hf.present(Rollout(ids=rollout.ids, values=rollout.values).values))

    [finding] = report(without).findings
    assert finding.message == "hf.present: column 'values' of 'Rollout' is absent: built without it"
    assert report(given).findings == ()


def test_sizes_decide_too() -> None:
    def by_size(rollout: Full, actor: Actor) -> tuple[Rollout, f32[B]]:
        return actor.silent(Narrow(ids=rollout.ids)), total(hf.present(long(rollout.values)))

    assert report(by_size, Config(True), 8).codes == ()
    assert report(by_size, Config(True), 4).codes == ("HF231",)
    assert report(by_size, Config(True)).codes == ("HF319",)


def test_a_port_for_an_optional_column_accepts_every_column() -> None:
    def takes(rollout: Rollout, full: Full) -> tuple[f32[B, R] | None, ...]:
        return maybe(rollout.values), maybe(full.values), maybe(None), maybe(hf.present(full.values))

    assert report(takes).findings == ()


def test_another_mistake_in_an_optional_column_is_reported_first() -> None:
    def wrong(rollout: Rollout) -> f32[B]:
        return total(rollout.name)  # type: ignore[arg-type]  # a mistake on purpose

    assert report(wrong).codes == ("HF206",)


def test_everything_that_needs_the_column_is_reported() -> None:
    def needs(rollout: Rollout, unsure: Unsure) -> tuple[Any, ...]:
        loose = total(rollout.values)  # type: ignore[arg-type]  # a mistake on purpose
        objects = named(rollout.name)  # type: ignore[arg-type]  # the same
        function = total(maybe(rollout.values))  # type: ignore[arg-type]  # the same
        record = Full(ids=rollout.ids, values=rollout.values)  # type: ignore[arg-type]  # the same
        return loose, objects, function, record, hf.merge(Full, rollout), sure(unsure)

    checked = report(needs)
    assert checked.codes == ("HF231",) * 6
    assert len({finding.primary.span.line for finding in checked.findings}) == 5
    assert checked.findings[5].message.endswith("column 'values' of Unsure may be absent, but Sure always has it")
    advice = [finding.notes[0] for finding in checked.findings if finding.notes]
    assert advice == [
        "write hf.present(rollout.values) if it is always present; or declare the port f32[B, R] | None",
        "write hf.present(rollout.name) if it is always present; or declare the port Obj[str, B] | None",
        "write hf.present(maybe(rollout.values)) if it is always present; or declare the port f32[B, R] | None",
        "write hf.present(rollout.values) if it is always present; or declare the column f32[B, R] | None",
        "build the record from its columns, values=hf.present(...): the column is then tested when it is read",
    ]


def test_a_filter_needs_the_column_that_it_goes_by() -> None:
    class Masked(Narrow):
        keep: hf.bool_[B] | None = None

    def promised(masked: Masked) -> Masked:
        return hf.filter(masked, hf.present(masked.keep))

    def bare(masked: Masked) -> Masked:
        return hf.filter(masked, masked.keep)  # type: ignore[arg-type]  # a mistake on purpose

    promised.__annotations__ = bare.__annotations__ = {"masked": Masked, "return": Masked}
    assert report(promised).findings == ()
    [finding] = report(bare).findings
    assert (finding.code, finding.message) == (
        "HF231", "port 'keep' of 'filter' takes bool_[rows] but is wired to bool_[B] | None: it may be absent"
    )  # fmt: skip  # one pair


@hf.function
def wants(record: Full) -> Full:
    return record


@hf.function
def takes(record: Rollout) -> Rollout:
    return record


def test_a_record_is_converted_with_what_it_has() -> None:
    def full(rollout: Rollout) -> Full:
        return wants(rollout)  # type: ignore[arg-type]  # a mistake on purpose

    def narrow(rollout: Narrow) -> Rollout:
        return takes(rollout)  # type: ignore[arg-type]  # the same

    [finding], [second] = report(full).findings, report(narrow).findings
    assert finding.notes == ("records are nominal: build Full(values=hf.present(...), ...) from its columns",)
    assert second.notes == ("records are nominal: convert with hf.merge(Rollout, ...)",)


def test_a_list_of_records_says_nothing_of_one() -> None:
    def lists(rollout: Narrow, actor: Actor) -> f32[B]:
        return total(hf.present(first(actor.everywhere(rollout)).values))

    assert report(lists, Config(False)).findings == ()


def test_values_that_are_no_columns_are_refused() -> None:
    def record(rollout: Rollout) -> Any:
        return hf.present(rollout)  # type: ignore[arg-type]  # a mistake on purpose

    [finding] = report(record).findings
    assert (finding.code, finding.message) == ("HF206", "hf.present takes a column of a record, got 'rollout'")


@pytest.mark.parametrize("test", ["is None", "is not None"])
def test_a_dataflow_does_not_branch_on_presence(test: str) -> None:
    def left(rollout: Rollout) -> Rollout:
        return rollout if rollout.values is not None else hf.repeat(rollout, 2)

    def right(rollout: Rollout) -> Rollout:
        if None is rollout.values:
            return hf.repeat(rollout, 2)
        return rollout

    [finding] = report(right if test == "is None" else left).findings
    assert finding.code == "HF207"
    assert finding.message.startswith(f"'{test}' asks whether 'rollout.values' is present")


def test_the_condition_is_quoted_as_it_is_written() -> None:
    def body(rollout: Rollout) -> Rollout:
        lacks = hf.repeat(rollout, 2).values is None
        return hf.repeat(rollout, 3) if lacks else rollout

    [finding] = report(body).findings
    assert "asks whether 'repeat.values' is present" in finding.message
    assert finding.notes[0].startswith("write hf.present(hf.repeat(rollout, 2).values) if it is always present")


Sole: TypeAlias = f32[B, R]
Maybe: TypeAlias = f32[B, R] | None


@pytest.mark.parametrize(
    ("annotation", "give", "lacking"),
    [
        (Sole, lambda rollout: rollout.values, True),
        (Maybe, lambda rollout: rollout.values, False),
        (hf.Obj[str, B], lambda rollout: rollout.name, True),
        (Sole, lambda rollout: hf.present(rollout.values), False),
        (Any, lambda rollout: rollout.values, False),
        (tuple[Sole, Rollout], lambda rollout: (rollout.values, rollout), True),
        (tuple[Rollout, Sole], lambda rollout: (rollout, rollout.values), True),
        (tuple[Maybe, Rollout], lambda rollout: (rollout.values, rollout), False),
        (tuple[Sole, ...], lambda rollout: (hf.present(rollout.values), rollout.values), True),
        (tuple[Maybe, ...], lambda rollout: (rollout.values, rollout.values), False),
        (list[Sole], lambda rollout: [hf.present(rollout.values), rollout.values], True),
        (list[Maybe], lambda rollout: [rollout.values], False),
        (dict[str, Sole], lambda rollout: {"a": hf.present(rollout.values), "b": rollout.values}, True),
        (dict[str, Maybe], lambda rollout: {"b": rollout.values}, False),
        (dict[str, list[Sole]], lambda rollout: {"b": [rollout.values]}, True),
    ],
)
def test_a_result_annotated_as_a_column_is_one(annotation: Any, give: Any, lacking: bool) -> None:
    def body(rollout: Rollout) -> Any:
        return give(rollout)

    body.__annotations__["return"] = annotation
    assert report(body).codes == (("HF231",) if lacking else ())


def test_a_column_that_is_returned_is_judged_beside_other_mistakes() -> None:
    def body(rollout: Rollout) -> f32[B, R]:
        rollout.nothing_like_it  # type: ignore[attr-defined]  # noqa: B018  # a mistake on purpose
        return rollout.values  # type: ignore[return-value]  # the same

    assert report(body).codes == ("HF201", "HF231")


def test_an_argument_that_is_unpacked_is_advised_as_any_other() -> None:
    def body(rollout: Rollout) -> f32[B]:
        return total(*[rollout.values])  # type: ignore[arg-type]  # a mistake on purpose

    [finding] = report(body).findings
    assert finding.notes == ("write hf.present(...) if it is always present; or declare the port f32[B, R] | None",)


def test_wrong_declarations() -> None:
    with pytest.raises(hf.DefinitionError, match="HF114: provides cannot read 'critic and'"):
        hf.provides("values", when="critic and")
    with pytest.raises(hf.DefinitionError, match="HF114: provides takes names of columns, got 3"):
        hf.provides(3)  # type: ignore[arg-type]  # a mistake on purpose

    @hf.function
    @hf.provides("ids", when="R > 4")
    def always(rollout: Narrow) -> Narrow:
        return rollout

    @hf.function
    @hf.provides("ids")
    def fine(rollout: Narrow) -> Narrow:
        return rollout

    @hf.function
    @hf.provides(when="R > 4")
    def loose(values: f32[B, R]) -> f32[B, R]:
        return values

    def flow(rollout: Full) -> tuple[Narrow, Narrow, f32[B, R]]:
        narrow = Narrow(ids=rollout.ids)
        return always(narrow), fine(narrow), loose(rollout.values)

    messages = [finding.message for finding in report(flow).findings]
    assert [message.partition(";")[0] for message in messages] == [
        "'always' is declared provides('ids', when='R > 4'), but 'Narrow' has no optional column 'ids'",
        "'loose' is declared provides(when='R > 4'), but its result f32[B, R] is not an optional column",
    ]
