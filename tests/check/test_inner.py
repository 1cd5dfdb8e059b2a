# mypy: disable-error-code="empty-body, arg-type, call-arg, misc, no-any-return, list-item, return-value, attr-defined"
"""Dataflows that other ones call: parameters and results, what is seen of a base class, and the chain of calls."""

from __future__ import annotations

import json
import linecache
from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register
from hfdsl.check.report import Report
from hfdsl.graph.program import RoleCall
from hfdsl.tools.formats import as_sarif


class B(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


class Sequences(hf.Batch):
    ids: i64[B, R]


class Rollout(Sequences):
    log_probs: f32[B, R]


class Scores(hf.Batch):
    reward: f32[B]


class Policy(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, sequences: Sequences) -> Rollout: ...


class Actor(Policy):
    @register(Dispatch.DP_PROTO)
    def generate(self, sequences: Sequences) -> Rollout:
        return Rollout(ids=sequences.ids, log_probs=sequences.ids.tensor.float())

    @register(Dispatch.DP_PROTO)
    def score(self, sequences: Sequences) -> Scores:
        return Scores(reward=sequences.ids.tensor.float().sum(-1))


class Reward(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, sequences: Sequences) -> Scores: ...


@hf.dataflow
def scored(sequences: Sequences, actor: Actor) -> Scores:
    return actor.score(sequences)


def codes(body: Any) -> tuple[str, ...]:
    report = hf.dataflow(body).check()
    return tuple(code for code in report.codes if code != "HF602")


def line_of(span: Any) -> str:
    return linecache.getline(span.file, span.line).strip()


def test_results_that_fit_are_silent() -> None:
    @hf.dataflow
    def many(rollouts: list[Rollout], actors: tuple[Actor, ...], *, scale: float = 1.0) -> dict[str, Scores]:
        return {str(i): actor.score(rollouts[i]) for i, actor in enumerate(actors)}

    @hf.dataflow
    def column(values: f32[B, R], other: Rollout | None = None, again: Any = None) -> None:
        return None

    def outer(sequences: Sequences, actor: Actor) -> Scores:
        rollout = actor.generate(sequences)
        column(rollout.log_probs)
        column(rollout.log_probs, rollout, again=actor)
        return many([rollout, rollout], (actor, actor), scale=2)["1"]

    assert codes(outer) == ()


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda s, a, r: scored(a.score(s), a), "HF204"),
        (lambda s, a, r: scored(s, r), "HF240"),
        (lambda s, a, r: scored(a, a), "HF206"),
        (lambda s, a, r: scored(s, s), "HF206"),
        (lambda s, a, r: scored(3, a), "HF206"),
        (lambda s, a, r: scored(s.ids, a), "HF206"),
        (lambda s, a, r: scored([s], a), "HF206"),
        (lambda s, a, r: scored(s), "HF203"),
        (lambda s, a, r: scored(s, a, r, 1), "HF202"),
        (lambda s, a, r: scored(s, actor=a, sequence=s), "HF202"),
        (lambda s, a, r: scored(s, a, actor=a), "HF202"),
    ],
)
def test_an_argument_that_does_not_fit_is_one_mistake_at_the_call(call: Any, code: str) -> None:
    def outer(sequences: Sequences, actor: Actor, reward: Reward) -> Scores:
        return call(sequences, actor, reward)

    [finding] = [f for f in hf.dataflow(outer).check() if f.code != "HF602"]
    assert finding.code == code
    assert "scored(" in line_of(finding.primary.span)


@pytest.mark.parametrize(
    ("kind", "code"), [(i64[B, R], "HF220"), (f32[B, P], "HF210"), (f32[B], "HF210"), (f32[B, hf.Ragged[R]], "HF214")]
)
def test_a_column_is_held_against_its_annotation(kind: Any, code: str) -> None:
    def inner(values: Any) -> None:
        return None

    inner.__annotations__["values"] = kind

    def outer(rollout: Rollout) -> Rollout:
        hf.dataflow(inner)(rollout.log_probs)
        return rollout

    assert codes(outer) == (code,)


def test_options_have_values_of_their_types() -> None:
    @hf.dataflow
    def inner(sequences: Sequences, *, times: int = 1, names: list[str] | None = None) -> Sequences:
        return hf.repeat(sequences, times)

    def outer(sequences: Sequences) -> tuple[Sequences, ...]:
        return inner(sequences, times="2"), inner(sequences, names=["a", 1]), inner(sequences, names=["a"], times=2)

    assert codes(outer) == ("HF206", "HF206")


def test_a_body_sees_of_a_record_what_its_parameter_declares() -> None:
    @hf.dataflow
    def inner(sequences: Sequences) -> Sequences:
        return hf.merge(Rollout, sequences)

    @hf.dataflow
    def passed(sequences: Sequences) -> Sequences:
        return sequences

    def outer(rollout: Rollout) -> tuple[Sequences, f32[B, R]]:
        return inner(rollout), passed(rollout).log_probs

    assert codes(outer) == ("HF204", "HF201")


def test_a_body_sees_of_a_role_what_its_parameter_declares() -> None:
    @hf.dataflow
    def inner(sequences: Sequences, policy: Policy) -> Rollout:
        assert isinstance(policy, Actor)
        policy.score(sequences)
        return policy.generate(sequences)

    def outer(sequences: Sequences, actor: Actor) -> Rollout:
        return inner(sequences, actor)

    assert codes(outer) == ("HF202",)
    [call] = [node.op for node in hf.dataflow(outer).trace().nodes if isinstance(node.op, RoleCall)]
    assert call.role == "actor"


def test_a_result_is_held_against_the_annotation() -> None:
    @hf.dataflow
    def inner(sequences: Sequences, actor: Actor) -> Rollout:
        return actor.score(sequences)

    def outer(sequences: Sequences, actor: Actor) -> Scores:
        return scored(inner(sequences, actor), actor)

    [finding] = hf.dataflow(outer).check()
    assert (finding.code, line_of(finding.primary.span)) == ("HF603", "return actor.score(sequences)")
    assert [line_of(label.span) for label in finding.chain] == ["return scored(inner(sequences, actor), actor)"]


def test_eager_calls_and_plans_give_the_columns_that_annotations_declare() -> None:
    torch = pytest.importorskip("torch")

    @hf.dataflow
    def narrow(sequences: Sequences) -> Sequences:
        return sequences

    @hf.dataflow
    def outer(sequences: Sequences, actor: Actor) -> tuple[Sequences, Sequences]:
        rollout = actor.generate(sequences)
        return narrow(rollout), inner_of(rollout)

    @hf.dataflow
    def inner_of(rollout: Rollout) -> Sequences:
        return rollout

    sequences = Sequences(ids=torch.arange(6).view(2, 3))
    deployment = hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([2], use_gpu=False)))
    with outer.compile(deployment, {B: 2, R: 3}).launch("local") as running:
        planned = running.step(sequences)
    for batch in (*planned, *outer(sequences, Actor())):
        assert type(batch) is Sequences
        assert batch.ids.tensor.tolist() == [[0, 1, 2], [3, 4, 5]]


@hf.dataflow
def wrong(sequences: Sequences, actor: Actor) -> Scores:
    return actor.score(actor.score(sequences))


@hf.dataflow
def middle(sequences: Sequences, actor: Actor) -> Scores:
    return wrong(sequences, actor)


def helper(sequences: Sequences, actor: Actor) -> list[Scores]:
    return [middle(sequences, actor) for _ in range(2)]


@hf.dataflow
def chained(sequences: Sequences, actor: Actor) -> Scores:
    return helper(sequences, actor)[0]


CHAIN = ["return helper(sequences, actor)[0]", "return [middle(sequences, actor) for _ in range(2)]"]
CHAIN += ["return wrong(sequences, actor)"]


def test_a_mistake_shows_the_calls_that_lead_to_it() -> None:
    report = chained.check()
    [finding] = report.errors
    assert line_of(finding.primary.span) == "return actor.score(actor.score(sequences))"
    assert [line_of(label.span) for label in finding.chain] == CHAIN
    places = [str(report).index(f"| {'    '}{line}") for line in (line_of(finding.primary.span), *CHAIN)]
    assert places == sorted(places)
    for name in ("helper", "middle", "wrong"):
        assert f"'{name}' is called here" in str(report)


def test_machines_get_the_calls_too() -> None:
    report = Report("chained", chained.check().errors)
    [finding] = report
    entry = json.loads(report.json())
    assert [linecache.getline(call["file"], call["line"]).strip() for call in entry["calls"]] == CHAIN
    [result] = json.loads(as_sarif([report], ()))["runs"][0]["results"]
    [stack] = result["stacks"]
    lines = [frame["location"]["physicalLocation"]["region"]["startLine"] for frame in stack["frames"]]
    assert lines == [finding.primary.span.line, *(label.span.line for label in reversed(finding.chain))]
    related = [place["physicalLocation"]["region"]["startLine"] for place in result["relatedLocations"]]
    assert related[:3] == [label.span.line for label in finding.chain]


def test_an_error_in_a_helper_shows_its_call() -> None:
    def raising(sequences: Sequences) -> Sequences:
        raise LookupError("nothing")

    def outer(sequences: Sequences) -> Sequences:
        return raising(sequences)

    [finding] = hf.dataflow(outer).check()
    assert finding.code == "HF610"
    assert [line_of(label.span) for label in finding.chain] == ["return raising(sequences)"]


def test_a_dataflow_of_its_own_has_no_chain() -> None:
    [finding] = wrong.check()
    assert finding.chain == ()


class Learner(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def update(self, rollout: Rollout) -> None: ...


def learn(learner: Learner, rollout: Rollout) -> None:
    learner.update(rollout)


def test_two_places_in_one_helper_are_shown_by_its_two_calls() -> None:
    def twice(sequences: Sequences, actor: Actor, learner: Learner) -> None:
        rollout = actor.generate(sequences)
        learn(learner, rollout)
        learn(learner, hf.queue(rollout, lag=1, late="wait"))

    report = hf.dataflow(twice).check()
    [finding] = (finding for finding in report if finding.code == "HF746")
    assert line_of(finding.primary.span) == "learner.update(rollout)"
    assert [line_of(label.span) for label in finding.chain] == ['learn(learner, hf.queue(rollout, lag=1, late="wait"))']
    [other] = finding.related_places
    assert (line_of(other.span), other.text) == ("learn(learner, rollout)", "changes it here")
    [entry] = (entry for entry in map(json.loads, report.json().splitlines()) if entry.get("code") == "HF746")
    assert [place["line"] for place in entry["related"]] == [other.span.line]
    [result] = (r for r in json.loads(as_sarif([report], ()))["runs"][0]["results"] if r["ruleId"] == "HF746")
    lines = [place["physicalLocation"]["region"]["startLine"] for place in result["relatedLocations"]]
    assert lines == [label.span.line for label in (*finding.chain, other)]
    assert str(report).count("    learner.update(rollout)") == 1


def test_places_that_one_call_in_a_loop_reaches_stay_where_they_are() -> None:
    def looped(sequences: Sequences, actor: Actor, learner: Learner) -> None:
        rollout = actor.generate(sequences)
        for rows in (rollout, hf.queue(rollout, lag=1, late="wait")):
            learn(learner, rows)

    [finding] = (finding for finding in hf.dataflow(looped).check() if finding.code == "HF746")
    assert [line_of(label.span) for label in finding.related_places] == ["learner.update(rollout)"]
