"""Modules and functions that a configuration names."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfdsl.rl.training.preflight.names import near_target, problem_of
from tests.rl.training.preflight_runs import line, only, project
from tests.tools.test_fixing_config import RUN

__all__ = ["project"]  # a fixture for all tests here


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("my_rewards:scoer", "my_rewards:score"),
        ("my_reward:score", "my_rewards:score"),
        ("my_reward.py:score", "my_rewards.py:score"),
        ("my_rewards.py:scoer", "my_rewards.py:score"),
        ("package/rule.py:score", "package/rules.py:score"),
        ("nowhere/rules.py:score", None),
        ("package.rule:score", "package.rules:score"),
        ("nothing_like_it:score", None),
        ("my_rewards", None),
        ("my rewards:score", None),
    ],
)
def test_a_function_that_is_not_there(text: str, near: str | None) -> None:
    Path("package").mkdir()
    Path("package/__init__.py").touch()
    Path("package/rules.py").write_text("def score(response, row): ...\n")
    problem = problem_of(text, 2)
    assert problem is not None
    assert problem.near == near


@pytest.mark.parametrize(
    "body",
    [
        "from os.path import *\n",
        "def __getattr__(name): ...\n",
        "globals()['score'] = 1\n",
        "try:\n    from fast import score\nexcept ImportError:\n    score = None\n",
        "import functools\nscore = functools.partial(print)\n",
        "class score:\n    def __init__(self, a, b, c): ...\n",
        "class Score:\n    def __call__(self, response, row): ...\nscore = Score()\n",
        "score = lambda response, row: 1.0\n",
        "def score(response, row):\n    def inner(): yield 1\n    return sum(inner(), sum(x for x in [0]))\n",
        "def wrapped(f): return f\n@wrapped\nasync def score(response, row): ...\n",
        "score = None\nfor score in [print]: pass\n",
        "def score(*arguments): ...\n",
        "def score(response, row, extra=None): ...\n",
        "def wrapped(f): return f\n@wrapped\ndef score(): ...\n",
        "syntax error here\n",
    ],
)
def test_what_a_module_may_make_while_it_runs_is_not_blamed(body: str) -> None:
    Path("open_module.py").write_text(body)
    assert problem_of("open_module:score", 2) is None
    assert problem_of("open_module.py:score", 2) is None


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("score = 3\n", "is no function, but 3"),
        ("score = {'a': 1}\n", "is no function, but {'a': 1}"),
        ("async def score(response, row): return 1.0\n", "is an async function: a call returns a coroutine"),
        ("def score(response, row):\n    if row:\n        yield 1.0\n", "is a generator: a call returns an iterator"),
    ],
)
def test_a_name_of_something_that_returns_no_score(body: str, problem: str) -> None:
    Path("plain.py").write_text(body)
    found = problem_of("plain.py:score", 2)
    assert found is not None
    assert found.message.startswith(f"'plain.py:score' {problem}")
    text = RUN.replace("my_rewards:score", "plain.py:score")
    assert only(text)[:2] == ("HF812", line(text, "plain.py:score"))


@pytest.mark.parametrize("folder", ["scoring", "scoring/inner", "scoring/inner/deep"])
def test_a_function_below_folders_that_are_no_packages(folder: str) -> None:
    Path(folder).mkdir(parents=True)
    Path(folder, "rules.py").write_text("def score(response, row): ...\n")
    dotted = folder.replace("/", ".")
    assert problem_of(f"{dotted}.rules:score", 2) is None
    problem = problem_of(f"{dotted}.rule:score", 2)
    assert problem is not None
    assert problem.near == f"{dotted}.rules:score"


@pytest.mark.parametrize("signature", ["response", "response, row, extra", "response, row, *, more", ""])
def test_a_function_of_other_arguments(signature: str) -> None:
    Path("fixed.py").write_text(f"def score({signature}): ...\n")
    for text in ("fixed:score", "fixed.py:score"):
        problem = problem_of(text, 2)
        assert problem is not None
        assert "is called with 2 arguments" in problem.message


def test_no_target_is_near_a_name_of_the_users() -> None:
    assert near_target("flows.py:grpo", ["hfdsl.rl.dataflows.grpo:grpo"]) is None
