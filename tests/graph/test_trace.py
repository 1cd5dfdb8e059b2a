"""Tracing: what a dataflow writes down, where it says it was written, and what it makes of mistakes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import DefinitionError, WiringError
from hfdsl.graph.misuses import MisuseKind
from hfdsl.graph.program import Constant, FunctionCall, Graph, Input, MiniBatch, Pack, Ref, Repeat, RoleCall
from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.graph.symbolic import Symbolic
from hfdsl.graph.trace import trace


class B(hf.Dim): ...


class R(hf.Dim): ...


class Prompts(hf.Batch):
    text: hf.Obj[str, B]


class Rollout(hf.Batch):
    tokens: hf.i64[B, R]
    log_probs: hf.f32[B, R]


class Scores(hf.Batch):
    reward: hf.f32[B]


class Judged(Rollout):
    reward: hf.f32[B]


class Metrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Actor(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        tokens = torch.tensor([[len(text), 1] for text in prompts.text.objects])
        return Rollout(tokens=tokens, log_probs=tokens.float())

    @hf.register(hf.Dispatch.DP_PROTO)
    def score(self, rollout: Rollout, *, scale: float = 1.0) -> Scores:
        return Scores(reward=rollout.tokens.tensor.sum(1) * scale)

    @hf.register(hf.Dispatch.DP_PROTO)
    def update(self, judged: Judged, step: int = 0) -> Metrics:
        return Metrics(loss=float(judged.reward.tensor.sum()) + step)

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def save(self, path: str) -> None: ...

    def helper(self) -> int:
        return 1


@hf.function
def double(scores: Scores) -> Scores:
    return Scores(reward=scores.reward.tensor * 2)


def text_at(span: Span) -> str:
    """The source that a span covers."""
    lines = Path(span.file).read_text(encoding="utf-8").splitlines()[span.line - 1 : span.end_line]
    lines[-1] = lines[-1][: span.end_column]
    lines[0] = lines[0][span.column :]
    return "\n".join(line.strip() for line in lines)


def labels(graph: Graph) -> list[str]:
    return [node.label for node in graph.nodes]


def misuses(graph: Graph) -> list[tuple[MisuseKind, str]]:
    return [(misuse.kind, text_at(misuse.span)) for misuse in graph.misuses]


# -- what is written down


def test_nodes_operands_and_output() -> None:
    @hf.dataflow
    def flow(prompts: Prompts, actor: Actor) -> tuple[Scores, hf.f32[B, R]]:
        rollout = actor.generate(hf.repeat(prompts, 4))
        return double(actor.score(rollout, scale=0.5)), rollout.log_probs

    graph = flow.trace()
    assert graph.name == "flow"
    assert graph.roles == {"actor": Actor}
    assert [type(node.op) for node in graph.nodes] == [Input, Repeat, RoleCall, RoleCall, FunctionCall]
    assert labels(graph) == ["prompts", "repeat", "actor.generate", "actor.score", "double"]
    assert [node.arguments for node in graph.nodes] == [
        (),
        (("batch", Ref(0)),),
        (("prompts", Ref(1)),),
        (("rollout", Ref(2)), ("scale", Constant(0.5))),
        (("scores", Ref(3)),),
    ]
    assert list(graph.output.refs()) == [Ref(4), Ref(2, "log_probs")]
    assert [node.op.call for node in graph.calls if isinstance(node.op, (RoleCall, FunctionCall))] == [0, 1, 2]
    assert graph.misuses == ()


def test_spans_are_the_users_expressions() -> None:
    @hf.dataflow
    def flow(prompts: Prompts, actor: Actor) -> Scores:
        half, _ = hf.minibatches(prompts, 2)
        rollout = actor.generate(hf.repeat(half, 4))
        scores = double(actor.score(
            rollout,
            scale=2.0,
        ))  # fmt: skip  # a call over several lines
        Judged(tokens=rollout.tokens, log_probs=rollout.log_probs, reward=scores.reward)
        return double(scores) if True else scores

    graph = flow.trace()
    assert [text_at(node.span) for node in graph.nodes[1:]] == [
        "hf.minibatches(prompts, 2)",
        "hf.minibatches(prompts, 2)",
        "hf.repeat(half, 4)",
        "actor.generate(hf.repeat(half, 4))",
        "actor.score(\nrollout,\nscale=2.0,\n)",
        "double(actor.score(\nrollout,\nscale=2.0,\n))",
        "Judged(tokens=rollout.tokens, log_probs=rollout.log_probs, reward=scores.reward)",
        "double(scores)",
    ]
    assert graph.span.line == graph.nodes[0].span.line
    assert text_at(Span(graph.span.file, graph.span.line, 0, graph.span.line, 200)).startswith("def flow(")


def test_a_span_within_a_helper_is_the_helpers_line() -> None:
    def rewarded(actor: Any, rollout: Any) -> Any:
        return actor.score(rollout)

    @hf.dataflow
    def flow(prompts: Prompts, actor: Actor) -> Scores:
        scores: Scores = rewarded(actor, actor.generate(prompts))
        return scores

    assert [text_at(node.span) for node in flow.trace().calls] == ["actor.generate(prompts)", "actor.score(rollout)"]


def test_loops_unroll_and_random_numbers_differ_by_call() -> None:
    @hf.dataflow
    def flow(prompts: Prompts, actor: Actor) -> list[Scores]:
        rollout = actor.generate(prompts)
        return [actor.score(part, scale=float(epoch)) for epoch in range(2) for part in hf.minibatches(rollout, 3)]

    graph = flow.trace()
    calls = [node for node in graph.nodes if isinstance(node.op, RoleCall)]
    assert len(calls) == 7
    assert [node.op.call for node in calls if isinstance(node.op, RoleCall)] == list(range(7))
    assert [node.op for node in graph.nodes if isinstance(node.op, MiniBatch)] == [
        MiniBatch(i, 3) for _ in range(2) for i in range(3)
    ]
    assert [dict(node.arguments)["scale"] for node in calls[1:]] == [Constant(0.0)] * 3 + [Constant(1.0)] * 3
    assert len(list(graph.output.refs())) == 6


def test_a_dataflow_within_a_dataflow_becomes_a_part_of_it() -> None:
    @hf.dataflow
    def inner(prompts: Prompts, actor: Actor) -> Scores:
        return actor.score(actor.generate(prompts))

    @hf.dataflow
    def outer(prompts: Prompts, actor: Actor, other: Actor) -> tuple[Scores, Scores]:
        return double(inner(prompts, actor)), inner(prompts=prompts, actor=other)

    graph = outer.trace()
    assert labels(graph)[1:] == ["actor.generate", "actor.score", "double", "other.generate", "other.score"]
    assert graph.misuses == ()
    assert text_at(graph.nodes[1].span) == "actor.generate(prompts)"


def test_two_traces_agree_and_share_nothing() -> None:
    @hf.dataflow
    def flow(prompts: Prompts, actor: Actor) -> dict[str, Any]:
        rollout = actor.generate(prompts)
        scores = double(actor.score(rollout))
        return {"scores": scores, "metrics": (actor.update(hf.merge(Judged, rollout, scores)), 3)}

    first, second = flow.trace(), flow.trace()
    assert first.nodes == second.nodes
    assert first.output == second.output
    assert first == second


def test_a_value_of_another_trace_is_reported() -> None:
    earlier: list[Any] = []

    @hf.dataflow
    def leak(prompts: Prompts, actor: Actor) -> Rollout:
        earlier.append(actor.generate(prompts))
        return actor.generate(prompts)

    @hf.dataflow
    def use(prompts: Prompts, actor: Actor) -> Scores:
        return actor.score(earlier[0])

    leak.trace()
    assert misuses(use.trace()) == [(MisuseKind.FOREIGN, "actor.score(earlier[0])")]


def test_packing_and_merging_are_the_same_node() -> None:
    @hf.dataflow
    def packed(prompts: Prompts, actor: Actor) -> Judged:
        rollout = actor.generate(prompts)
        scores = actor.score(rollout)
        return Judged(tokens=rollout.tokens, log_probs=rollout.log_probs, reward=scores.reward)

    @hf.dataflow
    def merged(prompts: Prompts, actor: Actor) -> Judged:
        rollout = actor.generate(prompts)
        return hf.merge(Judged, rollout, actor.score(rollout))

    pack_node, merge_node = packed.trace().nodes[-1], merged.trace().nodes[-1]
    assert (pack_node.op, pack_node.arguments) == (merge_node.op, merge_node.arguments)
    assert pack_node.op == Pack(Judged)
    assert dict(pack_node.arguments)["reward"] == Ref(2, "reward")


# -- traps


def flow_of(body: Callable[[Any, Any], object]) -> Graph:
    @hf.dataflow
    def flow(prompts: Prompts, actor: Actor) -> Rollout:
        rollout = actor.generate(prompts)
        body(rollout, actor)
        return rollout

    return flow.trace()


COMPUTE = [
    lambda r, _: r.log_probs.mean(),
    lambda r, _: r.log_probs.tensor,
    lambda r, _: r.log_probs + 1,
    lambda r, _: 1 - r.log_probs,
    lambda r, _: 2**r.log_probs,
    lambda r, _: r.log_probs << 1,
    lambda r, _: divmod(r.log_probs, 2),
    lambda r, _: -r.log_probs,
    lambda r, _: abs(r.log_probs),
    lambda r, _: ~r.log_probs,
    lambda r, _: round(r.log_probs),
    lambda r, _: r.log_probs[0],
    lambda r, _: r.log_probs > 0,
    lambda r, _: r == 0,
    lambda r, _: 3 in r,
    lambda r, _: r.log_probs @ r.log_probs,
    lambda r, _: torch.exp(r.log_probs),
    lambda r, _: torch.cat([torch.zeros(2), r.log_probs]),
    lambda r, _: torch.zeros(2, 2) + r.log_probs,
    lambda r, _: r(),
]


@pytest.mark.parametrize("body", COMPUTE)
def test_computation_in_a_dataflow_is_reported_once_with_its_place(body: Callable[[Any, Any], object]) -> None:
    graph = flow_of(body)
    [misuse] = graph.misuses
    assert misuse.kind is MisuseKind.COMPUTE
    assert misuse.producer == 1
    assert text_at(misuse.span) in Path(__file__).read_text(encoding="utf-8").split("COMPUTE = [")[1].split("\n]")[0]
    assert "r" in text_at(misuse.span)
    assert list(graph.output.refs()) == [Ref(1)]


CONTROL = [
    (lambda r, _: 1 if r else 2, "if"),
    (lambda r, _: not r.tokens, "if"),
    (lambda r, _: len(r), "len()"),
    (lambda r, _: float(r.log_probs), "float()"),
    (lambda r, _: int(r.log_probs), "int()"),
    (lambda r, _: range(r.tokens), "int()"),
    (lambda r, _: list(r), "iteration"),
    (lambda r, _: [*r.tokens], "iteration"),
]


@pytest.mark.parametrize(("body", "what"), CONTROL)
def test_control_flow_on_a_value_is_reported(body: Callable[[Any, Any], object], what: str) -> None:
    [misuse] = flow_of(body).misuses
    assert (misuse.kind, misuse.name) == (MisuseKind.CONTROL, what)


MISTAKES = [
    (lambda r, a: r.log_prob, MisuseKind.NO_COLUMN),
    (lambda r, a: a.scores(r), MisuseKind.NO_METHOD),
    (lambda r, a: a.helper(), MisuseKind.NO_METHOD),
    (lambda r, a: a.score(r, scal=2.0), MisuseKind.NO_PORT),
    (lambda r, a: a.score(r, rollout=r), MisuseKind.TWICE),
    (lambda r, a: a.score(), MisuseKind.MISSING_PORT),
    (lambda r, a: a.score(r, 2.0), MisuseKind.KEYWORD_ONLY),
    (lambda r, a: a.score(r, 2.0, 3.0, 4.0), MisuseKind.TOO_MANY),
    (lambda r, a: a.score([r]), MisuseKind.CONTAINER),
    (lambda r, a: a.score({"rollout": r}), MisuseKind.CONTAINER),
    (lambda r, a: hf.repeat(r, 0), MisuseKind.BAD_COUNT),
    (lambda r, a: hf.repeat(r, True), MisuseKind.BAD_COUNT),
    (lambda r, a: hf.repeat(r, r), MisuseKind.BAD_COUNT),
    (lambda r, a: hf.repeat(r.tokens, 2), MisuseKind.NOT_A_RECORD),
    (lambda r, a: hf.repeat(a, 2), MisuseKind.NOT_ROWS),
    (lambda r, a: hf.minibatches(r, 0), MisuseKind.BAD_COUNT),
    (lambda r, a: hf.minibatches(r, 1.5), MisuseKind.BAD_COUNT),  # type: ignore[arg-type]  # a mistake on purpose
    (lambda r, a: hf.minibatches(None, 2), MisuseKind.NOT_ROWS),  # type: ignore[type-var]  # a mistake on purpose
    (lambda r, a: hf.merge(Judged, r), MisuseKind.MERGE_MISSING),
    (lambda r, a: hf.merge(Judged, r, r, a.score(r)), MisuseKind.MERGE_TWICE),
    (lambda r, a: hf.merge(Judged, r, a), MisuseKind.NOT_ROWS),
    (lambda r, a: Judged(tokens=r.tokens, log_probs=r.log_probs), MisuseKind.MERGE_MISSING),  # type: ignore[call-arg]  # on purpose
    (lambda r, a: Scores(reward=r.log_probs, other=r.tokens), MisuseKind.NO_COLUMN),  # type: ignore[call-arg]  # on purpose
    (lambda r, a: int("x"), MisuseKind.RAISED),
    (lambda r, a: setattr(r, "tokens", r.tokens), MisuseKind.ASSIGN),
]


@pytest.mark.parametrize(("body", "kind"), MISTAKES)
def test_mistakes_are_written_down_instead_of_raised(body: Callable[[Any, Any], object], kind: MisuseKind) -> None:
    graph = flow_of(body)
    assert {misuse.kind for misuse in graph.misuses} == {kind}
    for misuse in graph.misuses:
        assert misuse.span.file == __file__
        assert misuse.span != NOWHERE


def test_one_mistake_is_reported_once_and_the_trace_goes_on() -> None:
    @hf.dataflow
    def flow(prompts: Prompts, actor: Actor) -> Scores:
        rollout = actor.generat(prompts)  # type: ignore[attr-defined]  # a mistake on purpose
        weighted = rollout.log_probs.exp() * 2
        if weighted.mean() > 0:
            weighted = -weighted
        scores = actor.score(rollout)
        return double(scores.rewards)  # type: ignore[attr-defined]  # a mistake on purpose

    assert misuses(flow.trace()) == [
        (MisuseKind.NO_METHOD, "actor.generat"),
        (MisuseKind.NO_COLUMN, "scores.rewards"),
    ]


def test_a_raise_of_the_users_own_is_reported_at_its_line() -> None:
    def helper() -> None:
        raise KeyError("nowhere")

    @hf.dataflow
    def flow(prompts: Prompts, actor: Actor) -> Rollout:
        helper()
        return actor.generate(prompts)

    [misuse] = flow.trace().misuses
    assert (misuse.kind, misuse.name) == (MisuseKind.RAISED, "KeyError: 'nowhere'")
    assert text_at(misuse.span) == 'raise KeyError("nowhere")'


def test_results_that_a_dataflow_may_not_return() -> None:
    @hf.dataflow
    def flow(prompts: Prompts, actor: Actor) -> Any:
        return actor.generate(prompts), object()

    [misuse] = flow.trace().misuses
    assert (misuse.kind, misuse.subject) == (MisuseKind.NOT_A_RESULT, "a 'object'")


def test_a_parameter_that_is_neither_record_nor_role_is_reported() -> None:
    @hf.dataflow
    def flow(prompts: Prompts, actor: Actor, scale: float) -> Scores:
        return actor.score(actor.generate(prompts), scale=scale)

    [misuse] = flow.trace().misuses
    assert (misuse.kind, misuse.name) == (MisuseKind.PARAMETER, "scale")


def test_a_symbolic_value_is_not_leaked_as_a_constant() -> None:
    graph = flow_of(lambda r, a: a.save(r))
    assert not any(
        isinstance(o.value, Symbolic) for n in graph.nodes for _, o in n.arguments if isinstance(o, Constant)
    )


# -- declarations without meaning


def test_annotations_that_cannot_be_evaluated() -> None:
    def flow(prompts: Promts, actor: Actor) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # on purpose

    with pytest.raises(DefinitionError, match=r"HF109: 'flow': cannot evaluate an annotation \(name 'Promts'"):
        trace(flow)


@pytest.mark.parametrize("reduction", ["mean", "sum", "max", "min", "first", "last"])
def test_the_reduction_of_a_result_is_a_name(reduction: str) -> None:
    names: dict[str, Any] = {**globals()}
    program = f"""
class Judge(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def score(self, prompts: Prompts) -> hf.Metric[float, "{reduction}"]: ...

@hf.dataflow
def flow(prompts: Prompts, judge: Judge) -> hf.Metric[float, "{reduction}"]:
    return judge.score(prompts)
"""
    for text in (program, "from __future__ import annotations\n" + program):
        exec(text, names)  # noqa: S102  # a program of our own
        assert names["flow"].check().ok


def bare(self: Any, x) -> Scores: ...  # type: ignore[no-untyped-def,empty-body]  # a mistake on purpose
def anything(self: Any, x: Any) -> Scores: ...  # type: ignore[empty-body]  # the same for all of these
def tensor(self: Any, x: torch.Tensor) -> Scores: ...  # type: ignore[empty-body]
def no_result(self: Any, x: Scores): ...  # type: ignore[no-untyped-def]
def stars(self: Any, *x: Scores) -> Scores: ...  # type: ignore[empty-body]
def unknown(self: Any, x: Nowhere) -> Scores: ...  # type: ignore[empty-body,name-defined]  # noqa: F821
def bad_dim(self: Any, x: hf.f32[8]) -> Scores: ...  # type: ignore[empty-body,valid-type]


@pytest.mark.parametrize(
    ("method", "code", "text"),
    [
        (bare, "HF104", "port 'x' of 'bare' has no type; annotate it with a record, a column or a Python type"),
        (anything, "HF104", "port 'x' of 'anything' has no type"),
        (tensor, "HF104", "port 'x' of 'tensor' is a bare Tensor: write its dtype and dims, as in f32[B, R]"),
        (no_result, "HF104", "the result of 'no_result' has no type"),
        (stars, "HF105", "'stars' takes *x: a role method needs named ports"),
        (unknown, "HF109", "'unknown': cannot evaluate an annotation (name 'Nowhere' is not defined)"),
        (bad_dim, "HF101", "port 'x' of 'bad_dim': 8 is not a dim"),
    ],
)
def test_role_methods_without_meaning(method: Callable[..., Any], code: str, text: str) -> None:
    bad = type("Bad", (hf.Worker,), {"method": hf.register(hf.Dispatch.DP_PROTO)(method)})

    def flow(scores: Scores, worker: Any) -> Any:
        return worker.method(scores)

    flow.__annotations__ = {"scores": Scores, "worker": bad, "return": Scores}
    [misuse] = trace(flow).misuses
    assert (misuse.kind, misuse.name) == (MisuseKind.DEFINITION, code)
    assert misuse.subject.startswith(text.replace(f"'{method.__name__}'", "'method'"))


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda: hf.function(3), "HF118: @hf.function takes a function, got 3; rows= is a keyword"),  # type: ignore[call-overload]  # a mistake on purpose
        (
            lambda: hf.function(rows=3)(len),  # type: ignore[call-overload]  # a mistake on purpose
            "HF113: rows= takes hf.Independent, hf.Whole or hf.Grouped(n), got 3",
        ),
        (lambda: hf.Grouped(0), "HF113: Grouped(n) takes a whole number of at least 1, got 0"),
        (lambda: hf.Grouped(True), "HF113: Grouped(n) takes a whole number of at least 1, got True"),
    ],
)
def test_functions_without_meaning(declare: Callable[[], Any], text: str) -> None:
    with pytest.raises(DefinitionError) as error:
        declare()
    assert str(error.value) == text


def test_a_loop_without_an_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfdsl.graph.tracer.MAX_STEPS", 1000)

    @hf.dataflow
    def program(prompts: Prompts, actor: Actor) -> Rollout:
        while True:
            actor.generate(prompts)

    [finding] = program.check().findings
    assert finding.code == "HF610"
    assert "more than 1000 steps were traced: a loop here does not end" in finding.message
    assert finding.primary.span.line == program.body.__code__.co_firstlineno + 3


class Columns:
    """Lacks its base class."""

    reward: hf.f32[B]


class Scorer(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def score(self, rollout: Rollout) -> Columns: ...  # type: ignore[empty-body]


def test_a_class_of_columns_is_a_record() -> None:
    @hf.dataflow
    def program(rollout: Rollout, scorer: Scorer) -> Columns:
        return scorer.score(rollout)

    [finding] = program.check(dims={B: 4}).findings
    says = "the result of 'Scorer.score' has columns and is no record: write class Columns(hf.Batch)"
    assert (finding.code, finding.message) == ("HF104", says)


def test_a_lambda_is_no_function() -> None:
    @hf.dataflow
    def program(prompts: Prompts) -> Prompts:
        copied: Prompts = hf.function(lambda prompts: prompts)(prompts)
        return copied

    [finding] = program.check().findings
    assert (finding.code, finding.primary.span.line) == ("HF104", program.body.__code__.co_firstlineno + 2)
    assert finding.message == "hf.function takes a def: a lambda cannot annotate its parameters and its result"


def test_an_option_that_a_function_does_not_have_is_named() -> None:
    with pytest.raises(DefinitionError, match=r"^HF118: hf.function has no parameter 'row'; did you mean 'rows'\?"):
        hf.function(row=hf.Whole)  # type: ignore[call-overload]  # the mistake


def test_a_loop_names_its_keyword() -> None:
    @hf.dataflow
    def program(prompts: Prompts, actor: Actor) -> Rollout:
        rollout = actor.generate(prompts)
        while rollout.log_probs:
            break
        return rollout

    [finding] = program.check().findings
    assert finding.message.startswith("'while' needs the value of 'actor.generate.log_probs'")


def test_a_merge_takes_its_class_first() -> None:
    @hf.dataflow
    def program(prompts: Prompts, actor: Actor) -> Rollout:
        rollout = actor.generate(prompts)
        return hf.merge(rollout, prompts)  # type: ignore[arg-type]  # a mistake on purpose

    [finding] = program.check().findings
    message = "hf.merge takes a class of records first, as in hf.merge(Experience, rollout), got "
    assert (finding.code, finding.message.startswith(message)) == ("HF206", True)
    assert finding.primary.span.line == program.body.__code__.co_firstlineno + 3
    record = Prompts(text=["6*7"])
    with pytest.raises(WiringError, match=f"HF206: {re.escape(message)}Prompts"):
        hf.merge(record, record)  # type: ignore[arg-type]  # as above


def test_a_column_is_an_attribute_and_an_argument_an_object() -> None:
    @hf.function
    def sampled(prompts: Prompts, *, style: Exception) -> Prompts:
        return prompts

    @hf.dataflow
    def program(prompts: Prompts) -> Prompts:
        prompts["text"]  # type: ignore[index]  # as below
        return sampled(prompts, style=ValueError)  # type: ignore[arg-type]  # a mistake on purpose

    item, argument = program.check().findings
    assert (item.code, item.message) == (
        "HF208",
        "'['text']' on 'prompts': the columns of a record are its attributes",
    )
    assert item.notes == ("write .text in place of ['text']",)
    assert argument.message.endswith("is wired to the class ValueError, of which ValueError(...) is an object")


ASKED = {
    "rollout.log_probs": "HF207",
    "not rollout.log_probs": "HF207",
    "rollout.log_probs > 0": "HF208",
    "rollout.misspelled": "HF201",
    "len(rollout)": "HF207",
    "True and rollout.log_probs < 0": "HF208",
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("block", ["pass", "rollout = actor.generate(prompts)"])
def test_a_loop_that_waits_for_a_value_is_one_mistake(asked: str, block: str, tmp_path: Path) -> None:
    report = _waiting(f"while {asked}:\n        {block}", tmp_path)
    assert report.codes == (ASKED[asked],)


def test_a_loop_that_waits_for_a_number_ends(tmp_path: Path) -> None:
    report = _waiting("while int(rollout.log_probs) == 1:\n        pass", tmp_path)
    assert report.codes == ("HF207", "HF610")
    assert "a loop here does not end" in report.findings[1].message


def _waiting(loop: str, tmp_path: Path) -> hf.Report:
    body = f"rollout = actor.generate(prompts)\n    {loop}\n    return rollout"
    source = f"def waiting(prompts: Prompts, actor: Actor) -> Rollout:\n    {body}\n"
    (tmp_path / "waiting.py").write_text(source, "utf-8")
    scope = {"Prompts": Prompts, "Actor": Actor, "Rollout": Rollout}
    exec(compile(source, str(tmp_path / "waiting.py"), "exec"), scope)  # noqa: S102  # the test's own text
    return hf.dataflow(scope["waiting"]).check()


def test_a_misspelled_name_of_hfdsl_is_reported_where_it_is_used() -> None:
    @hf.dataflow
    def program(prompts: Prompts, actor: Actor) -> Rollout:
        return actor.generate(hf.repaet(prompts, 2))  # type: ignore[attr-defined]  # the mistake

    [finding] = program.check().findings
    assert finding.message.endswith("AttributeError: module 'hfdsl' has no attribute 'repaet'; did you mean 'repeat'?")
    assert (finding.code, finding.primary.span.file) == ("HF610", __file__)
    assert not finding.chain


@pytest.mark.parametrize("given", [{}, {"scale": 1.0}])
def test_keyword_only_ports_are_not_counted_as_positional_arguments(given: dict[str, float]) -> None:
    @hf.dataflow
    def program(rollout: Rollout, actor: Actor) -> Any:
        score: Any = actor.score
        return score(rollout, rollout, rollout, **given)

    [finding] = (finding for finding in program.check().findings if finding.code == "HF202")
    assert finding.message == "'actor.score' takes 1 positional argument, but is called with 3"
