"""docs/algorithms.md counts the loops; so does this."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import hfdsl as hf
from tests.rl.dataflows.programs import PROGRAMS, Program

COUNTED = {
    **PROGRAMS,
    "grpo_without_reference": Program("grpo_without_reference", {}, ("actor", "reward"), module="grpo"),
    "reward_modeling": Program("reward_modeling", {}, ("reward",)),
}
PAGE = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \|.*?\| (\d+) \| (\d+) \|", re.MULTILINE)
ROWS = {name: (int(statements), int(calls)) for name, statements, calls in ROW.findall(PAGE)}


def loop(flow: hf.Dataflow[..., object]) -> ast.FunctionDef:
    [function] = ast.parse(textwrap.dedent(inspect.getsource(flow.body))).body
    assert isinstance(function, ast.FunctionDef)
    return function


def counts(name: str) -> tuple[int, int]:
    """Statements without docstring and return, and the calls of roles, of which ``sample`` is one without a sampler."""
    function = loop(COUNTED[name].plain)
    docstring, *statements, last = function.body
    assert isinstance(docstring, ast.Expr)
    assert isinstance(last, ast.Return)
    called = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return len(statements), sum(_calls_a_role(func, COUNTED[name].roles) for func in called)


def _calls_a_role(func: ast.expr, roles: tuple[str, ...]) -> bool:
    if isinstance(func, ast.Attribute):
        return func.attr == "generate" or (isinstance(func.value, ast.Name) and func.value.id in roles)
    return isinstance(func, ast.Name) and func.id == "sample"


def test_the_table_has_every_dataflow() -> None:
    assert set(ROWS) == set(COUNTED)


@pytest.mark.parametrize("name", COUNTED)
def test_the_table_is_right(name: str) -> None:
    assert ROWS[name] == counts(name)


def test_hybridflows_counts_are_held() -> None:
    ppo, safe, remax = (counts(name) for name in ("ppo", "safe_rlhf", "remax"))
    assert ppo[0] == 8
    assert safe[0] == ppo[0] + 5
    critic = 2  # its values and its update
    assert remax[1] == ppo[1] - critic + 2  # the greedy response, and its score


def test_the_page_shows_the_loop_of_ppo() -> None:
    body = textwrap.dedent(inspect.getsource(PROGRAMS["ppo"].plain.body)).split('"""\n', 1)[1]
    assert body in PAGE


def test_dataflows_and_roles_load_nothing_heavy() -> None:
    names = ", ".join(f"hfdsl.rl.dataflows.{name}" for name in PROGRAMS)
    heavy = ("torch", "numpy", "ray", "transformers")
    code = f"import sys, {names}\nprint([name for name in {heavy!r} if name in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"
