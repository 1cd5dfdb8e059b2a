# mypy: disable-error-code="empty-body"
"""What Python asks of symbolic values and roles: harmless things work as they do eagerly, all else is reported."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.errors import DefinitionError
from hfdsl.graph.misuses import MisuseKind
from hfdsl.graph.program import Graph


class B(hf.Dim): ...


class R(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B, R]


class Rollout(Prompts):
    log_probs: hf.f32[B, R]
    text: hf.Obj[str, B]


built: list[str] = []


class Actor(hf.Worker):
    group = 4

    def __init__(self) -> None:
        built.append("Actor")

    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        ids = prompts.ids.tensor
        return Rollout(ids=ids, log_probs=torch.zeros(ids.shape), text=["a"] * len(ids))

    @register(Dispatch.DP_PROTO)
    def update(self, rollout: Rollout) -> None: ...

    @register(Dispatch.DP_PROTO)
    async def serve(self, rollout: Rollout) -> Rollout: ...

    @register(Dispatch.ONE_TO_ALL)
    def version(self) -> int: ...


worker = Actor()


def flow_of(body: Callable[[Any, Any], object]) -> hf.Dataflow[..., Any]:
    @hf.dataflow
    def flow(prompts: Prompts, actor: Actor) -> object:
        rollout = actor.generate(prompts)
        body(rollout, actor)
        return rollout

    return flow


def graph_of(body: Callable[[Any, Any], object]) -> Graph:
    return flow_of(body).trace()


def rows() -> Prompts:
    return Prompts(ids=torch.zeros(2, 3, dtype=torch.int64))


def check_classes(r: Any, a: Any) -> None:
    assert isinstance(r, Rollout)
    assert isinstance(r, Prompts)
    assert not isinstance(r, Actor)
    assert isinstance(r.log_probs, hf.f32)
    assert isinstance(r.text, hf.Obj)
    assert isinstance(a, Actor)
    assert not isinstance(a, Rollout)


def check_match(r: Any, _: Any) -> None:
    match r:
        case Rollout():
            pass
        case other:
            raise AssertionError(other)


def check_versions(_: Any, a: Any) -> None:
    assert isinstance(a.version(), hf.PerRank)


HARMLESS = [
    lambda r, a: print(r, r.log_probs, a),
    lambda r, a: f"{r} {r.text!r} {a}",
    lambda r, a: [repr(r), str(a)],
    lambda r, a: a.update(copy.copy(r)),
    lambda r, a: a.update(copy.deepcopy(r)),
    lambda r, a: {r: 1, a: 2}[r],
    lambda r, a: r is not None and a is not None,
    lambda r, a: r in [r, a],
    lambda r, a: "actor" if a else "none",
    lambda r, a: hf.repeat(r, worker.group),  # what a worker of the module knows may be read
    check_classes,
    check_match,
    check_versions,
]


@pytest.mark.parametrize("body", HARMLESS)
def test_operations_that_work_eagerly_work_in_a_trace(body: Callable[[Any, Any], object]) -> None:
    assert flow_of(body)(rows(), worker)
    assert graph_of(body).misuses == ()


def test_a_value_is_shown_by_type_and_maker(capsys: pytest.CaptureFixture[str]) -> None:
    graph_of(lambda r, a: print(r, r.log_probs, r.text, a))
    assert capsys.readouterr().out == (
        "<Rollout 'actor.generate'> <f32[B, R] 'actor.generate.log_probs'> <Obj[str, B] 'actor.generate.text'> "
        "<role 'actor' of class Actor>\n"
    )


def with_value(r: Any, _: Any) -> None:
    with r:
        pass


def delete_column(r: Any, _: Any) -> None:
    del r.ids


REFUSED: list[tuple[Callable[[Any, Any], object], MisuseKind, str]] = [
    (lambda r, _: f"{r.log_probs:.2f}", MisuseKind.CONTROL, "formatting"),
    (lambda r, _: pickle.dumps(r), MisuseKind.CONTROL, "pickling"),
    (lambda r, _: next(r), MisuseKind.CONTROL, "iteration"),
    (lambda r, _: complex(r.log_probs), MisuseKind.CONTROL, "complex()"),
    (lambda r, _: max(r.log_probs), MisuseKind.CONTROL, "iteration"),
    (lambda r, _: sum([r.log_probs]), MisuseKind.COMPUTE, "add"),
    (lambda r, _: max(r.log_probs, r.ids), MisuseKind.COMPUTE, "gt"),
    (lambda r, _: math.floor(r.log_probs), MisuseKind.COMPUTE, "floor"),
    (lambda r, a: a.update(*r), MisuseKind.CONTROL, "iteration"),
    (lambda r, a: [a.update(x) for x in r], MisuseKind.CONTROL, "iteration"),
    (with_value, MisuseKind.COMPUTE, "enter"),
    (delete_column, MisuseKind.ASSIGN, "ids"),
    (lambda _, a: a(), MisuseKind.ROLE, "()"),
    (lambda _, a: a[0], MisuseKind.ROLE, "[...]"),
    (lambda _, a: list(a), MisuseKind.ROLE, "iteration"),
    (lambda _, a: setattr(a, "rate", 1.0), MisuseKind.ROLE, ".rate ="),
    (lambda r, _: worker.update(r), MisuseKind.OUTSIDER, "Actor"),
    (lambda r, _: Actor().update(r), MisuseKind.OUTSIDER, "Actor"),
    (lambda r, _: dataclasses.replace(r, ids=1), MisuseKind.RAISED, ""),
]


@pytest.mark.parametrize(("body", "kind", "name"), REFUSED)
def test_an_impossible_step_is_reported_once_on_the_users_line(
    body: Callable[[Any, Any], object], kind: MisuseKind, name: str
) -> None:
    [misuse] = graph_of(body).misuses
    assert misuse.kind is kind
    assert misuse.name == name or kind is MisuseKind.RAISED
    assert misuse.span.file == __file__


def test_an_error_within_a_library_is_reported_where_the_user_called_it() -> None:
    [misuse] = graph_of(lambda r, _: dataclasses.replace(r, ids=1)).misuses
    line = Path(__file__).read_text("utf-8").splitlines()[misuse.span.line - 1]
    assert "dataclasses.replace" in line


def test_unpacking_is_reported_and_the_trace_goes_on() -> None:
    @hf.dataflow
    def flow(prompts: Prompts, actor: Actor) -> object:
        for row in actor.generate(prompts):  # type: ignore[attr-defined]  # a mistake on purpose
            actor.updat(row)  # type: ignore[attr-defined]  # and another
        return actor.generate(prompts)

    assert [misuse.kind for misuse in flow.trace().misuses] == [MisuseKind.CONTROL, MisuseKind.NO_METHOD]


# -- workers that are no parameters


@hf.dataflow
def with_an_outsider(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(worker.generate(prompts))


@hf.dataflow
def with_a_made_one(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(Actor().generate(prompts))


def test_a_worker_of_the_module_does_not_run_and_is_left_as_it_was() -> None:
    before = dict(vars(worker))
    [misuse] = with_an_outsider.trace().misuses
    assert (misuse.kind, misuse.subject) == (MisuseKind.OUTSIDER, "worker.generate")
    assert vars(worker) == before
    assert len(worker.generate(rows())) == 2


def test_a_worker_of_an_enclosing_function_is_seen() -> None:
    hidden = Actor()

    @hf.dataflow
    def flow(prompts: Prompts, actor: Actor) -> Rollout:
        return actor.generate(hidden.generate(prompts))

    [misuse] = flow.trace().misuses
    assert misuse.subject == "hidden.generate"


def test_a_worker_is_not_constructed_by_a_trace() -> None:
    built.clear()
    [misuse] = with_a_made_one.trace().misuses
    assert (misuse.kind, misuse.subject, built) == (MisuseKind.OUTSIDER, "Actor()", [])
    assert isinstance(Actor(), Actor)
    assert built == ["Actor"]


# -- parameters and bodies


def test_positional_only_parameters() -> None:
    @hf.dataflow
    def flow(prompts: Prompts, /, actor: Actor) -> Rollout:
        return actor.generate(prompts)

    assert flow.check().findings == ()
    assert len(flow(rows(), worker)) == 2


def test_a_coroutine_that_nobody_calls_is_no_mistake() -> None:
    assert graph_of(lambda r, a: a.update(r)).misuses == ()
    [misuse] = graph_of(lambda r, a: a.serve(r)).misuses
    assert (misuse.kind, misuse.name) == (MisuseKind.DEFINITION, "HF121")


async def coroutine(prompts: Prompts) -> Prompts:
    return prompts


def generator(prompts: Prompts) -> Iterator[Prompts]:
    yield prompts


@pytest.mark.parametrize("declare", [hf.dataflow, hf.function, hf.function(rows=hf.Whole)])
@pytest.mark.parametrize(("body", "kind"), [(coroutine, "a coroutine"), (generator, "a generator")])
def test_a_body_that_gives_no_result_is_refused_where_it_is_declared(declare: Any, body: Any, kind: str) -> None:
    with pytest.raises(DefinitionError, match=rf"HF121: '{body.__name__}' is {kind}"):
        declare(body)


@pytest.mark.parametrize("body", [Actor, 3, None, "flow"])
def test_a_dataflow_is_a_function(body: Any) -> None:
    with pytest.raises(DefinitionError, match=r"HF118: @hf\.dataflow takes a function"):
        hf.dataflow(body)


def test_a_role_that_an_inner_dataflow_sees_is_no_outsider() -> None:
    @hf.dataflow
    def flow(prompts: Prompts, actor: Actor) -> Rollout:
        @hf.dataflow
        def inner(prompts: Prompts) -> Rollout:
            return actor.generate(prompts)

        inner.trace()
        return inner(prompts)

    assert not {misuse.kind for misuse in flow.trace().misuses} & {MisuseKind.OUTSIDER, MisuseKind.RAISED}
