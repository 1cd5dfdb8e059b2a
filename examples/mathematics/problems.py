"""Word problems of grade-school arithmetic, and the rule that scores an answer.

    python examples/mathematics/problems.py

writes ``runs/mathematics/{train,pairs,held_out}.jsonl``.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path("runs/mathematics")
SLIPS = 0.6  # the share of demonstrations whose answer is one too many
NAMES = ("ann", "ben", "eva", "kim", "leo", "mia", "sam", "tom")
THINGS = ("pens", "figs", "keys", "cups", "hats", "nuts")
STORIES = {
    "+": ("{name} has {a} {thing} and finds {b}", "{name} has {a} {thing} and buys {b}"),
    "-": ("{name} has {a} {thing} and loses {b}", "{name} has {a} {thing} and sells {b}"),
    "*": ("{name} has {a} bags of {b} {thing}", "{name} fills {a} boxes with {b} {thing}"),
}


def numbers(sign: str, draw: random.Random) -> tuple[int, int, int]:
    """Two numbers of an operation, and its result."""
    if sign == "*":
        a, b = draw.randint(2, 7), draw.randint(2, 7)
        return a, b, a * b
    a, b = draw.randint(2, 7), draw.randint(2, 7)
    return (a, b, a + b) if sign == "+" else (max(a, b), min(a, b), abs(a - b))


def problem(draw: random.Random) -> dict[str, Any]:
    """A question with its solution, its answer, and a demonstration, which is one too many more often than not."""
    sign = draw.choice("+-*")
    a, b, answer = numbers(sign, draw)
    story = draw.choice(STORIES[sign]).format(name=draw.choice(NAMES), thing=draw.choice(THINGS), a=a, b=b)
    slip = draw.random() < SLIPS
    return {
        "question": f"{story}. how many?",
        "solution": f"{a}{sign}{b}={answer}",
        "answer": answer,
        "demonstration": f"{a}{sign}{b}={answer + slip}",
    }


def pair(draw: random.Random) -> dict[str, Any]:
    """A problem with its solution, and a worse one, whose last number is wrong."""
    row = problem(draw)
    calculation, _, _ = row["solution"].partition("=")
    wrong = row["answer"] + draw.choice([step for step in (-2, -1, 1, 1, 1, 10) if row["answer"] + step >= 0])
    return {**row, "worse": f"{calculation}={wrong}"}


def solved(response: str, task: dict[str, Any]) -> float:
    """1 if the last number of a response is the answer of its row, else 0.

    The answer may be a number, or a text with the answer behind ``####``, as in GSM8K.

    >>> solved("3+4=7", {"answer": 7}), solved("It is 1,007.", {"answer": "#### 1007"}), solved("", {"answer": 1})
    (1.0, 1.0, 0.0)
    """
    answer = str(task["answer"]).rpartition("####")[2].replace(",", "").strip()
    numbers = re.findall(r"-?\d+", response.replace(",", ""))
    return float(bool(numbers) and int(numbers[-1]) == int(answer))


def write(name: str, make: Callable[[random.Random], dict[str, Any]], count: int, seed: int) -> None:
    """Write a file of problems."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    with (FOLDER / name).open("w") as file:
        file.writelines(json.dumps(make(draw)) + "\n" for _ in range(count))


if __name__ == "__main__":
    write("train.jsonl", problem, 20_000, 0)
    write("pairs.jsonl", pair, 20_000, 1)
    write("held_out.jsonl", problem, 512, 2)
