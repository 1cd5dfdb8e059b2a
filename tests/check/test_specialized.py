"""Helpers for one call: alike calls share a tree, whose nodes are then read once."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import pytest

from hfdsl.check.bodies.specialized import bound_constants, specialized
from hfdsl.check.sources import Function

HELPER = """
def total(x, dim=0, scale=1):
    if scale != 1:
        x = x * scale
    return x.sum() if dim is None else x.sum(dim)
"""


def parsed(text: str) -> Function:
    [definition] = ast.parse(text).body
    assert isinstance(definition, Function)
    return definition


def call(text: str) -> ast.Call:
    parsed_call = ast.parse(text, mode="eval").body
    assert isinstance(parsed_call, ast.Call)
    return parsed_call


def test_alike_calls_share_a_tree() -> None:
    helper, calls = parsed(HELPER), [call("total(x, -1)"), call("total(x, None)")]
    trees = [[specialized(helper, bound_constants(helper, each), {"x"}) for each in calls] for _ in range(2)]
    assert [ast.unparse(tree.body[-1]) for tree in trees[0]] == ["return x.sum(-1)", "return x.sum()"]
    for first, again in zip(*trees, strict=True):
        assert first is again
        assert first is not helper


@pytest.mark.parametrize(
    ("values", "result"),
    [
        ({"dim": None}, "x.sum()"),
        ({"dim": [0, 1]}, "x.sum(dim)"),  # a value without a hash decides too
        ({}, "x.sum() if dim is None else x.sum(dim)"),
    ],
)
def test_values_decide_branches(values: Mapping[str, object], result: str) -> None:
    assert ast.unparse(specialized(parsed(HELPER), {}, values=values).body[-1]) == f"return {result}"


def test_a_function_that_a_call_does_not_change_is_itself() -> None:
    plain = parsed("def scaled(x, factor): return x * factor")
    assert specialized(plain, {}, {"x"}, {"factor": 2}) is plain
    helper = parsed(HELPER)
    assert specialized(helper, {}, {"x"}) is helper, "no branch tests x"
