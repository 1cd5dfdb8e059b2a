# mypy: disable-error-code="empty-body, arg-type, misc, possibly-undefined, valid-type, type-var"
"""Mistakes of other systems that cannot be made here, or that another code catches: a program for each shows it."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any, Literal, TypeVar, TypeVarTuple

import pytest
import torch

import hfdsl as hf
from hfdsl import Add, Dispatch, Div, Mul, f32, register
from hfdsl.errors import DefinitionError
from hfdsl.protocols.dispatch import register_dispatch_mode
from hfdsl.protocols.register import registered_methods
from tests.check.prelude import Actor, B, P, Prompts, R, Rollout, Scores, pool


class N(hf.Dim): ...


class Flat(hf.Batch):
    values: f32[B, Mul[N, R], Add[R, P]]


deployment = hf.Deployment(actor=hf.place(Actor, pool=pool))
dims = TypeVarTuple("dims")
elsewhere: Any = types.new_class("R", (hf.Dim,), exec_body=lambda names: names.update(__module__="my.library"))
variable = TypeVar("B")  # noqa: PLC0132  # named as the dim is


@hf.function
def variadic(values: f32[B, *dims]) -> Scores: ...


@hf.function
def other_dim(values: f32[B, elsewhere]) -> Scores: ...


@hf.function
def same_name(values: f32[variable, R], scores: f32[variable]) -> f32[variable]: ...


# -- definitions


def test_the_order_of_factors_and_terms_is_no_difference() -> None:  # HF103
    @hf.function
    def other_order(values: f32[B, Mul[R, N], Add[P, R]]) -> Scores: ...

    @hf.function
    def same_size(values: f32[B, Div[Mul[R, Mul[N, N]], N], Add[Add[P, Literal[1]], Div[Mul[R, R], R]]]) -> Scores: ...

    @hf.dataflow
    def program(flat: Flat) -> Scores:
        return other_order(flat.values)

    @hf.dataflow
    def off_by_one(flat: Flat) -> Scores:
        return same_size(flat.values)

    assert program.check().codes == ()
    [finding] = off_by_one.check().findings
    assert (finding.code, finding.notes) == ("HF210", ("P+R is shorter than P+R+1 by 1",))


def test_a_column_has_no_variadic_dims() -> None:  # HF106
    @hf.dataflow
    def program(flat: Flat) -> Scores:
        return variadic(flat.values)

    [finding] = program.check().findings
    assert finding.code == "HF101"
    assert "is not a dim" in finding.message


def test_different_dims_of_one_name_are_told_apart() -> None:  # HF107
    @hf.dataflow
    def program(rollout: Rollout) -> Scores:
        return other_dim(rollout.log_probs)

    @hf.dataflow
    def fine(rollout: Rollout, actor: Actor) -> object:
        return same_name(rollout.log_probs, actor.score(rollout).reward)

    [finding] = program.check().findings
    assert finding.code == "HF210"
    assert finding.notes == (
        "these are two dims named R, my.library.R and tests.check.prelude.R: define it once and import it",
    )
    assert fine.check().codes == ()


def test_a_role_without_inputs_makes_the_dims_of_the_program() -> None:  # HF108, where it does not apply
    class Loader(hf.Worker):
        @register(Dispatch.ONE_TO_ALL)
        def load(self) -> Prompts: ...

        @register(Dispatch.ONE_TO_ALL)
        def vocabulary(self) -> f32[N, P]: ...

    @hf.dataflow
    def program(loader: Any) -> object:
        return loader.load(), loader.vocabulary()

    program.body.__annotations__["loader"] = Loader
    assert program.check(dims={N: 8, P: 2, B: 4}).codes == ()


def test_a_bare_tensor_is_no_result_and_a_loose_column_is_one() -> None:  # HF110
    class Bare(hf.Worker):
        @register(Dispatch.DP_PROTO)
        def bare(self, rollout: Rollout) -> torch.Tensor: ...

        @register(Dispatch.DP_PROTO)
        def loose(self, rollout: Rollout) -> f32[B, R]: ...

    @hf.dataflow
    def program(rollout: Rollout, bare: Any) -> object:
        return bare.loose(rollout)

    program.body.__annotations__["bare"] = Bare
    [finding] = program.check().findings  # of the method that nobody calls
    assert (finding.code, "is a bare Tensor: write its dtype and dims" in finding.message) == ("HF104", True)


def test_names_are_taken_once() -> None:  # HF111
    with pytest.raises(DefinitionError, match="HF111"):
        register_dispatch_mode("DP_PROTO", lambda group: ((), {}), lambda group, outputs: outputs)
    with pytest.raises(SyntaxError, match="duplicate argument"):
        compile("def program(actor, actor): ...", "<twice>", "exec")
    with pytest.raises(SyntaxError, match="keyword argument repeated"):
        compile("hf.Deployment(actor=1, actor=2)", "<twice>", "exec")


def test_a_protocol_has_both_of_its_functions() -> None:  # HF112
    with pytest.raises(DefinitionError, match="HF112"):
        register({"dispatch_fn": print})
    with pytest.raises(DefinitionError, match="HF112"):
        register({"collect_fn": print})


def test_nothing_is_cast_on_an_edge() -> None:  # HF222: without casts none can lose precision unseen
    class Half(hf.Batch):
        log_probs: hf.bf16[B, R]

    @hf.dataflow
    def program(rollout: Rollout) -> object:
        return Half(log_probs=rollout.log_probs)

    [finding] = program.check().findings
    assert finding.code == "HF220"


# -- the graph


def test_a_branch_on_a_constant_is_resolved_and_one_on_a_value_refused() -> None:  # HF604
    @hf.dataflow
    def program(rollout: Rollout, actor: Actor) -> Scores:
        if pool.world_size > 2:
            scores = actor.score(rollout)
        return scores

    @hf.dataflow
    def unknown(rollout: Rollout, actor: Actor) -> Scores:
        if actor.score(rollout).reward:
            scores = actor.score(rollout)
        return scores

    @hf.dataflow
    def missing(rollout: Rollout, actor: Actor) -> Scores:
        if pool.world_size > 20:
            scores = actor.score(rollout)
        return scores

    assert program.check().codes == ()
    assert unknown.check().codes == ("HF207",)
    [finding] = missing.check().findings
    assert finding.code == "HF610"
    assert "UnboundLocalError" in finding.message


def test_a_loop_unrolls_and_a_value_that_grows_in_it_is_compared_each_time() -> None:  # HF605
    @hf.dataflow
    def program(prompts: Prompts, actor: Actor) -> Rollout:
        scores = actor.score(actor.generate(prompts))
        for _ in range(3):
            rollout = actor.generate(prompts)
            actor.update(rollout, scores)
            prompts = hf.repeat(prompts, 2)
        return rollout

    [finding] = program.check(deployment, dims={B: 64}).findings  # of two rounds
    assert finding.code == "HF212"
    assert "gets B rows where 'rollout' beside it has B*2 (64 and 128 with" in finding.message


def test_roles_are_built_before_any_of_them_is_called() -> None:  # HF606
    built: list[str] = []

    class Early(hf.Worker):
        def __init__(self) -> None:
            built.append("built")

        @register(Dispatch.DP_PROTO)
        def score(self, rollout: Rollout) -> Scores:
            assert built
            return Scores(reward=torch.zeros(len(rollout)))

    @hf.dataflow
    def program(rollout: Rollout, early: Any) -> Scores:
        return early.score(rollout)  # type: ignore[no-any-return]

    program.body.__annotations__["early"] = Early
    plan = program.compile(hf.Deployment(early=hf.place(Early, pool=hf.ResourcePool([1]))), {B: 2, P: 1, R: 1})
    assert built == []
    with plan.launch():
        assert built == ["built"]


# -- verl's late mistakes (its rows 7, 8, 10, 11, 13 to 16, 21)


def test_a_schema_is_declared_and_not_read_from_the_first_row() -> None:  # row 10
    with pytest.raises(hf.WiringError, match="HF203: 'Scores' is built without its column"):
        Scores()  # type: ignore[call-arg]
    with pytest.raises(hf.WiringError, match="HF201: 'Scores' has no column 'accuracy'"):
        Scores(reward=torch.zeros(2), accuracy=torch.zeros(2))  # type: ignore[call-arg]


def test_a_metric_names_its_reduction_and_every_rank_counts() -> None:  # row 11
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


def test_a_method_of_another_role_is_told_and_a_derived_role_has_its_own() -> None:  # row 13
    class Critic(Actor):
        @register(Dispatch.DP_PROTO)
        def values(self, rollout: Rollout) -> Rollout: ...

    @hf.dataflow
    def program(rollout: Rollout, actor: Actor) -> Rollout:
        return actor.values(rollout)  # type: ignore[attr-defined,no-any-return]

    [finding] = program.check(hf.Deployment(actor=hf.place(Critic, pool=pool)), dims={B: 8}).findings
    assert finding.code == "HF202"
    assert "values" in registered_methods(Critic)


def test_what_goes_with_a_protocol_is_known_before_any_call() -> None:  # row 16
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


def test_a_shared_constant_has_one_source() -> None:  # row 21: sizes are named once, and by their dim
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


def test_a_check_does_not_need_what_workers_import() -> None:  # HF801 is told by a launch alone
    source = Path(__file__).parent / "fixtures" / "hf602_good.py"
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("loaded_by_hand", {str(source)!r})
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.report().findings)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "()\n"
