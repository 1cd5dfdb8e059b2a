# mypy: disable-error-code="empty-body, arg-type, misc, possibly-undefined, valid-type, type-var"
"""The catalogue of mistakes has an answer to each; a program for each one that cannot be made, or has another code."""

from __future__ import annotations

import ast
import types
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, TypeVarTuple

import pytest
import torch

import hfdsl as hf
from hfdsl import Add, Dispatch, Div, Mul, f32, register
from hfdsl.check.codes import CODES
from hfdsl.errors import DefinitionError
from hfdsl.protocols.dispatch import register_dispatch_mode
from hfdsl.rl.advantages import group_normalized
from tests.check.catalogue import BESIDES, CATALOGUE, Row
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


@cache
def sources() -> dict[str, str]:
    """The text of every test of the project, by its name."""
    texts: dict[str, str] = {}
    for file in Path(__file__).parents[1].rglob("test_*.py"):
        text = file.read_text("utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                texts[node.name] = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return texts


def test_the_catalogue_is_complete_and_in_order() -> None:
    listed = [entry.listed for entry in CATALOGUE]
    assert listed == sorted(set(listed))
    assert len(listed) == 100


ENTRIES = [*((entry, entry.listed) for entry in CATALOGUE), *((entry, f"{entry.listed} besides") for entry in BESIDES)]


@pytest.mark.parametrize("entry", [entry for entry, _ in ENTRIES], ids=[name for _, name in ENTRIES])
def test_every_mistake_of_the_catalogue_has_its_answer(entry: Row) -> None:
    assert set(entry.codes) <= set(CODES)
    assert entry.listed in entry.codes or entry.why, "another answer needs its reason"
    fixtures = [name for name in entry.shown if not name.startswith("test_")]
    tests = [name for name in entry.shown if name.startswith("test_")]
    assert set(tests) <= set(sources())
    folders = [Path(__file__).parent / folder for folder in ("fixtures", "fixtures_run")]
    assert all(any((folder / f"{name}.py").exists() for folder in folders) for name in fixtures)
    for code in entry.codes:
        assert code.lower() in {name[:5] for name in fixtures} or any(code in sources()[name] for name in tests), code
    assert entry.shown


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


def test_different_dims_of_one_name_are_reported_apart() -> None:  # HF107
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


def test_numbers_are_not_to_be_converted_to_a_mask() -> None:  # HF220: 0.3 as a truth value is True
    @hf.function
    def masked(mask: hf.bool_[B, R], log_probs: hf.f32[B, R]) -> Scores: ...

    @hf.dataflow
    def program(rollout: Rollout) -> Scores:
        return masked(rollout.log_probs, rollout.log_probs)

    [finding] = program.check().findings
    assert (finding.code, finding.help) == ("HF220", ())


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


def test_a_value_is_made_before_it_is_read() -> None:  # HF601
    @hf.dataflow
    def program(rollout: Rollout, actor: Actor) -> Scores:
        for _ in range(2):
            actor.update(rollout, scores)  # type: ignore[has-type]  # noqa: F821  # set a line too late
            scores = actor.score(rollout)
        return scores

    [finding] = program.check().findings
    assert finding.code == "HF610"
    assert "UnboundLocalError" in finding.message


def test_calls_of_one_role_keep_the_order_of_the_program() -> None:  # HF702
    class Counter(hf.Worker):
        def __init__(self) -> None:
            self.value = 1.0

        @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
        @hf.writes("value")
        def add(self) -> None:
            self.value += 1

        @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
        @hf.writes("value")
        def double(self) -> None:
            self.value *= 2

        @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
        @hf.reads("value")
        def read(self) -> float:
            return self.value

    @hf.dataflow
    def program(counter: Any) -> object:
        counter.add()
        counter.double()
        counter.add()
        return counter.read()

    program.body.__annotations__["counter"] = Counter
    plan = program.compile(hf.Deployment(counter=hf.place(Counter, pool=pool)))
    assert plan.report.codes == ()
    with plan.launch() as running:
        assert [running.step(), running.step()] == [5.0, 13.0]


# -- values


def test_a_group_of_one_has_no_deviation() -> None:  # HF314
    with pytest.raises(hf.SizeError, match="HF314: a group of 1"):
        group_normalized(torch.zeros(4), 1)
