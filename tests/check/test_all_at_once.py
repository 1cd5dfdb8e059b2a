"""All findings in one run: one for each root cause, none for what only follows from another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hfdsl as hf
from hfdsl.errors import ResourceError
from tests.check import joint_rows, many_mistakes, prelude
from tests.check.prelude import Actor, B, Dispatch, P, Prompts, R, Rollout, Scores, pool, register


def test_a_program_with_many_mistakes_reports_each_once() -> None:
    lines = Path(many_mistakes.__file__).read_text("utf-8").splitlines()
    marked = [(n, m.group(1)) for n, line in enumerate(lines, 1) if (m := re.search(r"  # (HF\d{3})", line))]
    reported = [(finding.primary.span.line, finding.code) for finding in many_mistakes.report()]
    assert sorted(reported) == marked
    assert len(marked) >= 15


def test_row_arithmetic_is_one_finding_with_every_place_and_a_common_fix() -> None:
    [finding] = joint_rows.report()
    places = {line.text.partition(":")[0] for line in (finding.primary, *finding.related)}
    assert any("requirement B % micro_batch == 0" in text for text in places)
    assert finding.help == ("set B to 48 or 72: every split and requirement then holds",)
    for size in (48, 72):
        assert joint_rows.program.check(joint_rows.deployment, dims={joint_rows.B: size}).findings == ()


def test_rows_that_a_mistake_hides_are_not_compared() -> None:
    @hf.dataflow
    def program(prompts: Prompts, actor: Actor) -> None:
        rollout = actor.generate(hf.repeat(prompts, 8))
        lost = actor.score(rollout.log_prob)  # type: ignore[attr-defined]  # the mistake
        actor.update(rollout, lost)  # B*8 rows, and nobody knows how many
        actor.update(rollout, Scores(reward=lost.reward))

    assert program.check().codes == ("HF201",)


def test_a_call_that_fails_has_its_declared_result() -> None:
    @hf.dataflow
    def program(prompts: Prompts, actor: Actor) -> Rollout:
        scores = actor.score(prompts)  # type: ignore[arg-type]  # the first mistake
        return actor.generate(Prompts(ids=scores.rewards))  # type: ignore[attr-defined]  # the second

    assert program.check().codes == ("HF204", "HF201")


def test_a_mistake_in_a_loop_is_one_mistake() -> None:
    @hf.dataflow
    def program(rollout: Rollout, actor: Actor) -> None:
        for _ in range(3):
            for part in hf.minibatches(rollout, 4):
                actor.update(part, part)  # type: ignore[arg-type]  # twelve times
                actor.score(part).reward + 1  # type: ignore[operator]

    assert sorted(program.check(dims={B: 8}).codes) == ["HF204", "HF208"]


def test_a_bad_method_hides_no_other_mistake() -> None:
    class Judge(hf.Worker):
        @register(Dispatch.DP_PROTO)
        def mark(self, rollout) -> Scores: ...  # type: ignore[no-untyped-def,empty-body]

        @register(Dispatch.DP_PROTO)
        def grade(self, *rollouts: Rollout) -> Scores: ...  # type: ignore[empty-body]

    @hf.dataflow
    def program(rollout: Rollout, judge: Judge, actor: Actor) -> Scores:
        judge.grade(judge.mark(rollout))  # type: ignore[arg-type]
        return actor.score(rollout.id)  # type: ignore[attr-defined]

    program.body.__annotations__["judge"] = Judge  # a class of this function, which its text cannot name
    assert sorted(program.check().codes) == ["HF104", "HF105", "HF201"]


def test_errors_stand_before_warnings_in_the_order_of_the_lines() -> None:
    @hf.dataflow
    def program(rollout: Rollout, actor: Actor) -> Scores:
        actor.generate(hf.repeat(rollout, 0))  # type: ignore[arg-type]
        return actor.score(rollout.id)  # type: ignore[attr-defined]

    report = program.check(hf.Deployment(actor=hf.place(Actor, pool=pool), more=hf.place(Actor, pool=pool)))
    assert report.codes == ("HF304", "HF201", "HF508")


def test_invalid_sizes_are_reported_and_the_rest_is_checked() -> None:
    @hf.dataflow
    def program(rollout: Rollout, actor: Actor) -> Scores:
        return actor.score(rollout)

    deployment = hf.Deployment(actor=hf.place(Actor, pool=pool))
    for wrong in (0, -4, 2.5, True, "64", None):
        report = program.check(deployment, dims={B: 10, P: wrong})  # type: ignore[dict-item]
        assert report.codes == ("HF310", "HF302"), str(report)
    assert program.check(deployment, dims={"B": 8, R: 1}).codes == ("HF302",)  # type: ignore[type-var]
    assert prelude.pool.world_size == 4


@hf.dataflow
def scored(rollout: Rollout, actor: Actor) -> Scores:
    return actor.score(rollout)


def test_arguments_that_are_no_deployment_or_sizes_are_reported() -> None:
    nothing: Any = None
    four: Any = 4
    sizes: Any = [4]
    deployment = hf.Deployment(actor=hf.place(Actor, pool=pool))
    for ask in (lambda: scored.compile(nothing), lambda: scored.compile(four), lambda: scored.check(four)):
        with pytest.raises(ResourceError, match=r"HF507: 'scored' is placed by an hf\.Deployment, got "):
            ask()
    [finding] = scored.check(deployment, dims=sizes).findings
    assert (finding.code, finding.message) == ("HF302", "dims= takes a dict of dim classes with their sizes, got [4]")
    for wrong in (sizes, {"B": 4}, {B: 0}):
        with pytest.raises(hf.CheckError, match="HF302"):
            scored.compile(deployment, dims=wrong)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8])
def test_the_numbers_of_numpy_are_sizes(kind: Any) -> None:
    """As of the shape of an array, or a sweep."""
    deployment = hf.Deployment(actor=hf.place(Actor, pool=pool))
    [finding] = scored.check(deployment, dims={B: kind(6)}).findings
    [expected] = scored.check(deployment, dims={B: 6}).findings
    assert (finding.code, finding.message) == (expected.code, expected.message)
    for wrong in (np.float64(6), np.bool_(True)):
        assert scored.check(deployment, dims={B: wrong}).codes == ("HF302",)  # type: ignore[dict-item]  # on purpose


def test_a_mesh_that_does_not_fit_is_reported_without_its_row_arithmetic() -> None:
    deployment = hf.Deployment(actor=hf.place(Actor, pool=pool, mesh=hf.Mesh(dp=3)))
    assert scored.check(deployment, dims={B: 64}).codes == ("HF501",)


def test_a_keyword_only_port_by_position() -> None:
    class Biased(hf.Worker):
        @register(Dispatch.THREE_D_PROTO)
        def score(self, rollout: Rollout, *, bias: float) -> Scores: ...  # type: ignore[empty-body]

    @hf.dataflow
    def program(rollout: Rollout, actor: Biased) -> Scores:
        return actor.score(rollout, 1.0)  # type: ignore[call-arg]

    program.body.__annotations__["actor"] = Biased
    [finding] = program.check().findings
    assert (finding.code, finding.message) == (
        "HF202",
        "'bias' of 'actor.score' is keyword-only: write bias=...",
    )


@pytest.mark.parametrize("outside", [False, True])
def test_the_requirements_of_a_function(outside: bool) -> None:
    def even(scores: Scores) -> Scores:
        return scores

    needs = hf.requires("B % 6 == 0", "B > 3")
    halves = needs(hf.function(even)) if outside else hf.function(needs(even))

    @hf.dataflow
    def program(rollout: Rollout, actor: Actor) -> Scores:
        return halves(actor.score(rollout))

    deployment = hf.Deployment(actor=hf.place(Actor, pool=pool))
    assert program.check(deployment, dims={B: 12}).codes == ()
    [finding] = program.check(deployment, dims={B: 16}).findings
    assert (finding.code, finding.message) == ("HF322", "'even' requires B % 6 == 0, but 16 % 6 = 4")
    assert finding.help == ("set B to 12 or 24: every split and requirement then holds",)
    assert "HF319" in program.check(deployment).codes


def test_a_requirement_of_a_function_names_its_dims() -> None:
    @hf.function
    @hf.requires("B % micro == 0")
    def even(scores: Scores) -> Scores:
        return scores

    @hf.dataflow
    def program(rollout: Rollout, actor: Actor) -> Scores:
        return even(actor.score(rollout))

    [finding] = program.check(dims={B: 12}).findings
    assert finding.code == "HF323"
    assert "'micro' is no dim of the program" in finding.message


def test_sizes_that_several_dataflows_share_are_no_mistake() -> None:
    assert scored.check(dims={B: 64, P: 8, R: 8}).codes == ()
