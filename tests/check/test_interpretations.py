"""The interpreters of bodies, and what single operations mean to a policy's loss, without a program around them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import pytest

import hfdsl.check.run  # noqa: F401  # loads all rules
from hfdsl.check.bodies.flow import FlowInterpretation
from hfdsl.check.bodies.interpretation import Interpretation, RowGroups
from hfdsl.check.bodies.linear_numbers import Linear, LinearNumbers
from hfdsl.check.bodies.row_alignment import RowAlignment
from hfdsl.check.bodies.row_interpretation import RowInterpretation
from hfdsl.check.bodies.scopes import FunctionScope
from hfdsl.check.losses.interpretation import PolicyInterpretation
from hfdsl.check.losses.minimized import MinimizedLosses
from hfdsl.check.losses.terms import NOW, PolicyValue, Quantity, terms_of
from hfdsl.check.sources import Function

GAP = Quantity("gap", base="old", centered=True, above=NOW)
VALUES: dict[str, PolicyValue] = {
    "now": Quantity("log_prob", origin="a call"),
    "old": Quantity("old"),
    "ref": Quantity("reference"),
    "gap": GAP,
    "ratio": Quantity("ratio", base="old", centered=True, above=NOW),
    "gains": Quantity("advantage"),
    "kl": Quantity("kl", base="reference"),
    "mask": Quantity("number", masks=frozenset({"mask"})),
    "logits": Quantity("logits"),
}

MEANINGS = {
    # arithmetic
    "now - old": {("gap", 1)},
    "old - now": {("gap", -1)},
    "-ratio * gains": {("surrogate", -1)},
    "kl - ratio * gains": {("kl", 1), ("surrogate", -1)},
    "torch.sub(kl, ratio * gains, alpha=2)": {("kl", 1), ("surrogate", -1)},
    "kl / (mask - 1)": set[tuple[str, int]](),
    # log-probs, entropies and KLs
    "F.log_softmax(unknown, -1)": {("distribution", 1)},
    "F.cross_entropy(unknown, ids)": {("log_prob", -1)},
    "Categorical(logits=logits).entropy()": {("entropy", 1)},
    # extremes
    "torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains)": {("surrogate", 1)},
    "torch.stack([ratio * gains, ratio.clamp(0.8, 1.2) * gains]).min(0).values": {("surrogate", 1)},
    "torch.min(ratio, gains)": set[tuple[str, int]](),
    # gradients
    "now.detach()": {("old", 1)},
    "logits.detach()": set[tuple[str, int]](),
    # functions of one tensor
    "gap.exp()": {("ratio", 1)},
    "(now - ref) ** 2": {("kl", 1)},
    "(now - ref) ** 3": set[tuple[str, int]](),
    "logits.log_softmax(-1).gather(-1, ids)": {("log_prob", 1)},
    "(now, old)[1]": {("old", 1)},
    "{'now': now, 'old': old}['old']": {("old", 1)},
    # tests and counts
    "gains > 0": {("number", 1)},
}
"""By expression the kinds and signs of its terms; none if it is unknown."""


def body() -> None: ...


def definition(text: str) -> Function:
    [function] = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    return function


def interpreted(expression: str) -> PolicyInterpretation:
    text = f"def body({', '.join(VALUES)}):\n    return {expression}"
    interpretation = PolicyInterpretation(body, definition(text), RowGroups(1, None), {})
    interpretation.names |= VALUES
    return interpretation.completed()


@pytest.mark.parametrize("expression", MEANINGS)
def test_an_operation_means(expression: str) -> None:
    terms = terms_of(interpreted(expression).result())
    assert {(term.kind, term.sign) for term in terms} == MEANINGS[expression]


def test_what_is_collected_has_its_place() -> None:
    [clip] = interpreted("ratio.clamp(0.8, 1 + self.eps)").collected.clips
    assert (clip.low.number, clip.high.number) == (Linear(0.8), Linear(1.0, (("self.eps", 1.0),)))
    assert clip.place.line == 2
    assert interpreted("(-ratio * gains).mean().backward()").collected.losses == [Quantity("surrogate", -1)]


def test_a_name_is_a_linear_number_until_it_is_set_otherwise() -> None:
    scope = FunctionScope(body, definition("def body(self, low):\n    low = -self.eps\n    high = 2 * low + 1"))
    linear = LinearNumbers(scope)
    for statement in scope.definition.body:
        assert isinstance(statement, ast.Assign)
        forms = linear.assigned(statement.targets[0], statement.value)
        linear.set(statement.targets[0])
        linear.forms |= forms
    assert linear.of(ast.parse("high", mode="eval").body) == Linear(1.0, (("self.eps", -2.0),))
    linear.set(ast.Name("high", ast.Store()))
    assert linear.of(ast.parse("high", mode="eval").body) == Linear.of("high")


def test_a_name_that_is_set_again_is_bound_to_no_function() -> None:
    scope = FunctionScope(body, definition("def body(x):\n    f = lambda y: y\n    f = x"))
    function = ast.Name("f", ast.Load())
    scope.bind("f", ast.parse("lambda y: y", mode="eval").body)
    before = scope.bindings.copied()
    called = scope.called(function)
    assert called is not None
    assert called.is_closure
    scope.unbind(frozenset({"f"}))
    assert scope.called(function) is None
    before.intersect(scope.bindings)
    assert before.closures == {}


def derived(kind: type[Interpretation[Any]]) -> Iterator[type[Interpretation[Any]]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from derived(subclass)


def test_the_interpretations_of_rules_derive_from_an_interpreter_alone() -> None:
    shared = {Interpretation, FlowInterpretation, MinimizedLosses}
    rules = [kind for kind in derived(Interpretation) if kind not in shared | {RowAlignment}]
    assert PolicyInterpretation in rules
    assert RowAlignment.__bases__ == (RowInterpretation,)
    assert {base for kind in rules for base in kind.__bases__} == shared
