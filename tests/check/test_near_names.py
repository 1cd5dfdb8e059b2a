# mypy: disable-error-code="empty-body"
"""Misspelled or missing names: the near name is suggested where there is one, and nothing where there are several."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check.repair.edits import apply
from hfdsl.deploy.deployment import Placement
from hfdsl.graph.dataflow import Dataflow


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO, balance="lenghts")
    def learn(self, rows: Rows, lengths: hf.i64[B]) -> None: ...

    @register(Dispatch.DP_PROTO)
    def count(self, rows: Rows) -> hf.i64[B]: ...


@hf.dataflow
def balanced(rows: Rows, role: Role) -> None:
    role.learn(rows, role.count(rows))


def test_a_column_that_is_an_argument_is_near_too() -> None:
    [finding] = balanced.check().findings
    assert (finding.code, finding.message.rpartition("; ")[2]) == ("HF425", "did you mean 'lengths'?")


class Scored(hf.Batch):
    reward: hf.f32[B]


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO, balance="rewards")
    def judge(self, scored: Scored) -> None: ...


@hf.dataflow
def judged(scored: Scored, judge: Judge) -> None:
    judge.judge(scored)


def test_a_column_that_weighs_nothing_is_not_meant() -> None:
    [finding] = judged.check().findings
    assert finding.code == "HF425"
    assert "did you mean" not in finding.message


class Plain(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def look(self, rows: Rows) -> Rows: ...


@hf.dataflow
def looked(rows: Rows, actor: Plain) -> Rows:
    return actor.look(rows)


def test_one_of_several_places_is_not_guessed() -> None:
    pool = hf.ResourcePool([1], use_gpu=False)

    def advice(**places: Placement[Any]) -> tuple[str, ...]:
        [finding] = [finding for finding in looked.check(hf.Deployment(**places), {B: 4}) if finding.code == "HF507"]
        assert finding.fixes == (), "what ** unpacks has no names that could be edited"
        return (*finding.help, *finding.notes)

    add = "add actor=hf.place(Plain, ..., pool=...)"
    place = hf.place(Plain, pool=pool)
    assert advice(one=place, other=place) == (add,)
    assert advice(one=place) == ("rename 'one' to 'actor'",)
    assert advice(one=place, actr=place) == ("rename 'actr' to 'actor'",)


@hf.dataflow
def looked_twice(rows: Rows, actor: Plain, other: Plain) -> Rows:
    return other.look(actor.look(rows))


def test_the_other_roles_keep_their_names() -> None:
    place = hf.place(Plain, pool=hf.ResourcePool([1], use_gpu=False))
    [finding] = looked_twice.check(hf.Deployment(other=place, actr=place), {B: 4}).findings
    assert (finding.code, finding.help) == ("HF507", ("rename 'actr' to 'actor'",))


def test_extra_constructor_arguments_are_counted_from_one() -> None:
    class Rated(Plain):
        def __init__(self, rate: float) -> None: ...

    wrong: Any = Rated
    place = hf.place(wrong, 0.1, threading.Lock(), pool=hf.ResourcePool([1], use_gpu=False))
    [finding] = [finding for finding in looked.check(hf.Deployment(actor=place), {B: 4}) if finding.code == "HF802"]
    assert finding.message == "role 'actor' is given argument 2, a lock, which cannot be sent to another process"


class Both(Rows):
    reward: hf.f32[B]


class Near(hf.Batch):
    reward: hf.f32[B]
    rewards: hf.f32[B]


class Scorer(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Scored: ...

    @register(Dispatch.DP_PROTO)
    def use(self, reward: hf.f32[B]) -> None: ...


def test_of_names_that_are_near_the_nearest_is_meant() -> None:
    @hf.dataflow
    def program(near: Near, scorer: Scorer) -> None:
        scorer.use(near.rewardss)  # type: ignore[attr-defined]  # the mistake

    [finding] = program.check().findings
    assert (finding.code, finding.help) == ("HF201", ("did you mean 'rewards'?",))


def test_the_source_of_a_column_that_a_merge_lacks_is_named() -> None:
    @hf.dataflow
    def program(rows: Rows, scorer: Scorer) -> tuple[Scored, Both]:
        put_together = Both(x=rows.x, reward=scorer.score(rows).reward)  # gives the column too, but is put together
        return scorer.score(put_together), hf.merge(Both, rows)

    [finding] = program.check().findings
    line = finding.primary.span.line - 1
    note = f"'scorer.score' (line {line}) gives Scored, which has that column"
    assert (finding.code, finding.notes, finding.help) == ("HF204", (note,), ())


@hf.dataflow
def lacking(rows: Rows, scorer: Scorer) -> Both:
    scored = scorer.score(rows)
    scorer.use(scored.reward)
    return hf.merge(Both, rows)


@hf.dataflow
def lacking_an_input(rows: Rows, scored: Scored, scorer: Scorer) -> Both:
    scorer.use(scored.reward)
    return hf.merge(Both, rows)


@pytest.mark.parametrize(
    ("flow", "words"),
    [
        (lacking, "merge 'scored' too, the Scored that 'scorer.score' returns"),
        (lacking_an_input, "merge 'scored' too"),
    ],
)
def test_what_has_a_missing_column_is_merged_too(flow: Dataflow[..., Any], words: str) -> None:
    [finding] = flow.check().findings
    assert (finding.code, finding.help, finding.notes) == ("HF204", (words,), ())
    [fix] = finding.fixes
    text = apply(Path(__file__).read_text("utf-8"), fix.edits)
    assert text.splitlines()[finding.primary.span.line - 1] == "    return hf.merge(Both, rows, scored)"


def test_a_column_that_nothing_gives_has_no_near_name() -> None:
    @hf.dataflow
    def program(near: Near) -> Both:
        return hf.merge(Both, near)

    [finding] = program.check().findings
    advice = "no value of the dataflow has it: call what computes it first"
    rename = "or rename a column that 'Both' does not have: rewards"
    assert (finding.code, finding.notes) == ("HF204", (f"{advice}, {rename}",))


def test_a_port_called_keys_is_no_unpacked_record() -> None:
    @hf.dataflow
    def program(rows: Rows, scorer: Scorer) -> None:
        named: Any = {"keys": rows}
        scorer.score(**named)

    [finding] = program.check().findings
    assert (finding.code, finding.message) == ("HF202", "'scorer.score' has no port 'keys'")


class Responses(hf.Batch):
    log_probs: hf.f32[B]


class Reference(hf.Batch):
    ref_log_probs: hf.f32[B]


class Experience(Responses, Reference): ...


class Named(Responses):
    ref_logprobs: hf.f32[B]


class Values(Responses):
    values: hf.f32[B]


class Policy(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, rows: Rows) -> Responses: ...

    @register(Dispatch.DP_PROTO)
    def rename(self, responses: Responses) -> Named: ...


class Frozen(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, responses: Responses) -> Reference: ...


@hf.dataflow
def without_reference(rows: Rows, policy: Policy) -> Experience:
    return hf.merge(Experience, policy.generate(rows))


@hf.dataflow
def with_columns(rows: Rows, policy: Policy) -> Experience:
    return Experience(log_probs=policy.generate(rows).log_probs)  # type: ignore[call-arg]  # the mistake


@hf.dataflow
def uncalled(rows: Rows, policy: Policy, frozen: Frozen) -> Experience:
    return hf.merge(Experience, policy.generate(rows))


@hf.dataflow
def unmerged(rows: Rows, policy: Policy, frozen: Frozen) -> Experience:
    responses = policy.generate(rows)
    frozen.score(responses)
    return hf.merge(Experience, responses)


@hf.dataflow
def renamed(rows: Rows, policy: Policy) -> Experience:
    return hf.merge(Experience, policy.rename(policy.generate(rows)))


@hf.dataflow
def nowhere(rows: Rows, policy: Policy) -> Values:
    return hf.merge(Values, policy.generate(rows))


@pytest.mark.parametrize(
    ("program", "advice"),
    [
        (without_reference, "a reference computes it: take a role with the policy's first weights as a parameter"),
        (with_columns, "a reference computes it: take a role with the policy's first weights as a parameter"),
        (uncalled, "'frozen.score' returns Reference, which has that column: call it"),
        (unmerged, "'frozen.score' (line "),
        (renamed, "did you mean 'ref_logprobs'? Give both columns one name"),
        (nowhere, "no value of the dataflow has it: call what computes it first"),
    ],
    ids=["without a reference", "with columns", "uncalled", "unmerged", "renamed", "nowhere"],
)
def test_a_missing_column_comes_from_a_call_before_it_comes_from_a_near_name(
    program: Dataflow[..., Any], advice: str
) -> None:
    """A column that the record has, too, is near and not meant."""
    [finding] = [finding for finding in program.check() if finding.code == "HF204"]
    [note] = [*finding.notes, *finding.help]
    assert note.startswith(advice)
