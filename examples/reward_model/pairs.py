"""Pairs of answers to the problems of ``examples/mathematics``, of which one is right.

A policy finds what a reward model has not seen. One that has seen slips such as 12+7=20 alone knows nothing of 2+2=4,
and may give it a high score, whatever the question; so wrong answers are of several kinds.

    python -m examples.reward_model.pairs

writes ``runs/reward_model/{pairs,held_out_pairs}.jsonl``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from operator import add, mul
from pathlib import Path
from typing import Any

from examples.mathematics.problems import FOLDER as PROBLEMS
from examples.mathematics.problems import numbers, solved

FOLDER = Path("runs/reward_model")
RESULTS: dict[str, Callable[[int, int], int]] = {"+": add, "-": lambda a, b: abs(a - b), "*": mul}
LARGEST = 59  # beyond 7 * 7 + 1, the largest number of a demonstration


def another_number(row: dict[str, Any], draw: random.Random) -> str:
    """The right calculation with any number, or half of the time with one that is near the answer."""
    calculation, _, _ = row["solution"].partition("=")
    near = max(row["answer"] + draw.choice((-10, -3, -2, -1, 1, 1, 1, 2, 3, 10)), 0)
    return f"{calculation}={draw.choice((near, draw.randint(0, LARGEST)))}"


def miscopied(row: dict[str, Any], draw: random.Random) -> str:
    """The right sign, with a number that is not in the question, calculated well."""
    first, sign, second, *_ = row["solution"]
    copied = [int(first), int(second)]
    copied[draw.randrange(2)] = draw.randint(2, 7)
    return f"{copied[0]}{sign}{copied[1]}={RESULTS[sign](*copied)}"


def another_calculation(row: dict[str, Any], draw: random.Random) -> str:
    """A calculation of another problem, with its result or any number."""
    sign = draw.choice("+-*")
    a, b, result = numbers(sign, draw)
    return f"{a}{sign}{b}={draw.choice((result, draw.randint(0, LARGEST)))}"


def broken_off(row: dict[str, Any], draw: random.Random) -> str:
    """The beginning of the right answer, without its number."""
    solution: str = row["solution"]
    return solution[: draw.randrange(1, solution.index("=") + 2)]


KINDS = {another_number: 5, miscopied: 3, another_calculation: 1, broken_off: 1}
"""What is wrong with an answer, by weight: most of what a policy could gain by is a wrong number."""


def wrong_answer(row: dict[str, Any], draw: random.Random) -> str:
    """A wrong answer to a problem."""
    while True:
        [kind] = draw.choices(list(KINDS), list(KINDS.values()))
        answer = kind(row, draw)
        if not solved(answer, row):
            return answer


def write(source: Path, target: Path, seed: int, pairs: int = 3) -> None:
    """Write so many pairs for every problem of a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    with source.open() as problems, target.open("w") as file:
        for line in problems:
            row = json.loads(line)
            for _ in range(pairs):
                file.write(json.dumps({**row, "better": row["solution"], "worse": wrong_answer(row, draw)}) + "\n")


if __name__ == "__main__":
    write(PROBLEMS / "train.jsonl", FOLDER / "pairs.jsonl", 3)
    write(PROBLEMS / "held_out.jsonl", FOLDER / "held_out_pairs.jsonl", 4, pairs=1)
