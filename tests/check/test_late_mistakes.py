# mypy: disable-error-code="empty-body, arg-type, misc"
"""Mistakes that other systems report late, after their engines have started, are reported here before launch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Literal

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.protocols.register import registered_methods
from tests.check.fixture_programs import FIXTURES, mended_folder
from tests.check.prelude import Actor, B, P, Prompts, R, Rollout, Scores, pool

deployment = hf.Deployment(actor=hf.place(Actor, pool=pool))


def test_a_schema_is_declared_and_not_read_from_the_first_row() -> None:
    with pytest.raises(hf.WiringError, match="HF203: 'Scores' is built without its column"):
        Scores()  # type: ignore[call-arg]
    with pytest.raises(hf.WiringError, match="HF201: 'Scores' has no column 'accuracy'"):
        Scores(reward=torch.zeros(2), accuracy=torch.zeros(2))  # type: ignore[call-arg]


def test_a_metric_names_its_reduction_and_every_rank_counts() -> None:
    class Judge(hf.Worker):
        @register(Dispatch.DP_PROTO)
        def mean(self, scores: Scores) -> hf.Metric[float, Literal["mean"]]:
            return hf.Metric(float(self.rank))

        @register(Dispatch.DP_PROTO)
        def last(self, scores: Scores) -> hf.Metric[float, Literal["last"]]:
            return hf.Metric(float(self.rank))

        @register(Dispatch.ONE_TO_ALL)
        def each(self, scores: Scores) -> float:
            return float(self.rank)

        @register(Dispatch.DP_PROTO)
        def nothing(self, scores: Scores) -> None: ...

    @hf.dataflow
    def program(scores: Scores, judge: Any) -> object:
        judge.nothing(scores)
        return judge.mean(scores), judge.last(scores), judge.each(scores)

    program.body.__annotations__["judge"] = Judge
    plan = program.compile(hf.Deployment(judge=hf.place(Judge, pool=pool)), {B: 8})
    assert plan.report.codes == ()
    with plan.launch() as running:
        mean, last, each = running.step(Scores(reward=torch.zeros(8)))
    assert (mean.value, last.value, list(each)) == (1.5, 3.0, [0.0, 1.0, 2.0, 3.0])


@pytest.mark.parametrize("mesh", [hf.Mesh(tp=4), hf.Mesh(pp=4)])
def test_a_number_of_one_chunk_needs_no_reduction(mesh: hf.Mesh) -> None:
    class Judge(hf.Worker):
        @register(Dispatch.THREE_D_PROTO)
        def loss(self, scores: Scores) -> float: ...

    @hf.dataflow
    def program(scores: Scores, judge: Any) -> object:
        return judge.loss(scores)

    program.body.__annotations__["judge"] = Judge
    placed = hf.Deployment(judge=hf.place(Judge, pool=pool, mesh=mesh))
    assert program.check(placed, dims={B: 8}).codes == ()
    assert program.check(hf.Deployment(judge=hf.place(Judge, pool=pool)), dims={B: 8}).codes == ("HF417",)


def test_a_method_of_another_role_is_reported_and_a_derived_role_has_its_own() -> None:
    class Critic(Actor):
        @register(Dispatch.DP_PROTO)
        def values(self, rollout: Rollout) -> Rollout: ...

    @hf.dataflow
    def program(rollout: Rollout, actor: Actor) -> Rollout:
        return actor.values(rollout)  # type: ignore[attr-defined,no-any-return]

    [finding] = program.check(hf.Deployment(actor=hf.place(Critic, pool=pool)), dims={B: 8}).findings
    assert finding.code == "HF202"
    assert "values" in registered_methods(Critic)


def test_options_of_a_protocol_are_checked_before_any_call() -> None:
    class Judge(hf.Worker):
        @register(Dispatch.DP_PROTO)
        def score(self, rollout: Rollout, scale: float = 1.0) -> Scores: ...

        @register(Dispatch.DP_PROTO)
        def named(self, *, rollout: Rollout) -> Scores: ...

        @register(Dispatch.ALL_TO_ALL)
        def seed(self, seed: int) -> int: ...

    def codes(body: Any) -> tuple[str, ...]:
        def program(rollout: Rollout, judge: Any) -> object:
            return body(rollout, judge)

        program.__annotations__["judge"] = Judge
        return hf.dataflow(program).check(hf.Deployment(judge=hf.place(Judge, pool=pool)), dims={B: 8}).codes

    with pytest.raises(hf.ProtocolError, match=r"HF410: DP_PROTO with Execute\.RANK_ZERO"):
        register(Dispatch.DP_PROTO, hf.Execute.RANK_ZERO)
    with pytest.raises(hf.ProtocolError, match="HF412: no protocol is called 'RANK_ZERO'"):
        register("RANK_ZERO")
    assert codes(lambda rollout, judge: judge.score((rollout, rollout))) == (
        "HF206",
    )  # a tuple to a splitting protocol
    assert codes(lambda rollout, judge: judge.score(rollout, [1.0] * 4)) == ("HF206",)  # a list is never cut unasked
    assert codes(lambda rollout, judge: judge.named(rollout=rollout)) == ()  # keywords alone
    assert codes(lambda rollout, judge: judge.seed([1, 2, 3, 4])) == ()
    assert codes(lambda rollout, judge: judge.seed([1, 2])) == ("HF411",)


def test_a_shared_constant_has_one_source() -> None:  # sizes are named once, and by their dim
    @hf.dataflow
    def train(rollout: Rollout, actor: Actor) -> Scores:
        return actor.score(rollout)

    @hf.dataflow
    def evaluate(prompts: Prompts, actor: Actor) -> Rollout:
        return actor.generate(prompts)

    sizes = {B: 64, P: 8, R: 8}
    for flow in (train, evaluate):
        assert flow.check(deployment, dims=sizes).codes == ()
        assert flow.check(deployment, dims={**sizes, B: 62}).codes == ("HF310",)


def test_a_check_does_not_need_what_workers_import() -> None:  # only a launch reports HF801
    source = mended_folder(FIXTURES) / "hf602.py"
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("loaded_by_hand", {str(source)!r})
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.report().findings)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "()\n"
